-- One embedding made: index it, finish who waits for it, release its flight.
-- KEYS: none by name. ARGV: embedding key, entry, metadata, TTL in ms, bytes,
--   job and part that made it, its record, the record of the others, job TTL in ms.
-- Touches what lib_lru, lib_flight and lib_job name. Returns the number of parts finished.
--@use clock
--@use job
--@use flight
local key, entry, metadata, ttl, bytes = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local own_job, own_part, own_record, record, job_ttl = ARGV[6], ARGV[7], ARGV[8], ARGV[9], tonumber(ARGV[10])
redis.call('SET', EMB .. key, entry, 'PX', ttl)
redis.call('SET', META .. key, metadata, 'PX', ttl)
redis.call('ZADD', LRU, now_ms(), key)
local before = tonumber(redis.call('HGET', LRU_SIZES, key) or '0')
redis.call('HSET', LRU_SIZES, key, bytes)
redis.call('INCRBY', LRU_BYTES, bytes - before)

local finished = finish_part(own_job, own_part, 'done', own_record, job_ttl)
for _, field in ipairs(redis.call('HKEYS', FLIGHT .. key .. WAITERS_SUFFIX)) do
  local job_id, part = split_waiter(field)
  -- A job may wait for a track that it has not written down yet: who waits for it, gets it.
  if is_wanted(job_id, part) and redis.call('HSETNX', JOB .. job_id, 'part:' .. part, record) == 1 then
    redis.call('HINCRBY', JOB .. job_id, 'open', 1)
  end
  finished = finished + finish_part(job_id, part, 'done', record, job_ttl)
end
end_flight(key)
return finished
