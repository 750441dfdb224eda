-- Marks a part running at a stage.
-- KEYS: JOB..job. ARGV: job, part, record, stage.
-- Touches what lib_job names. Returns 1, or 0 when the part is final or the job is gone.
--@use job
local job, job_id, part, record, stage = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local before = redis.call('HGET', job, 'part:' .. part)
if not before or redis.call('HEXISTS', job, 'final:' .. part) == 1 then return 0 end
if before ~= record then
  redis.call('HSET', job, 'part:' .. part, record)
  announce(job_id, part, 'running', stage, false)
end
return 1
