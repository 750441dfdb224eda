-- Reads what a handoff is made of; one that is there lives anew. What it gives is checked before it is put.
-- KEYS: HANDOFF..request. ARGV: TTL in ms, body, then for each item: its key, and the entry to take where the
--   index has none ('' for none).
-- Reads EMB..key and KEYS[1] (list: body, entries).
-- Returns 'held' and the list, 'conflict', 'missing' and the keys that have no entry, or 'new' and the entries.
local handoff = KEYS[1]
local ttl, body = ARGV[1], ARGV[2]

local held = redis.call('LRANGE', handoff, 0, -1)
if #held > 0 then
  if held[1] ~= body then return {'conflict'} end
  redis.call('PEXPIRE', handoff, ttl)
  return {'held', held}
end

local entries, missing = {}, {}
for at = 3, #ARGV, 2 do
  local entry = redis.call('MGET', EMB .. ARGV[at])[1] or ARGV[at + 1] -- GET fails on what is no string
  if entry == '' then missing[#missing + 1] = ARGV[at] else entries[#entries + 1] = entry end
end
if #missing > 0 then return {'missing', missing} end
return {'new', entries}
