-- rw_lock/downgrade.lua: let a lease id that writes go on as a reader, and let in the readers that wait.
--
-- KEYS[1] name      hash    mode -> read or write; <reader> or <writer>:write -> hold count (Redisson RReadWriteLock)
-- KEYS[2] timeouts  string  what the keys of the readers' leases begin with; <reader>:rwlock_timeout:<i> follows
-- KEYS[3] queue     list    "<field> <lease_ms> <ask>" of the waiting clients, next first
-- KEYS[4] gone      string  a tombstone's key without the lease id it ends with
-- ARGV[1] owner     bytes   <client uuid>:<lease id>
-- ARGV[2] channel   bytes   where Redisson's waiters listen, and ours
-- ARGV[3] grants    bytes   prefix of the channels on which our clients hear that the name is theirs
-- ARGV[4] holds     integer how many readers share the hold, at least 1
--
-- Returns 1 it reads, and no more; 0 the owner does not hold the name
-- Error   the hold is as it was.
-- Retry   safe: a lease id that reads never writes again, so a late copy finds a reader, or nothing, and changes nothing (B4). The
--         end is that of the hold before (B2).
local owner = ARGV[1]
local held, refused = hold_of(owner)
if not held then
  return refused or 0
end
if held.field == owner then
  return 1
end
local done
if held.left == -1 then
  done = pcall('SET', timeout_key(owner, 1), '1')
else
  done = pcall('SET', timeout_key(owner, 1), '1', 'PX', math.max(held.left, 1))
end
if done.err then
  return done
end
done = pcall('HSET', KEYS[1], 'mode', 'read', owner, ARGV[4])
if type(done) ~= 'number' then
  return done
end
call('HDEL', KEYS[1], held.field)
-- From here on no error may hide that it reads.
stay = true
_G.pcall(function() give_to_next(ARGV[3]) end)
pcall('PUBLISH', ARGV[2], '1') -- others may read now (Redisson leaves them asleep)
wake_late_comers(ARGV[2])
return 1
