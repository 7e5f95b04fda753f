-- rw_lock/count.lua: write how often the owner has entered, for those who look, and find out whether others wait.
--
-- KEYS[1] name       hash    mode -> read or write; <reader> or <writer>:write -> hold count (Redisson RReadWriteLock)
-- KEYS[2] timeouts   string  what the keys of the readers' leases begin with; <reader>:rwlock_timeout:<i> follows
-- KEYS[3] queue      list    "<field> <lease_ms> <ask>" of the waiting clients, next first
-- ARGV[1] field      bytes   <client uuid>:<lease id> of a reader, <client uuid>:<lease id>:write of a writer
-- ARGV[2] holds      integer at least 1
-- ARGV[3] channel    bytes   where Redisson's waiters listen, and ours
-- ARGV[4] grants     bytes   prefix of the channels on which our clients hear that the name is theirs
-- ARGV[5] listening  integer 1 if this client is a subscriber of the channel itself
-- ARGV[6] reads      integer so many of the writer's holds only read
--
-- Returns 1 written; 2 written, and a client waits that may not hold the name beside this reader; 0 not ours
-- Retry   safe: the count is absolute.
local held, refused = hold_of(ARGV[1])
if not held then
  return refused or 0
end
call('HSET', KEYS[1], held.field, ARGV[2])
if is_writer(held.field) then
  -- Redisson's writer has a field for its reads. To us it is a reader whose lease is over, which holds nothing.
  if ARGV[6] == '0' then
    call('HDEL', KEYS[1], owner_of(held.field))
  else
    call('HSET', KEYS[1], owner_of(held.field), ARGV[6])
  end
end
if is_writer(ARGV[1]) then
  return 1
end
if not may_join(ARGV[4], ARGV[3]) then
  return 2
end
-- One of Redisson's may want to write.
local others, ours = count_others(ARGV[3], marker(), ARGV[5], 0, 0)
return others > ours and 2 or 1
