-- Counts the messages that workers hold and have not acked, by lane.
--
-- KEYS    1 hash of sessions
-- ARGV    1 prefix of the unacked hashes; a session id follows it
-- Result  {lane, count, lane, count, ...}
-- An unacked hash has one field per message: receipt -> "deliveries \n lane \n raw message".
local sessions, unacked_prefix = KEYS[1], ARGV[1]
local counts, answer = {}, {}
for _, session in ipairs(redis.call('HKEYS', sessions)) do
  for _, held in ipairs(redis.call('HVALS', unacked_prefix .. session)) do
    local lane = string.match(held, '^[^\n]*\n([^\n]*)\n')
    if lane then counts[lane] = (counts[lane] or 0) + 1 end
  end
end
for lane, count in pairs(counts) do
  answer[#answer + 1] = lane
  answer[#answer + 1] = count
end
return answer
