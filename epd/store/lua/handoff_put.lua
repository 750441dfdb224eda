-- Writes a handoff once, with the index entry of each item, and tells who waits for it.
-- KEYS: HANDOFF..request, HANDOFF_WAIT..request. ARGV: TTL in ms, body, notice, then for each item: its key,
--   and the entry to take where the index has none ('' for none).
-- Reads EMB..key; writes KEYS[1] (list: body, entries); deletes KEYS[2] (set); publishes to EVENTS..watcher.
-- Returns 'created' or 'held' and the list, 'conflict', or 'missing' and the keys that have no entry.
local handoff, waiting = KEYS[1], KEYS[2]
local ttl, body, notice = ARGV[1], ARGV[2], ARGV[3]

local held = redis.call('LRANGE', handoff, 0, -1)
if #held > 0 then
  if held[1] ~= body then return {'conflict'} end
  redis.call('PEXPIRE', handoff, ttl)
  return {'held', held}
end

local values, missing = {body}, {}
for at = 4, #ARGV, 2 do
  local entry = redis.call('GET', EMB .. ARGV[at]) or ARGV[at + 1]
  if entry == '' then missing[#missing + 1] = ARGV[at] else values[#values + 1] = entry end
end
if #missing > 0 then return {'missing', missing} end

redis.call('RPUSH', handoff, unpack(values))
redis.call('PEXPIRE', handoff, ttl)
for _, watcher in ipairs(redis.call('SMEMBERS', waiting)) do
  redis.call('PUBLISH', EVENTS .. watcher, notice)
end
redis.call('DEL', waiting)
return {'created', values}
