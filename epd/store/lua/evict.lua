-- Takes the least recently used embeddings out until the index is within its limit.
-- KEYS: none by name. ARGV: limit in bytes, most keys to take out, then keys to spare (just written).
-- Touches what lib_lru names; reads PIN..key: pinned ones stay. Returns the keys taken out; their files may go now.
-- Spared keys go too, oldest first, but only when they alone are over the limit.
--@use lru
local limit, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local total = tonumber(redis.call('GET', LRU_BYTES) or '0')
local out = {}
if total <= limit then return out end
local spared = {}
for index = 3, #ARGV do spared[ARGV[index]] = true end
local oldest = redis.call('ZRANGE', LRU, 0, most - 1)
for _, spare_turn in ipairs({false, true}) do
  for _, key in ipairs(oldest) do
    if total <= limit then return out end
    if (spared[key] or false) == spare_turn and redis.call('EXISTS', PIN .. key) == 0 then
      total = total - drop(key)
      out[#out + 1] = key
    end
  end
end
return out
