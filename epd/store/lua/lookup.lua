-- Reads index entries and refreshes their last use.
-- KEYS: none by name. ARGV: tiers (1 or 2), 1 to count hits, lease in ms or 0, holder, then embedding keys.
-- Reads EMB..key and LRU_SIZES; writes LRU and LRU2 (members that are there only), PIN..key with a lease,
-- CACHE_TOTALS, and WANTED_IN_L1 for what lies in L2 alone.
-- Returns for each its entry (false where missing), 1 when it lies in L1, and its checksum when in L2, else ''.
-- What is no string (another program wrote it) is given as an empty entry, which is none: the caller removes it.
--@use clock
--@use pin
--@use lru
local PIECE = 1000 -- a call takes some 8000 arguments; each call is a command of the append-only file too
local tiers, counted, lease, holder = tonumber(ARGV[1]), ARGV[2] == '1', tonumber(ARGV[3]), ARGV[4]
local now = now_ms()
local found, wanted, uses = {}, {}, {}
local hits_l1, hits_l2 = 0, 0

for index = 5, #ARGV do
  local key = ARGV[index]
  local entry = redis.call('MGET', EMB .. key)[1] -- where GET fails on what is no string
  local text = entry or (redis.call('EXISTS', EMB .. key) == 1 and '')
  uses[#uses + 1], uses[#uses + 2] = now, key
  local in_l1, sum = 1, ''
  if tiers == 2 then
    local _
    _, sum = size_of(key)
    if sum ~= '' then
      redis.call('ZADD', LRU2, 'XX', now, key)
      if not redis.call('ZSCORE', LRU, key) then
        in_l1 = 0
        wanted[#wanted + 1] = key
      end
    end
  end
  if entry and lease > 0 then hold(key, holder, lease) end
  if entry then
    hits_l1, hits_l2 = hits_l1 + in_l1, hits_l2 + 1 - in_l1
  end
  found[#found + 1], found[#found + 2], found[#found + 3] = text, in_l1, sum
end

for first = 1, #uses, PIECE do
  redis.call('ZADD', LRU, 'XX', unpack(uses, first, math.min(first + PIECE - 1, #uses)))
end

-- A wish is forgotten after a minute, and many at once are cut: a copy in L1 is only faster.
if #wanted > 0 and redis.call('ZCARD', WANTED_IN_L1) < 1024 then
  for _, key in ipairs(wanted) do redis.call('ZADD', WANTED_IN_L1, 'NX', now, key) end
  redis.call('PEXPIRE', WANTED_IN_L1, 60000)
end
if counted then
  count_event('hits_l1', hits_l1)
  count_event('hits_l2', hits_l2)
end
return found
