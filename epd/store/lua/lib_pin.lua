-- Library: pins, which keep embeddings from being evicted. Touches PIN..key (string: who holds it, '' for several).

-- A longer pin is not shortened. One that others hold too ends by itself alone.
local function hold(key, holder, lease)
  local before = redis.call('GET', PIN .. key)
  local value = before and before ~= holder and '' or holder
  redis.call('SET', PIN .. key, value, 'PX', math.max(lease, redis.call('PTTL', PIN .. key)))
end

local function let_go(key, holder)
  if holder == '' or redis.call('GET', PIN .. key) ~= holder then return 0 end
  return redis.call('DEL', PIN .. key)
end
