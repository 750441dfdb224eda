-- What the one mover should do next: files to copy to L1, files to copy to L2, files of L1 to delete.
-- KEYS: none by name. ARGV: mover, its lease in ms, bytes that L1 should hold at most, most files of each kind.
-- Touches what lib_lru names, MOVER (string) and WANTED_IN_L1 (zset); reads PIN..key: pinned ones stay.
-- Returns false when another moves; else three lists: key and checksum of each to promote, keys to demote,
-- keys taken out of L1 because L2 has them too (or because they are over).
--@use lru
local mover, lease, target, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local holder = redis.call('GET', MOVER)
if holder and holder ~= mover then return false end
redis.call('SET', MOVER, mover, 'PX', lease)

local promote = {}
local wanted = redis.call('ZPOPMIN', WANTED_IN_L1, most)
for index = 1, #wanted, 2 do
  local key = wanted[index]
  local _, sum = size_of(key)
  if sum ~= '' and not redis.call('ZSCORE', LRU, key) and redis.call('EXISTS', EMB .. key) == 1 then
    promote[#promote + 1] = key
    promote[#promote + 1] = sum
  end
end

-- Nothing leaves L1 here before it is safe in L2, so what is only planned is subtracted from the sum.
local demote, planned = {}, 0
local function take(key)
  if #demote >= most or bytes_in(LRU_BYTES) - planned <= target then return nil end
  if is_pinned(key) then return false end
  local bytes, sum = size_of(key)
  if sum ~= '' or redis.call('EXISTS', EMB .. key) == 0 then
    leave_l1(key)
    return true
  end
  demote[#demote + 1] = key
  planned = planned + bytes
  return false
end
local left = walk(LRU, LRU_BYTES, target, 8 * most, take)
count_event('evicted_l1', #left)
return {promote, demote, left}
