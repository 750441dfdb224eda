-- One flight failed: finish who waits for it, release it.
-- KEYS: none by name. ARGV: embedding key, record, job TTL in ms.
-- Touches what lib_flight and lib_job name. Returns the number of parts finished.
--@use job
--@use flight
local key, record, job_ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local finished = 0
for _, field in ipairs(redis.call('HKEYS', FLIGHT .. key .. WAITERS_SUFFIX)) do
  local job_id, part = split_waiter(field)
  finished = finished + finish_part(job_id, part, 'failed', record, job_ttl)
end
end_flight(key)
return finished
