-- fenced_store/of_holder.lua: read a string that counts only while the owner that wrote it holds the lock.
--
-- KEYS[1] name  hash    the fenced mutex
-- KEYS[2] key   string  `<owner> …`
--
-- Returns `<ms> <owner> …`, where ms is what is left of the lease, or -1 if it has no end; nil if that owner does not hold the lock
-- Retry   safe: it only reads.
local value = redis.call('GET', KEYS[2])
local owner = value and string.match(value, '^(%S+) ')
if not owner or redis.call('HEXISTS', KEYS[1], owner) == 0 then
  return false
end
return redis.call('PTTL', KEYS[1]) .. ' ' .. value
