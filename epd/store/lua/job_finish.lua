-- Makes a part final.
-- KEYS: JOB..job. ARGV: job, part, state, record, job TTL in ms.
-- Touches what lib_job names. Returns 1, or 0 when it was final or the job is gone.
--@use job
return finish_part(ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]))
