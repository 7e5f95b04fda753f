-- fenced_store/get_field.lua: read a field of a hash.
--
-- KEYS[1] key    hash   the data
-- ARGV[1] field  bytes
--
-- Returns the value, or nil
-- Retry   safe: it only reads.
return redis.call('HGET', KEYS[1], ARGV[1])
