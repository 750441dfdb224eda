-- The index of the embedding cache: which embeddings exist, and which of the two tiers have their files.
--
-- EMB..key               string   the entry: metadata and reference. Without it the embedding does not exist
-- LRU, LRU2              zsets    one member per file in L1, in L2; the score is the last use in Unix ms
-- LRU_BYTES, LRU2_BYTES strings  the sums of their bytes
-- LRU_SIZES              hash     per embedding "bytes", or "bytes checksum" while L2 has its file
-- WANTED_IN_L1           zset     embeddings that were read while only L2 had them
-- PIN..key               string   exists while a pin protects the embedding: its holder, or '' for several
-- CACHE_TOTALS           hash     counters of events

--@lib lru
-- Both tiers. Writes EMB..key, LRU, LRU2, LRU_BYTES, LRU2_BYTES, LRU_SIZES and CACHE_TOTALS.

local PAGE = 32

local function count_event(name, amount)
  if amount > 0 then redis.call('HINCRBY', CACHE_TOTALS, name, amount) end
end

-- The bytes of an embedding (0 if unknown), and the checksum of its file in L2 ('' if L2 has none).
local function size_of(key)
  local bytes, checksum = string.match(redis.call('HGET', LRU_SIZES, key) or '0', '^(%d+) ?(%x*)$')
  return tonumber(bytes), checksum
end

local function bytes_in(total)
  return tonumber(redis.call('GET', total) or '0')
end

local function leave(lru, total, key, bytes)
  if redis.call('ZREM', lru, key) == 0 then return 0 end
  redis.call('DECRBY', total, bytes)
  return 1
end

-- Removes an embedding from the index and both tiers. Returns 1, or 0 if it was in none of them.
local function drop(key)
  local bytes = size_of(key)
  local known = leave(LRU, LRU_BYTES, key, bytes) + leave(LRU2, LRU2_BYTES, key, bytes)
  redis.call('HDEL', LRU_SIZES, key)
  return math.min(1, known + redis.call('DEL', EMB .. key))
end

-- Both remove an embedding from one tier, and from the index if the other tier does not have it. They return
-- 1 if the index has lost it, else 0.
local function leave_l1(key)
  if not redis.call('ZSCORE', LRU2, key) then
    drop(key)
    return 1
  end
  leave(LRU, LRU_BYTES, key, (size_of(key)))
  return 0
end

local function leave_l2(key)
  if not redis.call('ZSCORE', LRU, key) then
    drop(key)
    return 1
  end
  local bytes = size_of(key)
  redis.call('HSET', LRU_SIZES, key, bytes)
  leave(LRU2, LRU2_BYTES, key, bytes)
  return 0
end

-- Visits the members of a tier, least recently used first, until it is within its limit or after max_keys.
-- visit(key) returns true if it has removed the key from the tier, false if the key stays, nil to stop.
-- Returns the removed keys. The cost does not depend on the size of the tier.
local function walk(lru, total, limit, max_keys, visit)
  local removed, kept = {}, 0
  while #removed + kept < max_keys and bytes_in(total) > limit do
    local page = redis.call('ZRANGE', lru, kept, kept + PAGE - 1)
    if #page == 0 then return removed end
    for _, key in ipairs(page) do
      if bytes_in(total) <= limit then return removed end
      local gone = visit(key)
      if gone == nil then return removed end
      if gone then removed[#removed + 1] = key else kept = kept + 1 end
    end
  end
  return removed
end

--@lib pin
-- Pins protect embeddings from eviction. Writes PIN..key.

local function is_pinned(key)
  return redis.call('EXISTS', PIN .. key) == 1
end

-- Never shortens a pin. A pin with several holders ends by its lease only.
local function hold(key, holder, lease)
  local before = redis.call('GET', PIN .. key)
  local value = before and before ~= holder and '' or holder
  redis.call('SET', PIN .. key, value, 'PX', math.max(lease, redis.call('PTTL', PIN .. key)))
end

--@script lookup
-- Reads embeddings and refreshes their last use.
-- KEYS: none. ARGV: number of tiers (1 or 2), 1 to count hits, lease of a pin in ms or 0 for no pin, its
--   holder, then embedding keys.
-- Reads EMB..key and LRU_SIZES; writes scores of LRU and LRU2, PIN..key, CACHE_TOTALS and WANTED_IN_L1.
-- Result: for each key its entry (false if there is none), 1 unless only L2 has its file, and the checksum of
--   its file in L2 or ''. A value that is no string, which another program wrote, gives the entry '': that is
--   not valid, so the caller removes it.
--@use clock
--@use batches
--@use pin
--@use lru
local MAX_WANTED, WANTED_TTL_MS = 1024, 60000
local tiers, counted, lease, holder = tonumber(ARGV[1]), ARGV[2] == '1', tonumber(ARGV[3]), ARGV[4]
local now = now_ms()
local found, wanted, uses = {}, {}, {}
local hits_l1, hits_l2 = 0, 0

for index = 5, #ARGV do
  local key = ARGV[index]
  local entry = redis.call('MGET', EMB .. key)[1] -- GET would fail on a value that is no string
  local text = entry or (redis.call('EXISTS', EMB .. key) == 1 and '')
  uses[#uses + 1], uses[#uses + 2] = now, key
  local in_l1, checksum = 1, ''
  if tiers == 2 then
    local _
    _, checksum = size_of(key)
    if checksum ~= '' then
      redis.call('ZADD', LRU2, 'XX', now, key)
      if not redis.call('ZSCORE', LRU, key) then
        in_l1 = 0
        wanted[#wanted + 1] = key
      end
    end
  end
  if entry then
    if lease > 0 then hold(key, holder, lease) end
    hits_l1, hits_l2 = hits_l1 + in_l1, hits_l2 + 1 - in_l1
  end
  found[#found + 1], found[#found + 2], found[#found + 3] = text, in_l1, checksum
end

in_batches(uses, 1, function(...) redis.call('ZADD', LRU, 'XX', ...) end)

-- The list is bounded and expires: a copy in L1 only makes reads faster.
if #wanted > 0 and redis.call('ZCARD', WANTED_IN_L1) < MAX_WANTED then
  for _, key in ipairs(wanted) do redis.call('ZADD', WANTED_IN_L1, 'NX', now, key) end
  redis.call('PEXPIRE', WANTED_IN_L1, WANTED_TTL_MS)
end
if counted then
  count_event('hits_l1', hits_l1)
  count_event('hits_l2', hits_l2)
end
return found

--@script remove
-- Removes embeddings from the index and both tiers.
-- KEYS: none. ARGV: embedding keys.
-- Reads PIN..key; writes what the lru library writes.
-- Result: for each key 0 if it was not there, 1 if it was, 2 if it was and a pin protects its files.
--@use pin
--@use lru
local answers = {}
for index, key in ipairs(ARGV) do
  local state = is_pinned(key) and 2 or 1
  answers[index] = drop(key) * state
end
return answers

--@script leave
-- Removes embeddings from one tier, where their files are lost or damaged.
-- KEYS: none. ARGV: tier (1 or 2), then embedding keys.
-- Writes what the lru library writes. Result: none.
--@use lru
local leave_tier = ARGV[1] == '2' and leave_l2 or leave_l1
for index = 2, #ARGV do leave_tier(ARGV[index]) end

--@script pin
-- Protects embeddings from eviction for a time.
-- KEYS: none. ARGV: lease in ms, holder or '', then embedding keys.
-- Reads EMB..key; writes PIN..key and scores of LRU and LRU2.
-- Result: for each key 1, or 0 if there is no such embedding.
--@use clock
--@use pin
local lease, holder, now = tonumber(ARGV[1]), ARGV[2], now_ms()
local pinned = {}
for index = 3, #ARGV do
  local key = ARGV[index]
  local exists = redis.call('EXISTS', EMB .. key)
  if exists == 1 then
    hold(key, holder, lease)
    redis.call('ZADD', LRU, 'XX', now, key)
    redis.call('ZADD', LRU2, 'XX', now, key)
  end
  pinned[index - 2] = exists
end
return pinned

--@script unpin
-- Ends pins early, each only if this holder is its only one.
-- KEYS: none. ARGV: holder, not '', then embedding keys.
-- Writes PIN..key. Result: none.
local holder = ARGV[1]
for index = 2, #ARGV do
  local pin = PIN .. ARGV[index]
  if holder ~= '' and redis.call('GET', pin) == holder then redis.call('DEL', pin) end
end

--@script evict
-- Evicts the least recently used embeddings from L1 until it is within its limit.
-- KEYS: none. ARGV: limit in bytes, most keys to visit, 1 to evict pinned ones before spared ones, then keys
--   to spare (just written).
-- Reads PIN..key; writes what the lru library writes. Embeddings that L2 has too stay in the index.
-- Result: the evicted keys, whose files in L1 the caller deletes.
-- Order: unpinned ones, then pinned ones where allowed, then spared ones. Evicting a pinned one is safe: a
-- reader has its file open, or learns that it was evicted.
--@use pin
--@use lru
local limit, max_keys, pinned_too = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'
local spared = {}
for index = 4, #ARGV do spared[ARGV[index]] = true end

local evicted, dropped = {}, 0
local function evict(may_leave)
  local function visit(key)
    if not may_leave(key) then return false end
    dropped = dropped + leave_l1(key)
    return true
  end
  for _, key in ipairs(walk(LRU, LRU_BYTES, limit, max_keys, visit)) do evicted[#evicted + 1] = key end
end

evict(function(key) return not spared[key] and not is_pinned(key) end)
if pinned_too then evict(function(key) return not spared[key] end) end
evict(function(key) return pinned_too or not is_pinned(key) end)
count_event('evicted_l1', #evicted)
count_event('dropped', dropped)
return evicted

--@script segments_note
-- Notes the places of segments: inside which embedding their rows are, and where. Bounds their number.
-- KEYS: SEGMENTS (hash). ARGV: most places, TTL in ms, then segment, place, segment, place ...
-- Writes KEYS[1]. Result: none. Random places are dropped: a missing one costs one encode of its segment.
local MAX_DROPPED = 1000 -- a lowered bound is reached in several calls, so that none takes long
local places, max_places, ttl = KEYS[1], tonumber(ARGV[1]), ARGV[2]
redis.call('HSET', places, unpack(ARGV, 3))
redis.call('PEXPIRE', places, ttl)
local over = redis.call('HLEN', places) - max_places
if over > 0 then
  redis.call('HDEL', places, unpack(redis.call('HRANDFIELD', places, math.min(over, MAX_DROPPED))))
end
