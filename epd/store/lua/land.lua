-- Gives a flyer those who wait for its flight, and ends the flight once nobody is left.
-- KEYS: none by name. ARGV: flight key, job, part, most waiters, then the waiters (job/part) that were served.
-- Touches what lib_flight names. Returns waiter, message, waiter, message ...; nothing where another flies.
--@use job
--@use flight
local key, field, most = ARGV[1], ARGV[2] .. '/' .. ARGV[3], tonumber(ARGV[4])
local flight = FLIGHT .. key
local waiters = flight .. WAITERS_SUFFIX
local owner = redis.call('GET', flight)
if owner and owner ~= field then return {} end
redis.call('HDEL', waiters, field, unpack(ARGV, 5))
local left = {}
for _, waiter in ipairs(redis.call('HKEYS', waiters)) do
  if #left >= 2 * most then return left end
  left[#left + 1] = waiter
  left[#left + 1] = redis.call('HGET', waiters, waiter)
end
if #left == 0 then end_flight(key) end
return left
