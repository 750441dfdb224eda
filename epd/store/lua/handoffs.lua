-- Handoffs: what Prefill leaves for Decode. One list per request: the body, then the entry of each item.

--@lib handoff

-- The answer to a put where a handoff exists: its values, whose lifetime is renewed, or a conflict.
-- Returns nil where none exists.
local function existing(handoff, body, ttl)
  local values = redis.call('LRANGE', handoff, 0, -1)
  if #values == 0 then return nil end
  if values[1] ~= body then return {'conflict'} end
  redis.call('PEXPIRE', handoff, ttl)
  return {'held', values}
end

--@script handoff_entries
-- Reads the entries of a new handoff, which the caller checks before it puts them. Renews one that exists.
-- KEYS: HANDOFF..request. ARGV: TTL in ms, body, then for each item: its key, and the entry to use where the
--   index has none ('' for no such entry).
-- Reads EMB..key; writes the TTL of KEYS[1].
-- Result: 'held' and the values that exist, 'conflict', 'missing' and the keys without an entry, or 'new' and
--   the entries.
--@use handoff
local handoff, ttl, body = KEYS[1], ARGV[1], ARGV[2]
local answer = existing(handoff, body, ttl)
if answer then return answer end

local entries, missing = {}, {}
for at = 3, #ARGV, 2 do
  local key, given = ARGV[at], ARGV[at + 1]
  local entry = redis.call('MGET', EMB .. key)[1] or given -- GET would fail on a value that is no string
  if entry == '' then missing[#missing + 1] = key else entries[#entries + 1] = entry end
end
if #missing > 0 then return {'missing', missing} end
return {'new', entries}

--@script handoff_put
-- Writes a checked handoff once and notifies its watchers.
-- KEYS: HANDOFF..request, HANDOFF_WAIT..request. ARGV: TTL in ms, notice, body, then the entry of each item.
-- Writes KEYS[1] (list); deletes KEYS[2] (set); publishes to EVENTS..watcher.
-- Result: 'created', 'held' and the values where an equal one was put before, or 'conflict'.
--@use handoff
local handoff, watchers = KEYS[1], KEYS[2]
local ttl, notice, body = ARGV[1], ARGV[2], ARGV[3]
local answer = existing(handoff, body, ttl)
if answer then return answer end

redis.call('RPUSH', handoff, unpack(ARGV, 3))
redis.call('PEXPIRE', handoff, ttl)
for _, watcher in ipairs(redis.call('SMEMBERS', watchers)) do
  redis.call('PUBLISH', EVENTS .. watcher, notice)
end
redis.call('DEL', watchers)
return {'created'}

--@script handoff_get
-- Reads a handoff. Where there is none yet, remembers the watcher to notify.
-- KEYS: HANDOFF..request, HANDOFF_WAIT..request. ARGV: watcher or '', TTL of the watch in ms, most watchers.
-- Reads KEYS[1] (list); writes KEYS[2] (set).
-- Result: the body and the entries; empty where there is no handoff.
local handoff, watchers = KEYS[1], KEYS[2]
local watcher, ttl, max_watchers = ARGV[1], ARGV[2], tonumber(ARGV[3])
local values = redis.call('LRANGE', handoff, 0, -1)
if #values == 0 and watcher ~= '' then
  if redis.call('SADD', watchers, watcher) == 1 and redis.call('SCARD', watchers) > max_watchers then
    redis.call('SREM', watchers, watcher) -- it still polls, only later
  end
  redis.call('PEXPIRE', watchers, ttl)
end
return values
