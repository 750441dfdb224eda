-- Counts what workers hold and have not acked, by lane.
-- KEYS  1 epd:sessions (hash: a field a session)
-- ARGV  1 prefix of the unacked hashes ("epd:unacked:")
-- Reads epd:unacked:<session>: receipt -> "deliveries \n lane \n raw message".
-- Gives {lane, count, lane, count, ...}.
local counts, answer = {}, {}
for _, session in ipairs(redis.call('HKEYS', KEYS[1])) do
  for _, held in ipairs(redis.call('HVALS', ARGV[1] .. session)) do
    local lane = string.match(held, '^[^\n]*\n([^\n]*)\n')
    if lane then
      counts[lane] = (counts[lane] or 0) + 1
    end
  end
end
for lane, count in pairs(counts) do
  answer[#answer + 1] = lane
  answer[#answer + 1] = count
end
return answer
