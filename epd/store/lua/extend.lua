-- Renews the lease of a flight that is still on.
-- KEYS: none by name. ARGV: embedding key, lease in ms. Touches FLIGHT..key, its waiters' TTL, FLIGHTS.
-- Returns 1, or 0 when the lease was over.
--@use clock
local key, lease = ARGV[1], tonumber(ARGV[2])
if redis.call('PEXPIRE', FLIGHT .. key, lease) == 0 then return 0 end
local waiters = FLIGHT .. key .. WAITERS_SUFFIX
redis.call('PEXPIRE', waiters, math.max(redis.call('PTTL', waiters), 2 * lease))
redis.call('ZADD', FLIGHTS, 'XX', now_ms() + lease, key)
return 1
