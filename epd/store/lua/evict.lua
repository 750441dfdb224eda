-- Takes the least recently used embeddings out of L1 until it is within its limit.
-- KEYS: none by name. ARGV: limit in bytes, most keys to look at, 1 when pinned ones may go for the spared, then
--   keys to spare (just written).
-- Touches what lib_lru names; reads PIN..key. What lies in L2 too stays in the index.
-- Returns the keys taken out; their files in L1 may go now.
-- Pinned ones go, oldest first, where all others are: a reader has its file open, or is told that it was evicted.
-- Spared keys go last, and only when they alone are over the limit or nothing else may go.
--@use lru
local limit, most, pinned_too = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'
local spared = {}
for index = 4, #ARGV do spared[ARGV[index]] = true end

local out, dropped = {}, 0
local function evict(may_go)
  local function take(key)
    if not may_go(key) then return false end
    local _, lost = leave_l1(key)
    dropped = dropped + lost
    return true
  end
  for _, key in ipairs(walk(LRU, LRU_BYTES, limit, most, take)) do out[#out + 1] = key end
end

evict(function(key) return not spared[key] and not is_pinned(key) end)
if pinned_too then evict(function(key) return not spared[key] end) end
evict(function(key) return pinned_too or not is_pinned(key) end)
count_event('evicted_l1', #out)
count_event('dropped', dropped)
return out
