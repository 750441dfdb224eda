-- Library: parts of jobs.
-- Touches JOB..job (hash, never created here) and what lib_load names; publishes to EVENTS..watcher.
-- Fields of the hash: see epd/store/redis/jobs.py.
--@use load

local function announce(job_id, part, state, stage, job_final)
  local watchers = redis.call('HGET', JOB .. job_id, 'watchers')
  if not watchers then return end
  local notice = {job_id = job_id, part = part, state = state, job_final = job_final}
  if stage then notice.stage = stage end
  local text = cjson.encode(notice)
  for _, watcher in ipairs(cjson.decode(watchers)) do
    redis.call('PUBLISH', EVENTS .. watcher, text)
  end
end

-- 1 when this call made the part final, else 0. The first final record wins, so counters move once.
local function finish_part(job_id, part, state, record, job_ttl)
  local job = JOB .. job_id
  if redis.call('HEXISTS', job, 'part:' .. part) == 0 then return 0 end
  if redis.call('HSETNX', job, 'final:' .. part, '1') == 0 then return 0 end
  redis.call('HSET', job, 'part:' .. part, record)
  local open = redis.call('HINCRBY', job, 'open', -1)
  settle_load(job_id, math.max(0, open))
  local job_final = open <= 0
  if job_final then redis.call('PEXPIRE', job, job_ttl) end
  announce(job_id, part, state, nil, job_final)
  return 1
end

-- A part that is still wanted: its job is there and open, and it is not final.
local function is_wanted(job_id, part)
  local job = JOB .. job_id
  return redis.call('HEXISTS', job, 'record') == 1 and redis.call('HEXISTS', job, 'closed') == 0
    and redis.call('HEXISTS', job, 'final:' .. part) == 0
end
