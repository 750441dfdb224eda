#!lua flags=allow-oom
-- Takes up to n messages off the lanes, in the order given, and records them as unacked, all in one step:
-- a worker that dies at any moment has a message either in its lane or in its unacked hash.
--
-- KEYS[1] unacked hash of the session      KEYS[2] hash of sessions      KEYS[3] receipt counter
-- KEYS[4..] four for each lane: main list, again list, solo list, bell
-- ARGV[1] n                 most messages to take
-- ARGV[2] company           how many more suspects (deliveries > 0) the worker may hold
-- ARGV[3] take_solo         1: the worker may take a message that has to be alone
-- ARGV[4] session id        ARGV[5] its descriptor, kept so that any worker finds it when it is dead
-- ARGV[6] bell_ttl          seconds
-- Returns {blocked, then for each message: lane (from 0), receipt, deliveries, redelivered (0 or 1), raw}.
-- blocked = 1: suspects wait that this worker may not take before it has acked some; 2: a message waits that
-- has to be alone, so the worker gets nothing until it has acked all.
-- allow-oom: a full broker is emptied by its workers, so they are never refused.
local n, company, take_solo = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local lanes = (#KEYS - 3) / 4
local reply = {0}

local function record(lane, deliveries, redelivered, raw)
  local receipt = redis.call('INCR', KEYS[3])
  redis.call('HSET', KEYS[1], receipt, deliveries .. '\n' .. KEYS[4 * lane] .. '\n' .. raw)
  local at = #reply
  reply[at + 1], reply[at + 2], reply[at + 3] = lane - 1, receipt, tonumber(deliveries)
  reply[at + 4], reply[at + 5] = redelivered, raw
end

-- A bell hangs where a lane still has something, so that the next waiting worker wakes.
local function hang_bells()
  for lane = 1, lanes do
    local main, again, solo, bell = KEYS[4 * lane], KEYS[4 * lane + 1], KEYS[4 * lane + 2], KEYS[4 * lane + 3]
    if redis.call('EXISTS', main, again, solo) > 0 then
      if redis.call('EXISTS', bell) == 0 then
        redis.call('LPUSH', bell, 1)
        redis.call('EXPIRE', bell, ARGV[6])
      end
    else
      redis.call('DEL', bell)
    end
  end
end

redis.call('HSETNX', KEYS[2], ARGV[4], ARGV[5])

for lane = 1, lanes do
  local solo = KEYS[4 * lane + 2]
  if redis.call('EXISTS', solo) == 1 then
    if take_solo == 0 then return {2} end
    local deliveries, raw = string.match(redis.call('RPOP', solo), '^(%d+)\n(.*)$')
    record(lane, deliveries, 1, raw)
    hang_bells()
    return reply
  end
end

for lane = 1, lanes do
  local main, again = KEYS[4 * lane], KEYS[4 * lane + 1]
  while n > 0 do
    local frame = redis.call('RPOP', again)
    if not frame then break end
    local deliveries, raw = string.match(frame, '^(%d+)\n(.*)$')
    if deliveries ~= '0' then
      if company <= 0 then
        redis.call('RPUSH', again, frame)
        reply[1] = 1
        break
      end
      company = company - 1
    end
    record(lane, deliveries, 1, raw)
    n = n - 1
  end
  if n > 0 then
    for _, raw in ipairs(redis.call('RPOP', main, n) or {}) do
      record(lane, '0', 0, raw)
      n = n - 1
    end
  end
end

if #reply > 1 or reply[1] == 0 then hang_bells() end
return reply
