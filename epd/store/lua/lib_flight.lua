-- Library: flights and those who wait for them. A waiter is the field "job/part" of the waiters hash.
-- Touches FLIGHT..key (string), FLIGHT..key..WAITERS_SUFFIX (hash), FLIGHTS (zset).

local function split_waiter(field)
  local cut = string.find(field, '/', 1, true)
  return string.sub(field, 1, cut - 1), string.sub(field, cut + 1)
end

local function end_flight(key)
  redis.call('DEL', FLIGHT .. key, FLIGHT .. key .. WAITERS_SUFFIX)
  redis.call('ZREM', FLIGHTS, key)
end

-- The message of one waiter whose part is still wanted, or nil. The others are taken out on the way.
local function wanted_message(key)
  local waiters = FLIGHT .. key .. WAITERS_SUFFIX
  local fields = redis.call('HKEYS', waiters)
  for _, field in ipairs(fields) do
    local job_id, part = split_waiter(field)
    if is_wanted(job_id, part) then return redis.call('HGET', waiters, field) end
    redis.call('HDEL', waiters, field)
  end
  return nil
end
