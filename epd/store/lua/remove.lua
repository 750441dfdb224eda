-- Takes embeddings out of the index.
-- KEYS: none by name. ARGV: embedding keys.
-- Touches what lib_lru names. Returns how many there were.
--@use lru
local count = 0
for _, key in ipairs(ARGV) do
  local _, known = drop(key)
  count = count + known
end
return count
