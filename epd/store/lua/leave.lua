-- Takes embeddings out of one tier: their files there are lost or damaged.
-- KEYS: none by name. ARGV: tier (1 or 2), then embedding keys.
-- Touches what lib_lru names. Returns how many were there.
--@use lru
local leave_tier = ARGV[1] == '2' and leave_l2 or leave_l1
local count = 0
for index = 2, #ARGV do count = count + leave_tier(ARGV[index]) end
return count
