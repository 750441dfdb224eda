-- Keeps embeddings from being evicted for a while; a longer pin is not shortened.
-- KEYS: none by name. ARGV: lease in ms, then embedding keys.
-- Reads EMB..key; writes PIN..key (string), LRU and LRU2 (members that are there only).
-- Returns 1 or 0 for each key.
--@use clock
local lease, now = tonumber(ARGV[1]), now_ms()
local pinned = {}
for index = 2, #ARGV do
  local key = ARGV[index]
  local there = redis.call('EXISTS', EMB .. key)
  if there == 1 then
    redis.call('SET', PIN .. key, '1', 'PX', math.max(lease, redis.call('PTTL', PIN .. key)))
    redis.call('ZADD', LRU, 'XX', now, key)
    redis.call('ZADD', LRU2, 'XX', now, key)
  end
  pinned[index - 1] = there
end
return pinned
