-- Embeddings made: index each, finish who waits for it, release its flight.
-- KEYS: none by name. ARGV: TTL in ms, job TTL in ms, then for each embedding: its key, entry, metadata, bytes,
--   job and part that made it, its record, the record of the others.
-- Touches what lib_lru, lib_flight and lib_job name. Returns for each the number of parts finished.
--@use clock
--@use job
--@use flight
local ttl, job_ttl = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = now_ms()

local function index_entry(key, entry, metadata, bytes)
  redis.call('SET', EMB .. key, entry, 'PX', ttl)
  redis.call('SET', META .. key, metadata, 'PX', ttl)
  redis.call('ZADD', LRU, now, key)
  local before = tonumber(redis.call('HGET', LRU_SIZES, key) or '0')
  redis.call('HSET', LRU_SIZES, key, bytes)
  redis.call('INCRBY', LRU_BYTES, bytes - before)
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
for at = 3, #ARGV, 8 do
  local key, entry, metadata, bytes, own_job, own_part, own_record, record = unpack(ARGV, at, at + 7)
  index_entry(key, entry, metadata, tonumber(bytes))
  counts[#counts + 1] = finish_part(own_job, own_part, 'done', own_record, job_ttl) + finish_waiters(key, record)
  end_flight(key)
end
return counts
