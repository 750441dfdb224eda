-- Takes embeddings out of the index, out of both tiers.
-- KEYS: none by name. ARGV: embedding keys.
-- Touches what lib_lru names; reads PIN..key.
-- Returns for each 0 when it was not there, 1 when it was, and 2 when it was and a pin holds its files.
--@use lru
local answers = {}
for index, key in ipairs(ARGV) do
  local held = is_pinned(key) and 2 or 1
  answers[index] = drop(key) * held
end
return answers
