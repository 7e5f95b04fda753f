-- fenced_store/get.lua: read a string.
--
-- KEYS[1] key  string  the data
--
-- Returns the value, or nil
-- Retry   safe: it only reads.
return redis.call('GET', KEYS[1])
