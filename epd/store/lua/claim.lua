-- Asks for an embedding.
-- KEYS: none by name. ARGV: embedding key, job, part, message, lease in ms.
-- Reads EMB..key, JOB..job (its TTL); touches FLIGHT..key, its waiters, FLIGHTS and CACHE_TOTALS.
-- Returns "hit", "owned" or "waiting".
--@use clock
local key, job_id, part, message, lease = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
if redis.call('EXISTS', EMB .. key) == 1 then return 'hit' end
local field, flight = job_id .. '/' .. part, FLIGHT .. key
local waiters = flight .. WAITERS_SUFFIX
-- Who begins to wait has missed; the same part may claim again.
if redis.call('HSET', waiters, field, message) == 1 then redis.call('HINCRBY', CACHE_TOTALS, 'misses', 1) end
-- The waiters live as long as the longest of their jobs; two leases where the job is not known.
local life = math.max(redis.call('PTTL', JOB .. job_id), redis.call('PTTL', waiters), 2 * lease)
redis.call('PEXPIRE', waiters, life)
local owner = redis.call('GET', flight)
if owner and owner ~= field then return 'waiting' end
redis.call('SET', flight, field, 'PX', lease)
redis.call('ZADD', FLIGHTS, now_ms() + lease, key)
return 'owned'
