-- Jobs: one hash per job, JOB..job. Its fields are listed in epd/store/jobs.py.

--@lib job
-- Parts of jobs. Writes JOB..job, which must exist, and what the load library writes; publishes to
-- EVENTS..watcher.
--@use load

local function announce(job_id, part, state, stage, job_final)
  local watching = redis.call('HMGET', JOB .. job_id, 'watchers', 'waiter')
  local watchers, waiter = watching[1] and cjson.decode(watching[1]) or {}, job_final and watching[2]
  for _, watcher in ipairs(watchers) do
    if watcher == waiter then waiter = false end
  end
  if waiter then watchers[#watchers + 1] = waiter end
  if #watchers == 0 then return end
  local notice = {job_id = job_id, part = part, state = state, job_final = job_final}
  if stage then notice.stage = stage end
  local text = cjson.encode(notice)
  for _, watcher in ipairs(watchers) do
    redis.call('PUBLISH', EVENTS .. watcher, text)
  end
end

-- Returns 1 if this call made the part final, else 0. The first final record wins, so counters move once.
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

-- Whether the job of a part exists and is open, and the part is not final.
local function is_wanted(job_id, part)
  local job = JOB .. job_id
  return redis.call('HEXISTS', job, 'record') == 1 and redis.call('HEXISTS', job, 'closed') == 0
    and redis.call('HEXISTS', job, 'final:' .. part) == 0
end

--@script job_create
-- Writes a job once. A second call, the retry after a lost answer, changes nothing.
-- KEYS: JOB..job. ARGV: end of its life in Unix ms, TTL of a final job in ms, number of open parts, the job if it
--   has to be admitted (else empty), then field, value, field, value ...
-- Reads LOAD_JOBS; writes KEYS[1] (hash). Result: 1, 0 if the job exists, -1 if it is not admitted.
--@use batches
local job, ends, job_ttl, open, admitted = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
if redis.call('EXISTS', job) == 1 then return 0 end
if admitted ~= '' and redis.call('HEXISTS', LOAD_JOBS, admitted) == 0 then return -1 end
redis.call('HSET', job, 'open', open)
in_batches(ARGV, 5, function(...) redis.call('HSET', job, ...) end)
if open > 0 then
  redis.call('PEXPIREAT', job, ends)
else
  redis.call('PEXPIRE', job, job_ttl)
end
return 1

--@script job_watch
-- Adds a watcher to a job.
-- KEYS: JOB..job. ARGV: watcher, most watchers (above that the oldest is dropped).
-- Writes KEYS[1] (hash). Result: 1, or 0 if there is no such job.
local job, watcher, max_watchers = KEYS[1], ARGV[1], tonumber(ARGV[2])
if redis.call('HEXISTS', job, 'record') == 0 then return 0 end
local watchers = cjson.decode(redis.call('HGET', job, 'watchers') or '[]')
for _, known in ipairs(watchers) do
  if known == watcher then return 1 end
end
watchers[#watchers + 1] = watcher
if #watchers > max_watchers then table.remove(watchers, 1) end
redis.call('HSET', job, 'watchers', cjson.encode(watchers))
return 1

--@script job_advance
-- Marks parts as running at a stage, each on its own.
-- KEYS: none. ARGV: record, stage, then job, part, job, part ...
-- Writes what the job library writes.
-- Result: for each part 1, or 0 if it is final or its job is gone.
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

--@script job_add_part
-- Adds a part to a job that is not closed.
-- KEYS: JOB..job. ARGV: job, part, record.
-- Writes what the job library writes.
-- Result: 1, also if the part exists; 0 if the job is gone or closed.
--@use job
local job, job_id, part, record = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
if redis.call('HEXISTS', job, 'record') == 0 then return 0 end
if redis.call('HEXISTS', job, 'part:' .. part) == 1 then return 1 end
if redis.call('HEXISTS', job, 'closed') == 1 then return 0 end
redis.call('HSET', job, 'part:' .. part, record)
redis.call('HINCRBY', job, 'open', 1)
announce(job_id, part, 'queued', nil, false)
return 1

--@script job_finish
-- Makes a part final.
-- KEYS: JOB..job. ARGV: job, part, state, record, TTL of a final job in ms.
-- Writes what the job library writes. Result: 1, or 0 if the part was final or its job is gone.
--@use job
local job_id, part, state, record, job_ttl = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
return finish_part(job_id, part, state, record, job_ttl)

--@script job_close
-- Gives every part that is not final this record. No part can be added after that.
-- KEYS: JOB..job. ARGV: job, state, record, TTL of a final job in ms.
-- Writes what the job library writes. Result: 1, or 0 if there is no such job.
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
