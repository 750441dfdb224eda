-- Adds a part to a job that is not closed.
-- KEYS: JOB..job. ARGV: job, part, record.
-- Touches what lib_job names. Returns 1 (also when it was there), or 0 when the job is gone or closed.
--@use job
local job, job_id, part, record = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
if redis.call('HEXISTS', job, 'record') == 0 then return 0 end
if redis.call('HEXISTS', job, 'part:' .. part) == 1 then return 1 end
if redis.call('HEXISTS', job, 'closed') == 1 then return 0 end
redis.call('HSET', job, 'part:' .. part, record)
redis.call('HINCRBY', job, 'open', 1)
announce(job_id, part, 'queued', nil, false)
return 1
