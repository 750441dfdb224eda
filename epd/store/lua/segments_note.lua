-- Remembers where the rows of segments lie, and holds the bound on their number.
-- KEYS: SEGMENTS. ARGV: most places, TTL in ms, then segment, place, segment, place ...
-- Returns how many were dropped: any, since a place that is missed costs one encode of its segment.
local places, most = KEYS[1], tonumber(ARGV[1])
redis.call('HSET', places, unpack(ARGV, 3))
redis.call('PEXPIRE', places, ARGV[2])
local over = redis.call('HLEN', places) - most
if over <= 0 then return 0 end
-- A bound that was lowered is reached in steps, so that no call is long.
return redis.call('HDEL', places, unpack(redis.call('HRANDFIELD', places, math.min(over, 1000))))
