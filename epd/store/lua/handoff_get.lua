-- Reads a handoff; where it is not there yet, a watcher is told when it comes.
-- KEYS: HANDOFF..request, HANDOFF_WAIT..request. ARGV: watcher or '', TTL of the wish in ms, most watchers.
-- Reads KEYS[1] (list); writes KEYS[2] (set). Returns the list: body, entries; empty when there is none.
local handoff, waiting = KEYS[1], KEYS[2]
local watcher, ttl, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
local values = redis.call('LRANGE', handoff, 0, -1)
if #values == 0 and watcher ~= '' then
  if redis.call('SADD', waiting, watcher) == 1 and redis.call('SCARD', waiting) > most then
    redis.call('SREM', waiting, watcher) -- it looks again by itself, only later
  end
  redis.call('PEXPIRE', waiting, ttl)
end
return values
