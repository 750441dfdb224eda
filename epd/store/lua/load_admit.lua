-- Has a job hold items and bytes, if they fit; without items it only tells what is held.
-- KEYS: none by name. ARGV: job, lane, items, bytes, end of its time in Unix ms,
--   most items and bytes of all, most items and bytes of bulk jobs.
-- Touches what lib_load names. Returns 1 or 0, then items, bytes, bulk items and bulk bytes held.
--@use load
local job_id, lane, items, bytes, ends = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
check_load(now)

local function held()
  local values = redis.call('HMGET', LOAD, 'items', 'bytes', 'bulk_items', 'bulk_bytes')
  for index = 1, 4 do values[index] = math.max(0, tonumber(values[index] or '0')) end
  return values
end

-- What is larger than the whole bound is let in alone, else it never would be.
local function fits(held_items, held_bytes, most_items, most_bytes)
  return held_items == 0 or (held_items + items <= most_items and held_bytes + bytes <= most_bytes)
end

local before = held()
if items == 0 or redis.call('HEXISTS', LOAD_JOBS, job_id) == 1 then
  return {1, before[1], before[2], before[3], before[4]}
end
local all_fit = fits(before[1], before[2], tonumber(ARGV[6]), tonumber(ARGV[7]))
local bulk_fit = lane ~= 'bulk' or fits(before[3], before[4], tonumber(ARGV[8]), tonumber(ARGV[9]))
if not (all_fit and bulk_fit) then return {0, before[1], before[2], before[3], before[4]} end
move_load(lane, items, bytes)
write_load(job_id, lane, items, bytes, ends)
redis.call('ZADD', LOAD_CHECKS, math.min(now + LOOK_AGAIN, ends), job_id)
local after = held()
return {1, after[1], after[2], after[3], after[4]}
