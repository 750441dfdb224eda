-- Flights: single-flight. One process makes an embedding, or one download, and all others wait for it.
--
-- FLIGHT..key                  string  the leader, as "job/part"; its TTL is the lease
-- FLIGHT..key..WAITERS_SUFFIX  hash    one field "job/part" per waiter, leader too: its FetchMessage JSON
-- FLIGHTS                      zset    one member per open flight; the score is its lease's end in Unix ms

--@lib flight
-- Writes the three keys above; reads JOB..job.
--@use job

local function split_waiter(waiter)
  local cut = string.find(waiter, '/', 1, true)
  return string.sub(waiter, 1, cut - 1), string.sub(waiter, cut + 1)
end

local function end_flight(key)
  redis.call('DEL', FLIGHT .. key, FLIGHT .. key .. WAITERS_SUFFIX)
  redis.call('ZREM', FLIGHTS, key)
end

-- The message of one waiter whose part is still wanted, or nil. Removes the unwanted ones that it meets.
local function wanted_message(key)
  local waiters = FLIGHT .. key .. WAITERS_SUFFIX
  for _, waiter in ipairs(redis.call('HKEYS', waiters)) do
    local job_id, part = split_waiter(waiter)
    if is_wanted(job_id, part) then return redis.call('HGET', waiters, waiter) end
    redis.call('HDEL', waiters, waiter)
  end
  return nil
end

--@script claim
-- Asks for what flights make. The same part may claim again.
-- KEYS: none. ARGV: lease in ms, then for each claim: flight key, job, part, message.
-- Reads EMB..key and the TTL of JOB..job; writes the flights and CACHE_TOTALS.
-- Result: for each claim "hit" if the embedding exists, "owned" if the part leads the flight, else "waiting".
--@use clock
local lease = tonumber(ARGV[1])
local ends = now_ms() + lease

local function claim(key, job_id, part, message)
  if redis.call('EXISTS', EMB .. key) == 1 then return 'hit' end
  local waiter, flight = job_id .. '/' .. part, FLIGHT .. key
  local waiters = flight .. WAITERS_SUFFIX
  -- A new waiter is a miss. One that claims again was counted before.
  if redis.call('HSET', waiters, waiter, message) == 1 then redis.call('HINCRBY', CACHE_TOTALS, 'misses', 1) end
  -- The waiters live as long as the longest of their jobs, and two leases where no job is known.
  local life = math.max(redis.call('PTTL', JOB .. job_id), redis.call('PTTL', waiters), 2 * lease)
  redis.call('PEXPIRE', waiters, life)
  local leader = redis.call('GET', flight)
  if leader and leader ~= waiter then return 'waiting' end
  redis.call('SET', flight, waiter, 'PX', lease)
  redis.call('ZADD', FLIGHTS, ends, key)
  return 'owned'
end

local answers = {}
for at = 2, #ARGV, 4 do answers[#answers + 1] = claim(unpack(ARGV, at, at + 3)) end
return answers

--@script extend
-- Renews the lease of a flight, unless it has ended.
-- KEYS: none. ARGV: flight key, lease in ms.
-- Writes the flight. Result: none.
--@use clock
local key, lease = ARGV[1], tonumber(ARGV[2])
if redis.call('PEXPIRE', FLIGHT .. key, lease) == 0 then return end
local waiters = FLIGHT .. key .. WAITERS_SUFFIX
redis.call('PEXPIRE', waiters, math.max(redis.call('PTTL', waiters), 2 * lease))
redis.call('ZADD', FLIGHTS, 'XX', now_ms() + lease, key)

--@script complete
-- Indexes new embeddings, finishes their waiters and ends their flights.
-- KEYS: none. ARGV: TTL of an embedding in ms, TTL of a final job in ms, then for each embedding: its key,
--   entry, bytes, job and part of the leader, the record of the leader, the record of all other waiters.
-- Writes what the libraries lru, flight and job write.
-- Result: for each embedding the number of parts that it finished.
--@use clock
--@use lru
--@use flight
local ttl, job_ttl = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = now_ms()

local function index_entry(key, entry, bytes)
  redis.call('SET', EMB .. key, entry, 'PX', ttl)
  local before, checksum = size_of(key)
  if before ~= bytes and before > 0 then
    -- The size differs, so the content differs too and the file in L2 is the old one.
    drop(key)
    redis.call('SET', EMB .. key, entry, 'PX', ttl)
    checksum = ''
  end
  if not redis.call('ZSCORE', LRU, key) then redis.call('INCRBY', LRU_BYTES, bytes) end
  redis.call('ZADD', LRU, now, key)
  if checksum == '' then redis.call('HSET', LRU_SIZES, key, bytes) end
end

local function finish_waiters(key, record)
  local finished = 0
  for _, waiter in ipairs(redis.call('HKEYS', FLIGHT .. key .. WAITERS_SUFFIX)) do
    local job_id, part = split_waiter(waiter)
    -- A job can wait for a track before it has written that part; the part is added here.
    if is_wanted(job_id, part) and redis.call('HSETNX', JOB .. job_id, 'part:' .. part, record) == 1 then
      redis.call('HINCRBY', JOB .. job_id, 'open', 1)
    end
    finished = finished + finish_part(job_id, part, 'done', record, job_ttl)
  end
  return finished
end

local counts = {}
for at = 3, #ARGV, 7 do
  local key, entry, bytes, job_id, part, leader_record, record = unpack(ARGV, at, at + 6)
  index_entry(key, entry, tonumber(bytes))
  local finished = finish_part(job_id, part, 'done', leader_record, job_ttl)
  counts[#counts + 1] = finished + finish_waiters(key, record)
  end_flight(key)
end
return counts

--@script fail
-- Finishes all waiters of a flight with an error and ends the flight.
-- KEYS: none. ARGV: flight key, record, TTL of a final job in ms.
-- Writes what the libraries flight and job write. Result: the number of parts finished.
--@use flight
local key, record, job_ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local finished = 0
for _, waiter in ipairs(redis.call('HKEYS', FLIGHT .. key .. WAITERS_SUFFIX)) do
  local job_id, part = split_waiter(waiter)
  finished = finished + finish_part(job_id, part, 'failed', record, job_ttl)
end
end_flight(key)
return finished

--@script withdraw
-- Removes one waiter from a flight. If it was the leader, another waiter succeeds it.
-- KEYS: none. ARGV: flight key, job, part, lease in ms.
-- Writes what the flight library writes.
-- Result: the message of the successor, which the caller publishes, or false.
--@use clock
--@use flight
local key, waiter, lease = ARGV[1], ARGV[2] .. '/' .. ARGV[3], tonumber(ARGV[4])
local flight = FLIGHT .. key
local leader = redis.call('GET', flight)
redis.call('HDEL', flight .. WAITERS_SUFFIX, waiter)
if leader and leader ~= waiter then return false end
local successor = wanted_message(key)
if not successor then
  end_flight(key)
  return false
end
-- The first to claim leads. If the caller dies before it publishes, the flight is an orphan after one lease.
redis.call('DEL', flight)
redis.call('ZADD', FLIGHTS, now_ms() + lease, key)
return successor

--@script take_waiters
-- Removes the waiters that the leader has served and returns the others. Ends the flight when none are left.
-- KEYS: none. ARGV: flight key, job and part of the leader, most waiters, then the served ones ("job/part").
-- Writes what the flight library writes.
-- Result: waiter, message, waiter, message ...; empty where another part leads.
--@use flight
local key, self, max_waiters = ARGV[1], ARGV[2] .. '/' .. ARGV[3], tonumber(ARGV[4])
local flight = FLIGHT .. key
local waiters = flight .. WAITERS_SUFFIX
local leader = redis.call('GET', flight)
if leader and leader ~= self then return {} end
redis.call('HDEL', waiters, self, unpack(ARGV, 5))
local left = {}
for _, waiter in ipairs(redis.call('HKEYS', waiters)) do
  if #left >= 2 * max_waiters then return left end
  left[#left + 1] = waiter
  left[#left + 1] = redis.call('HGET', waiters, waiter)
end
if #left == 0 then end_flight(key) end
return left

--@script orphans
-- Finds flights whose lease has ended. Each is given again only after another lease.
-- KEYS: none. ARGV: most flights, lease in ms.
-- Writes what the flight library writes. Result: one waiter's message for each flight.
--@use clock
--@use flight
local max_flights, lease = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = now_ms()
local messages = {}
for _, key in ipairs(redis.call('ZRANGEBYSCORE', FLIGHTS, '-inf', now, 'LIMIT', 0, max_flights)) do
  local message = wanted_message(key)
  if message then
    messages[#messages + 1] = message
    redis.call('ZADD', FLIGHTS, now + lease, key)
  else
    end_flight(key)
  end
end
return messages
