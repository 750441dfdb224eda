-- Ends pins before their time, each only where nobody else held it meanwhile.
-- KEYS: none by name. ARGV: holder, then embedding keys.
-- Touches what lib_pin names. Returns how many ended.
--@use pin
local ended = 0
for index = 2, #ARGV do ended = ended + let_go(ARGV[index], ARGV[1]) end
return ended
