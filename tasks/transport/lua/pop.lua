#!lua flags=allow-oom
-- Takes messages from lanes, in the order given, and records them as unacked in the same step. So at any
-- moment in which a worker dies, each message is either in its lane or in an unacked hash.
-- allow-oom: workers empty a full broker, so they are never refused.
--
-- KEYS    1 unacked hash of the session    2 hash of sessions    3 receipt counter
--         4... four for each lane: main list, again list, solo list, bell
-- ARGV    1 most messages to take
--         2 how many more quarantined messages (deliveries > 0) the worker may hold
--         3 take_solo: 1 if the worker may take a message that must be alone
--         4 session id    5 its descriptor, from which any worker can see that it is dead
--         6 TTL of a bell in seconds
-- Result  {blocked, then for each message: lane (from 0), receipt, deliveries, redelivered (0 or 1), raw}
-- blocked is 1 if quarantined messages wait that this worker may not take before it acks some; 2 if a message
-- waits that must be alone, so the worker gets nothing until it has acked everything.
local unacked, sessions, receipt_counter = KEYS[1], KEYS[2], KEYS[3]
local wanted, quarantine_room, take_solo = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local session, descriptor, bell_ttl = ARGV[4], ARGV[5], ARGV[6]
local lanes = (#KEYS - 3) / 4
local reply = {0}

local function lane_keys(lane)
  return unpack(KEYS, 4 * lane, 4 * lane + 3)
end

local function record(lane, deliveries, redelivered, raw)
  local receipt, main = redis.call('INCR', receipt_counter), lane_keys(lane)
  redis.call('HSET', unacked, receipt, deliveries .. '\n' .. main .. '\n' .. raw)
  local at = #reply
  reply[at + 1], reply[at + 2], reply[at + 3] = lane - 1, receipt, tonumber(deliveries)
  reply[at + 4], reply[at + 5] = redelivered, raw
end

-- A lane has a bell exactly while it has messages; the bell wakes the next worker that waits.
local function set_bells()
  for lane = 1, lanes do
    local main, again, solo, bell = lane_keys(lane)
    if redis.call('EXISTS', main, again, solo) == 0 then
      redis.call('DEL', bell)
    elseif redis.call('EXISTS', bell) == 0 then
      redis.call('LPUSH', bell, 1)
      redis.call('EXPIRE', bell, bell_ttl)
    end
  end
end

redis.call('HSETNX', sessions, session, descriptor)

for lane = 1, lanes do
  local _, _, solo = lane_keys(lane)
  if redis.call('EXISTS', solo) == 1 then
    if take_solo == 0 then return {2} end
    local deliveries, raw = string.match(redis.call('RPOP', solo), '^(%d+)\n(.*)$')
    record(lane, deliveries, 1, raw)
    set_bells()
    return reply
  end
end

for lane = 1, lanes do
  local main, again = lane_keys(lane)
  while wanted > 0 do
    local frame = redis.call('RPOP', again)
    if not frame then break end
    local deliveries, raw = string.match(frame, '^(%d+)\n(.*)$')
    if deliveries ~= '0' then
      if quarantine_room <= 0 then
        redis.call('RPUSH', again, frame)
        reply[1] = 1
        break
      end
      quarantine_room = quarantine_room - 1
    end
    record(lane, deliveries, 1, raw)
    wanted = wanted - 1
  end
  if wanted > 0 then
    for _, raw in ipairs(redis.call('RPOP', main, wanted) or {}) do
      record(lane, '0', 0, raw)
      wanted = wanted - 1
    end
  end
end

-- A worker that was blocked and took nothing does not ring, or it would wake itself. Its next ack rings.
if #reply > 1 or reply[1] == 0 then set_bells() end
return reply
