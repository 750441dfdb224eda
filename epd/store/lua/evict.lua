-- Takes the least recently used embeddings out of L1 until it is within its limit.
-- KEYS: none by name. ARGV: limit in bytes, most keys to look at, then keys to spare (just written).
-- Touches what lib_lru names; reads PIN..key: pinned ones stay. What lies in L2 too stays in the index.
-- Returns the keys taken out; their files in L1 may go now.
-- Spared keys go too, oldest first, but only when they alone are over the limit.
--@use lru
local limit, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local spared = {}
for index = 3, #ARGV do spared[ARGV[index]] = true end

local function take(key)
  if spared[key] or is_pinned(key) then return false end
  leave_l1(key)
  return true
end

local out = walk(LRU, LRU_BYTES, limit, most, take)
if bytes_in(LRU_BYTES) > limit then
  spared = {}
  for _, key in ipairs(walk(LRU, LRU_BYTES, limit, most, take)) do out[#out + 1] = key end
end
count_event('evicted_l1', #out)
return out
