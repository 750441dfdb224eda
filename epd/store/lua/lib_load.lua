-- Library: the items and bytes that admitted jobs hold until their parts are final.
-- Touches LOAD (hash: items, bytes, bulk_items, bulk_bytes), LOAD_JOBS (hash: a field a job, "lane items
-- bytes until", until in Unix ms) and LOAD_CHECKS (zset: when a job is looked at next, in Unix ms).

local LOOK_AGAIN = 30000
local MOST_LOOKS = 200

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

-- Lets a job hold so many items at most, and their share of its bytes.
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
  -- With the last job ends whatever an evicted or lost key made wrong.
  if redis.call('EXISTS', LOAD_JOBS) == 0 then redis.call('DEL', LOAD) end
end

-- Looks at the jobs whose turn it is: one that is gone, final or past its time holds nothing. So a process
-- that died between admission and job, or a job whose messages were lost, keeps no room.
local function check_load(now)
  for _, job_id in ipairs(redis.call('ZRANGEBYSCORE', LOAD_CHECKS, '-inf', now, 'LIMIT', 0, MOST_LOOKS)) do
    local ends = string.match(redis.call('HGET', LOAD_JOBS, job_id) or '', '(%d+)$')
    local open = tonumber(redis.call('HGET', JOB .. job_id, 'open') or '0')
    if ends and open > 0 and tonumber(ends) > now then
      settle_load(job_id, open)
      redis.call('ZADD', LOAD_CHECKS, math.min(now + LOOK_AGAIN, tonumber(ends)), job_id)
    else
      settle_load(job_id, 0)
      redis.call('ZREM', LOAD_CHECKS, job_id)
    end
  end
end
