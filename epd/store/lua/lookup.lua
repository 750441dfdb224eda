-- Reads index entries with their metadata and refreshes their last use.
-- KEYS: none by name. ARGV: embedding keys.
-- Reads EMB..key, META..key; writes LRU (members that are there only).
-- Returns entry, metadata, entry, metadata ... (false where missing).
--@use clock
local now = now_ms()
local found = {}
for index, key in ipairs(ARGV) do
  found[2 * index - 1] = redis.call('GET', EMB .. key)
  found[2 * index] = redis.call('GET', META .. key)
  redis.call('ZADD', LRU, 'XX', now, key)
end
return found
