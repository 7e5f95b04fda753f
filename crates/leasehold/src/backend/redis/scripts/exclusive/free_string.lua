-- exclusive/free_string.lua: the same of a plain mutex.
--
-- KEYS[1] name   string  the owner; its TTL is the lease
-- KEYS[2] queue  list    of the waiting clients
if redis.call('EXISTS', KEYS[1], KEYS[2], string.sub(KEYS[2], 1, -6) .. 'gone:' .. ARGV[1]) == 0 then
  redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
  return tonumber(ARGV[2])
end
