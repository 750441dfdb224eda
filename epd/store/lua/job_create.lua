-- Writes a job once; a second call (a retry after a lost answer) changes nothing.
-- KEYS: JOB..job. ARGV: end of its life in Unix ms, job TTL in ms, open parts, then field, value, ...
-- Touches KEYS[1] (hash). Returns 1, or 0 when it was there.
local PIECE = 1000 -- a call takes some 8000 arguments; each call is a command of the append-only file too
local job, open = KEYS[1], tonumber(ARGV[3])
if redis.call('EXISTS', job) == 1 then return 0 end
redis.call('HSET', job, 'open', open)
for first = 4, #ARGV, PIECE do
  redis.call('HSET', job, unpack(ARGV, first, math.min(first + PIECE - 1, #ARGV)))
end
if open > 0 then
  redis.call('PEXPIREAT', job, ARGV[1])
else
  redis.call('PEXPIRE', job, ARGV[2])
end
return 1
