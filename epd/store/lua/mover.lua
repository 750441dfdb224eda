-- The mover: the one process that copies files to L2 (demotion) and back to L1 (promotion).
--
-- MOVER         string  the process that moves; its TTL is the lease
-- WANTED_IN_L1  zset    embeddings that were read while only L2 had them
-- The keys of the tiers are listed in index.lua.

--@script tier_work
-- Says what the mover should do next.
-- KEYS: none. ARGV: mover, its lease in ms, bytes that L1 should hold at most, most files of each kind.
-- Reads PIN..key (pinned files stay); writes MOVER, WANTED_IN_L1 and what the lru library writes.
-- Result: false while another process moves, else three lists: key and checksum of each file to promote, keys
--   to demote, and keys taken out of L1 because L2 has them too or their entries have expired.
--@use pin
--@use lru
local mover, lease, target, max_files = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local current = redis.call('GET', MOVER)
if current and current ~= mover then return false end
redis.call('SET', MOVER, mover, 'PX', lease)

local promote = {}
local wanted = redis.call('ZPOPMIN', WANTED_IN_L1, max_files)
for index = 1, #wanted, 2 do
  local key = wanted[index]
  local _, checksum = size_of(key)
  if checksum ~= '' and not redis.call('ZSCORE', LRU, key) and redis.call('EXISTS', EMB .. key) == 1 then
    promote[#promote + 1] = key
    promote[#promote + 1] = checksum
  end
end

-- A file stays in L1 until L2 has it, so the bytes of planned demotions are subtracted here.
local demote, planned = {}, 0
local function visit(key)
  if #demote >= max_files or bytes_in(LRU_BYTES) - planned <= target then return nil end
  if is_pinned(key) then return false end
  local bytes, checksum = size_of(key)
  if checksum ~= '' or redis.call('EXISTS', EMB .. key) == 0 then
    leave_l1(key)
    return true
  end
  demote[#demote + 1] = key
  planned = planned + bytes
  return false
end
local left = walk(LRU, LRU_BYTES, target, 8 * max_files, visit)
count_event('evicted_l1', #left)
return {promote, demote, left}

--@script demoted
-- Notes that a file was copied to L2. It leaves L1 while L1 is above its target.
-- KEYS: none. ARGV: embedding key, checksum, bytes that L1 should hold at most, limit of L2 in bytes, most
--   keys of L2 to visit.
-- Reads PIN..key (pinned files stay); writes what the lru library writes.
-- Result: 0 if the embedding is gone or no longer in L1, 1 if L2 has it now, 2 if its file in L1 can be
--   deleted as well; then the keys evicted from L2.
--@use pin
--@use lru
local key, checksum = ARGV[1], ARGV[2]
local l1_target, l2_limit, max_keys = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local last_use = redis.call('ZSCORE', LRU, key)
if not last_use or redis.call('EXISTS', EMB .. key) == 0 then return {0} end
local bytes, before = size_of(key)
if before == '' then
  redis.call('INCRBY', LRU2_BYTES, bytes)
  count_event('demotions', 1)
end
redis.call('ZADD', LRU2, last_use, key)
redis.call('HSET', LRU_SIZES, key, string.format('%.0f %s', bytes, checksum))
local state = 1
if bytes_in(LRU_BYTES) > l1_target and not is_pinned(key) then
  leave_l1(key)
  count_event('evicted_l1', 1)
  state = 2
end

local dropped = 0
local evicted = walk(LRU2, LRU2_BYTES, l2_limit, max_keys, function(oldest)
  if is_pinned(oldest) then return false end
  dropped = dropped + leave_l2(oldest)
  return true
end)
count_event('evicted_l2', #evicted)
count_event('dropped', dropped)
return {state, unpack(evicted)}

--@script promoted
-- Notes that a file was copied to L1. L2 keeps it too.
-- KEYS: none. ARGV: embedding key.
-- Writes what the lru library writes. Result: 1, or 0 if the embedding is gone or no longer in L2.
--@use clock
--@use lru
local key = ARGV[1]
local bytes, checksum = size_of(key)
if checksum == '' or redis.call('EXISTS', EMB .. key) == 0 then return 0 end
if not redis.call('ZSCORE', LRU, key) then
  redis.call('INCRBY', LRU_BYTES, bytes)
  count_event('promotions', 1)
end
redis.call('ZADD', LRU, now_ms(), key)
return 1
