-- Library: the index of embeddings over two byte-bounded tiers, L1 and L2.
-- Touches EMB..key (string), LRU and LRU2 (zsets, score = last use in ms: what lies in L1, in L2), LRU_BYTES
-- and LRU2_BYTES, LRU_SIZES (hash: "bytes", or "bytes checksum" of what lies in L2), CACHE_TOTALS (hash).

local PAGE = 32

local function count_event(name, amount)
  if amount > 0 then redis.call('HINCRBY', CACHE_TOTALS, name, amount) end
end

-- Bytes of an embedding, and the checksum of its file in L2 where it lies there.
local function size_of(key)
  local bytes, sum = string.match(redis.call('HGET', LRU_SIZES, key) or '0', '^(%d+) ?(%x*)$')
  return tonumber(bytes), sum
end

local function leave(lru, total, key, bytes)
  if redis.call('ZREM', lru, key) == 0 then return 0 end
  redis.call('DECRBY', total, bytes)
  return 1
end

-- Takes one embedding out of both tiers; 1, or 0 when it was not there.
local function drop(key)
  local bytes = size_of(key)
  local known = leave(LRU, LRU_BYTES, key, bytes) + leave(LRU2, LRU2_BYTES, key, bytes)
  redis.call('HDEL', LRU_SIZES, key)
  return math.min(1, known + redis.call('DEL', EMB .. key))
end

-- Takes one embedding out of a tier; out of the index too where the other tier does not have it. Gives how many
-- left the tier, and how many of these are in neither tier any more.
local function leave_l1(key)
  if not redis.call('ZSCORE', LRU2, key) then return drop(key), 1 end
  return leave(LRU, LRU_BYTES, key, (size_of(key))), 0
end

local function leave_l2(key)
  if not redis.call('ZSCORE', LRU, key) then return drop(key), 1 end
  local bytes = size_of(key)
  redis.call('HSET', LRU_SIZES, key, bytes)
  return leave(LRU2, LRU2_BYTES, key, bytes), 0
end

local function is_pinned(key)
  return redis.call('EXISTS', PIN .. key) == 1
end

local function bytes_in(total)
  return tonumber(redis.call('GET', total) or '0')
end

-- Goes from the least recently used on; "take" says whether a key leaves the tier (nil: enough). Ends within the
-- limit, or after so many keys. Costs the same whatever the number of members.
local function walk(lru, total, limit, most, take)
  local out, kept = {}, 0
  while #out + kept < most and bytes_in(total) > limit do
    local page = redis.call('ZRANGE', lru, kept, kept + PAGE - 1)
    if #page == 0 then return out end
    for _, key in ipairs(page) do
      if bytes_in(total) <= limit then return out end
      local taken = take(key)
      if taken == nil then return out end
      if taken then out[#out + 1] = key else kept = kept + 1 end
    end
  end
  return out
end
