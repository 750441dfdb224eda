-- Keeps embeddings from being evicted for a while; a longer pin is not shortened.
-- KEYS: none by name. ARGV: lease in ms, holder or '', then embedding keys.
-- Reads EMB..key; writes what lib_pin names, LRU and LRU2 (members that are there only).
-- Returns 1 or 0 for each key.
--@use clock
--@use pin
local lease, holder, now = tonumber(ARGV[1]), ARGV[2], now_ms()
local pinned = {}
for index = 3, #ARGV do
  local key = ARGV[index]
  local there = redis.call('EXISTS', EMB .. key)
  if there == 1 then
    hold(key, holder, lease)
    redis.call('ZADD', LRU, 'XX', now, key)
    redis.call('ZADD', LRU2, 'XX', now, key)
  end
  pinned[index - 2] = there
end
return pinned
