-- Marks parts running at a stage, each for itself.
-- KEYS: none by name. ARGV: record, stage, then for each part its job and its name.
-- Touches what lib_job names. Returns for each 1, or 0 when the part is final or the job is gone.
--@use job
local record, stage = ARGV[1], ARGV[2]

local function advance(job_id, part)
  local job = JOB .. job_id
  local before = redis.call('HGET', job, 'part:' .. part)
  if not before or redis.call('HEXISTS', job, 'final:' .. part) == 1 then return 0 end
  if before ~= record then
    redis.call('HSET', job, 'part:' .. part, record)
    announce(job_id, part, 'running', stage, false)
  end
  return 1
end

local answers = {}
for at = 3, #ARGV, 2 do answers[#answers + 1] = advance(ARGV[at], ARGV[at + 1]) end
return answers
