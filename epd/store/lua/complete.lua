-- Embeddings made: index each, finish who waits for it, release its flight.
-- KEYS: none by name. ARGV: TTL in ms, job TTL in ms, then for each embedding: its key, entry, bytes, job and
--   part that made it, its record, the record of the others.
-- Touches what lib_lru, lib_flight and lib_job name. Returns for each the number of parts finished.
--@use clock
--@use lru
--@use job
--@use flight
local ttl, job_ttl = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = now_ms()

local function index_entry(key, entry, bytes)
  redis.call('SET', EMB .. key, entry, 'PX', ttl)
  local before, sum = size_of(key)
  if before ~= bytes and before > 0 then
    -- Made anew in another size (never of equal content): what lies in L2 is not it.
    drop(key)
    redis.call('SET', EMB .. key, entry, 'PX', ttl)
    sum = ''
  end
  if not redis.call('ZSCORE', LRU, key) then redis.call('INCRBY', LRU_BYTES, bytes) end
  redis.call('ZADD', LRU, now, key)
  if sum == '' then redis.call('HSET', LRU_SIZES, key, bytes) end
end

local function finish_waiters(key, record)
  local finished = 0
  for _, field in ipairs(redis.call('HKEYS', FLIGHT .. key .. WAITERS_SUFFIX)) do
    local job_id, part = split_waiter(field)
    -- A job may wait for a track that it has not written down yet: who waits for it, gets it.
    if is_wanted(job_id, part) and redis.call('HSETNX', JOB .. job_id, 'part:' .. part, record) == 1 then
      redis.call('HINCRBY', JOB .. job_id, 'open', 1)
    end
    finished = finished + finish_part(job_id, part, 'done', record, job_ttl)
  end
  return finished
end

local counts = {}
for at = 3, #ARGV, 7 do
  local key, entry, bytes, own_job, own_part, own_record, record = unpack(ARGV, at, at + 6)
  index_entry(key, entry, tonumber(bytes))
  counts[#counts + 1] = finish_part(own_job, own_part, 'done', own_record, job_ttl) + finish_waiters(key, record)
  end_flight(key)
end
return counts
