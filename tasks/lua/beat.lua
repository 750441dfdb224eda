#!lua flags=allow-oom
-- Says that a session lives, and that it has to be looked after when it no longer does.
--
-- KEYS[1] beat counter of the session      KEYS[2] hash of sessions
-- ARGV[1] counter value, another one each time      ARGV[2] ttl, seconds
-- ARGV[3] session id        ARGV[4] its descriptor
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
redis.call('HSETNX', KEYS[2], ARGV[3], ARGV[4])
