#!lua flags=allow-oom
-- Returns unacked messages of a session to the head of their lanes, in their old order.
-- After a crash the delivery count of each message rises, and the message is quarantined: it goes to the
-- "again" list of its lane, from which a worker takes few at a time. For its last allowed delivery it goes to
-- the "solo" list, from which a worker takes one message and nothing else; after that to the poison list.
--
-- KEYS    1 unacked hash of the session    2 hash of sessions    3 poison list
-- ARGV    1 crashed: 1 if the worker died with them, 0 if it returns them itself
--         2 most deliveries    3 most messages of one call
--         4 session id, removed from the hash of sessions once nothing of the session is left
--         5 prefix of again lists    6 prefix of solo lists    7 prefix of bells (a lane's name follows each)
--         8 TTL of a bell in seconds    9 most poison messages    10 TTL of the poison list in seconds
--         11... receipts: only these messages; without any: all of the session
-- Result  {moved, left}
local unacked, sessions, poison = KEYS[1], KEYS[2], KEYS[3]
local crashed, max_deliveries, max_messages = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local session, again_prefix, solo_prefix, bell_prefix = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local bell_ttl, max_poison, poison_ttl = ARGV[8], tonumber(ARGV[9]), ARGV[10]
local whole_session = #ARGV == 10

local receipts = {}
if whole_session then
  receipts = redis.call('HKEYS', unacked)
else
  for index = 11, #ARGV do receipts[#receipts + 1] = ARGV[index] end
end
-- Each message goes to the head, so the newest goes first and the oldest ends up before all others.
table.sort(receipts, function(a, b) return tonumber(a) > tonumber(b) end)

local moved, lanes = 0, {}
for index = 1, math.min(#receipts, max_messages) do
  local receipt = receipts[index]
  local value = redis.call('HGET', unacked, receipt)
  if value then
    redis.call('HDEL', unacked, receipt)
    local deliveries, lane, raw = string.match(value, '^(%d+)\n([^\n]*)\n(.*)$')
    deliveries = tonumber(deliveries) + crashed
    moved = moved + 1
    if crashed == 1 and deliveries >= max_deliveries then
      redis.call('RPUSH', poison, deliveries .. '\n' .. lane .. '\n' .. raw)
      redis.call('LTRIM', poison, -max_poison, -1)
      redis.call('EXPIRE', poison, poison_ttl)
    else
      local alone = deliveries > 0 and deliveries >= max_deliveries - 1
      redis.call('RPUSH', (alone and solo_prefix or again_prefix) .. lane, deliveries .. '\n' .. raw)
      lanes[lane] = true
    end
  end
end

for lane in pairs(lanes) do
  local bell = bell_prefix .. lane
  if redis.call('EXISTS', bell) == 0 then
    redis.call('LPUSH', bell, 1)
    redis.call('EXPIRE', bell, bell_ttl)
  end
end

local left = redis.call('HLEN', unacked)
if left == 0 and whole_session then redis.call('HDEL', sessions, session) end
return {moved, left}
