-- An embedding was copied to L1: it lies there too from now on.
-- KEYS: none by name. ARGV: embedding key.
-- Touches what lib_lru names. Returns 1, or 0 when nobody wants the copy any more.
--@use clock
--@use lru
local key = ARGV[1]
local bytes, sum = size_of(key)
if sum == '' or redis.call('EXISTS', EMB .. key) == 0 then return 0 end
if not redis.call('ZSCORE', LRU, key) then
  redis.call('INCRBY', LRU_BYTES, bytes)
  count_event('promotions', 1)
end
redis.call('ZADD', LRU, now_ms(), key)
return 1
