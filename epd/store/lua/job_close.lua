-- Makes every part that is not final this record and lets no part be added any more.
-- KEYS: JOB..job. ARGV: job, state, record, job TTL in ms.
-- Touches what lib_job names. Returns 1, or 0 when there is no such job.
--@use job
local job, job_id, state, record, job_ttl = KEYS[1], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
if redis.call('HEXISTS', job, 'record') == 0 then return 0 end
if tonumber(redis.call('HGET', job, 'open')) <= 0 then return 1 end
redis.call('HSETNX', job, 'closed', state)
local fields = redis.call('HKEYS', job)
table.sort(fields)
for _, field in ipairs(fields) do
  if string.sub(field, 1, 5) == 'part:' then
    finish_part(job_id, string.sub(field, 6), state, record, job_ttl)
  end
end
return 1
