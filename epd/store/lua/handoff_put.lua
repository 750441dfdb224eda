-- Writes a handoff that was checked, once, and tells who waits for it.
-- KEYS: HANDOFF..request, HANDOFF_WAIT..request. ARGV: TTL in ms, notice, body, then the entry of each item.
-- Writes KEYS[1] (list: body, entries); deletes KEYS[2] (set); publishes to EVENTS..watcher.
-- Returns 'created', 'held' and the list where the same was put meanwhile, or 'conflict'.
local handoff, waiting = KEYS[1], KEYS[2]
local ttl, notice, body = ARGV[1], ARGV[2], ARGV[3]

local held = redis.call('LRANGE', handoff, 0, -1)
if #held > 0 then
  if held[1] ~= body then return {'conflict'} end
  redis.call('PEXPIRE', handoff, ttl)
  return {'held', held}
end

redis.call('RPUSH', handoff, unpack(ARGV, 3))
redis.call('PEXPIRE', handoff, ttl)
for _, watcher in ipairs(redis.call('SMEMBERS', waiting)) do
  redis.call('PUBLISH', EVENTS .. watcher, notice)
end
redis.call('DEL', waiting)
return {'created'}
