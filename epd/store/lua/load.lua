-- Load: the items and bytes that admitted jobs hold until their parts are final.
--
-- LOAD         hash   totals: items, bytes, bulk_items, bulk_bytes
-- LOAD_JOBS    hash   one field per job: "lane items bytes ends", where "ends" is in Unix ms
-- LOAD_CHECKS  zset   one member per job, scored with the time of its next check in Unix ms

--@lib load
-- Reads JOB..job; writes LOAD, LOAD_JOBS and LOAD_CHECKS.

local CHECK_INTERVAL_MS = 30000
local MAX_CHECKS = 200

local function move_load(lane, items, bytes)
  redis.call('HINCRBY', LOAD, 'items', items)
  redis.call('HINCRBY', LOAD, 'bytes', bytes)
  if lane == 'bulk' then
    redis.call('HINCRBY', LOAD, 'bulk_items', items)
    redis.call('HINCRBY', LOAD, 'bulk_bytes', bytes)
  end
end

local function write_load(job_id, lane, items, bytes, ends)
  redis.call('HSET', LOAD_JOBS, job_id, string.format('%s %.0f %.0f %.0f', lane, items, bytes, ends))
end

-- Lowers what a job holds to "left" items and their share of its bytes. Never raises it.
local function settle_load(job_id, left)
  local text = redis.call('HGET', LOAD_JOBS, job_id)
  if not text then return end
  local lane, items, bytes, ends = string.match(text, '^(%l+) (%d+) (%d+) (%d+)$')
  items, bytes = tonumber(items), tonumber(bytes)
  if left >= items then return end
  local left_bytes = math.floor(bytes * left / items)
  move_load(lane, left - items, left_bytes - bytes)
  if left > 0 then
    write_load(job_id, lane, left, left_bytes, tonumber(ends))
    return
  end
  redis.call('HDEL', LOAD_JOBS, job_id)
  redis.call('ZREM', LOAD_CHECKS, job_id)
  -- An evicted or lost key can make the totals wrong. They start from zero after the last job.
  if redis.call('EXISTS', LOAD_JOBS) == 0 then redis.call('DEL', LOAD) end
end

-- Checks the jobs that are due: one that is gone, final or past its end holds nothing. So a process that died
-- between admission and job, or a job whose messages were lost, does not hold its share forever.
local function check_load(now)
  for _, job_id in ipairs(redis.call('ZRANGEBYSCORE', LOAD_CHECKS, '-inf', now, 'LIMIT', 0, MAX_CHECKS)) do
    local ends = string.match(redis.call('HGET', LOAD_JOBS, job_id) or '', '(%d+)$')
    local open = tonumber(redis.call('HGET', JOB .. job_id, 'open') or '0')
    if ends and open > 0 and tonumber(ends) > now then
      settle_load(job_id, open)
      redis.call('ZADD', LOAD_CHECKS, math.min(now + CHECK_INTERVAL_MS, tonumber(ends)), job_id)
    else
      settle_load(job_id, 0)
      redis.call('ZREM', LOAD_CHECKS, job_id)
    end
  end
end

--@script load_admit
-- Lets a job hold items and bytes if they fit. With zero items it only reads the totals.
-- KEYS: none. ARGV: job, lane, items, bytes, end of the job in Unix ms, then the limits: items and bytes of
--   all jobs, items and bytes of bulk jobs.
-- Writes what the load library writes.
-- Result: 1 if the job is admitted (or was before), else 0; then the items, bytes, bulk items and bulk bytes
--   that are held now.
--@use clock
--@use load
local job_id, lane, ends = ARGV[1], ARGV[2], tonumber(ARGV[5])
local items, bytes = tonumber(ARGV[3]), tonumber(ARGV[4])
local max_items, max_bytes = tonumber(ARGV[6]), tonumber(ARGV[7])
local max_bulk_items, max_bulk_bytes = tonumber(ARGV[8]), tonumber(ARGV[9])

local now = now_ms()
check_load(now)

local function totals()
  local values = redis.call('HMGET', LOAD, 'items', 'bytes', 'bulk_items', 'bulk_bytes')
  for index = 1, 4 do values[index] = math.max(0, tonumber(values[index] or '0')) end
  return unpack(values)
end

-- A job above the whole limit is admitted when nothing else is held; otherwise it would wait forever.
local function fits(held_items, held_bytes, item_limit, byte_limit)
  return held_items == 0 or (held_items + items <= item_limit and held_bytes + bytes <= byte_limit)
end

if items == 0 or redis.call('HEXISTS', LOAD_JOBS, job_id) == 1 then return {1, totals()} end
local all_items, all_bytes, bulk_items, bulk_bytes = totals()
local all_fit = fits(all_items, all_bytes, max_items, max_bytes)
local bulk_fit = lane ~= 'bulk' or fits(bulk_items, bulk_bytes, max_bulk_items, max_bulk_bytes)
if not (all_fit and bulk_fit) then return {0, all_items, all_bytes, bulk_items, bulk_bytes} end
move_load(lane, items, bytes)
write_load(job_id, lane, items, bytes, ends)
redis.call('ZADD', LOAD_CHECKS, math.min(now + CHECK_INTERVAL_MS, ends), job_id)
return {1, totals()}

--@script load_release
-- Releases everything that a job holds.
-- KEYS: none. ARGV: job.
-- Writes what the load library writes. Result: none.
--@use load
settle_load(ARGV[1], 0)
