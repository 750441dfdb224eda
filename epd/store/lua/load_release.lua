-- Lets a job hold nothing any more.
-- KEYS: none by name. ARGV: job.
-- Touches what lib_load names. Returns 1.
--@use load
settle_load(ARGV[1], 0)
return 1
