#!lua flags=allow-oom
-- Hands unacked messages of a session back to the head of their lanes, in their old order.
-- After a crash each one's delivery count rises: the first time it goes to `again` (small company), the last
-- time allowed to `solo` (alone in its worker), and then to the poison list instead of to a worker.
--
-- KEYS[1] unacked hash of the session      KEYS[2] hash of sessions      KEYS[3] poison list
-- ARGV[1] crashed           1: the worker died with them, count it; 0: handed back in good order
-- ARGV[2] max_deliveries    ARGV[3] chunk: most messages for one call
-- ARGV[4] session id        taken off the hash of sessions when nothing of it is left
-- ARGV[5] again prefix      ARGV[6] solo prefix      ARGV[7] bell prefix      (a lane's name follows each)
-- ARGV[8] bell_ttl          seconds
-- ARGV[9] poison_cap        ARGV[10] poison_ttl, seconds
-- ARGV[11..] receipts       only these; none: all of the session
-- Returns {moved, left}.
local crashed, max_deliveries = tonumber(ARGV[1]), tonumber(ARGV[2])
local receipts, rungs, moved = {}, {}, 0

if #ARGV > 10 then
  for i = 11, #ARGV do receipts[#receipts + 1] = ARGV[i] end
else
  receipts = redis.call('HKEYS', KEYS[1])
end
-- The youngest goes back first, so that the oldest ends up at the very head.
table.sort(receipts, function(a, b) return tonumber(a) > tonumber(b) end)

for i = 1, math.min(#receipts, tonumber(ARGV[3])) do
  local value = redis.call('HGET', KEYS[1], receipts[i])
  if value then
    redis.call('HDEL', KEYS[1], receipts[i])
    local deliveries, lane, raw = string.match(value, '^(%d+)\n([^\n]*)\n(.*)$')
    deliveries = tonumber(deliveries) + crashed
    moved = moved + 1
    if crashed == 1 and deliveries >= max_deliveries then
      redis.call('RPUSH', KEYS[3], deliveries .. '\n' .. lane .. '\n' .. raw)
      redis.call('LTRIM', KEYS[3], -tonumber(ARGV[9]), -1)
      redis.call('EXPIRE', KEYS[3], ARGV[10])
    else
      local alone = deliveries > 0 and deliveries >= max_deliveries - 1
      redis.call('RPUSH', (alone and ARGV[6] or ARGV[5]) .. lane, deliveries .. '\n' .. raw)
      rungs[lane] = true
    end
  end
end

for lane in pairs(rungs) do
  local bell = ARGV[7] .. lane
  if redis.call('EXISTS', bell) == 0 then
    redis.call('LPUSH', bell, 1)
    redis.call('EXPIRE', bell, ARGV[8])
  end
end

local left = redis.call('HLEN', KEYS[1])
if left == 0 and #ARGV == 10 then redis.call('HDEL', KEYS[2], ARGV[4]) end
return {moved, left}
