-- Takes one waiter out of a flight.
-- KEYS: none by name. ARGV: embedding key, job, part, lease in ms.
-- Touches what lib_flight names. Returns the message of a waiter that should fly now, or false.
--@use clock
--@use job
--@use flight
local key, field, lease = ARGV[1], ARGV[2] .. '/' .. ARGV[3], tonumber(ARGV[4])
local flight = FLIGHT .. key
local owner = redis.call('GET', flight)
redis.call('HDEL', flight .. WAITERS_SUFFIX, field)
if owner and owner ~= field then return false end
local message = wanted_message(key)
if not message then
  end_flight(key)
  return false
end
-- Free for the first that claims; a reaper takes it up in one lease, should the caller die now.
redis.call('DEL', flight)
redis.call('ZADD', FLIGHTS, now_ms() + lease, key)
return message
