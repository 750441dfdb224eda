-- Finds flights whose lease is over and gives one message of each.
-- KEYS: none by name. ARGV: most flights, lease in ms.
-- Touches what lib_flight names. Returns messages. A flight given is due again one lease later.
--@use clock
--@use job
--@use flight
local most, lease = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = now_ms()
local messages = {}
for _, key in ipairs(redis.call('ZRANGEBYSCORE', FLIGHTS, '-inf', now, 'LIMIT', 0, most)) do
  local message = wanted_message(key)
  if message then
    messages[#messages + 1] = message
    redis.call('ZADD', FLIGHTS, now + lease, key)
  else
    end_flight(key)
  end
end
return messages
