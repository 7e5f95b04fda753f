-- rw_lock/force_unlock.lua: take the name from its readers or its writer, and give it to the next in the queue.
--
-- KEYS[1] name      hash    mode -> read or write; <reader> or <writer>:write -> hold count (Redisson RReadWriteLock)
-- KEYS[2] timeouts  string  what the keys of the readers' leases begin with; <reader>:rwlock_timeout:<i> follows
-- KEYS[3] queue     list    "<field> <lease_ms> <ask>" of the waiting clients, next first
-- KEYS[4] gone      string  a tombstone's key without the lease id it ends with
-- ARGV[1] channel   bytes   where Redisson's waiters listen, and ours
-- ARGV[2] grants    bytes   prefix of the channels on which our clients hear that the name is theirs
-- and behind these   the holders that were seen, if it is to be taken only from them: forced.lua
--
-- Returns the fields that held it; none: it was free, or is not as it was seen
-- Error   the name is as it was: what may be refused (a command, a channel) comes before what deletes.
-- Retry   not safe: the second copy may take the name from the next holder. It is sent once.
local all, refused = look()
if not all then
  return refused
end
if all.other then
  return refuse('rw_lock')
end
local fields = {}
for i, holder in ipairs(all.live) do
  fields[i] = holder.field
end
if #fields == 0 then
  return fields
end
if not is_as_seen(3, fields, function(i) return all.live[i].left end) then
  return {}
end
leaving, dead = all.live, all.dead
tell_holders(ARGV[2], fields) -- they ask, so it does no harm if this is refused
local waiting = call('LLEN', KEYS[3])
local others, ours = count_others(ARGV[1], marker(), 0, waiting, 0)
if waiting > 0 then
  local granted = give_to_next(ARGV[2])
  if granted then
    tell_of_less(ARGV[1], granted, others > ours, all.left)
    return fields
  end
end
return free(ARGV[1], all.mode ~= 'read', 0, others > ours) or fields
