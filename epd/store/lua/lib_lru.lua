-- Library: the byte-bounded index of embeddings.
-- Touches EMB..key, META..key (strings), LRU (zset, score = last use in ms), LRU_SIZES (hash), LRU_BYTES.

-- Takes one embedding out; its bytes and 1, or 0 and 0 when it was not there.
local function drop(key)
  local known = redis.call('ZREM', LRU, key)
  local bytes = tonumber(redis.call('HGET', LRU_SIZES, key) or '0')
  redis.call('HDEL', LRU_SIZES, key)
  if bytes > 0 then redis.call('DECRBY', LRU_BYTES, bytes) end
  known = math.max(known, redis.call('DEL', EMB .. key))
  redis.call('DEL', META .. key)
  return bytes, known
end
