-- Adds a watcher to a job.
-- KEYS: JOB..job. ARGV: watcher, most watchers (the oldest goes).
-- Touches KEYS[1] (hash). Returns 1, or 0 when there is no such job.
local job, watcher, most = KEYS[1], ARGV[1], tonumber(ARGV[2])
if redis.call('HEXISTS', job, 'record') == 0 then return 0 end
local watchers = cjson.decode(redis.call('HGET', job, 'watchers') or '[]')
for _, known in ipairs(watchers) do
  if known == watcher then return 1 end
end
watchers[#watchers + 1] = watcher
if #watchers > most then table.remove(watchers, 1) end
redis.call('HSET', job, 'watchers', cjson.encode(watchers))
return 1
