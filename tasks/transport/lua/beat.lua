#!lua flags=allow-oom
-- Shows that a session is alive, and registers it so that others reclaim its messages once it is not.
--
-- KEYS    1 beat counter of the session    2 hash of sessions
-- ARGV    1 counter value, a new one each time    2 TTL in seconds    3 session id    4 its descriptor
-- Result  none
local beat, sessions = KEYS[1], KEYS[2]
local count, ttl, session, descriptor = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
redis.call('SET', beat, count, 'EX', ttl)
redis.call('HSETNX', sessions, session, descriptor)
