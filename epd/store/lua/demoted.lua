-- An embedding was copied to L2: it lies there from now on, and leaves L1 while that holds too much.
-- KEYS: none by name. ARGV: embedding key, checksum, bytes that L1 should hold at most, limit of L2, most keys
--   of L2 to look at.
-- Touches what lib_lru names; reads PIN..key: pinned ones stay.
-- Returns 0 when nobody wants the copy any more, 1 when it was taken, 2 when the file of L1 may go too; then the
-- keys taken out of L2 for it.
--@use lru
local key, sum, target, limit, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local used = redis.call('ZSCORE', LRU, key)
if not used or redis.call('EXISTS', EMB .. key) == 0 then return {0} end
local bytes, before = size_of(key)
if before == '' then
  redis.call('INCRBY', LRU2_BYTES, bytes)
  count_event('demotions', 1)
end
redis.call('ZADD', LRU2, used, key)
redis.call('HSET', LRU_SIZES, key, string.format('%.0f %s', bytes, sum))
local state = 1
if bytes_in(LRU_BYTES) > target and not is_pinned(key) then
  leave_l1(key)
  count_event('evicted_l1', 1)
  state = 2
end

local dropped = 0
local evicted = walk(LRU2, LRU2_BYTES, limit, most, function(oldest)
  if is_pinned(oldest) then return false end
  local _, lost = leave_l2(oldest)
  dropped = dropped + lost
  return true
end)
count_event('evicted_l2', #evicted)
count_event('dropped', dropped)
return {state, unpack(evicted)}
