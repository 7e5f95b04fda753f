-- rw_lock/release.lua: give a lease id up for good, and pass its hold on to the next in the queue, if no other holds the name as well.
--
-- KEYS[1] name       hash    mode -> read or write; <reader> or <writer>:write -> hold count (Redisson RReadWriteLock)
-- KEYS[2] timeouts   string  what the keys of the readers' leases begin with; <reader>:rwlock_timeout:<i> follows
-- KEYS[3] queue      list    "<field> <lease_ms> <ask>" of the waiting clients, next first
-- KEYS[4] gone       string  a tombstone's key without the lease id it ends with
-- ARGV[1] owner      bytes   <client uuid>:<lease id>, whether it reads or writes
-- ARGV[2] channel    bytes   where Redisson's waiters listen, and ours
-- ARGV[3] grants     bytes   prefix of the channels on which our clients hear that the name is theirs
-- ARGV[4] gone_ms    integer leave a tombstone for so long; 0: leave none
-- ARGV[5] listening  integer 1 if this client is a subscriber of the channel itself
-- ARGV[6] next       bytes   field under which this client goes on; empty: it does not
-- ARGV[7] next_ms    integer the lease of `next`
-- ARGV[8] stays      integer 1: the name goes to `next` at once if no client of ours waits, and no turn is left
-- ARGV[9] holds      integer how many holds this client has had in a row; 0: no turn is to be left to Redisson's waiters; negative: one
--                      of them may not be counted; empty: one, and it knows of none of them
--
-- Returns 1            the owner has left: others hold the name still, or it is free, and no other client was told
--         {1, others, turns} the owner has left. The name is free, so many other clients were told, and so many turns are left to
--                      Redisson's waiters
--         {2, ms}      given to the next in the queue, to the first of them for ms from now
--         {3, left_ms} `next` holds it, for left_ms from now: it stays with this client, or only readers waited and it reads with them,
--                      or it did before, or an earlier copy found so
--         0            the owner did not hold it
-- Error   the name is as it was: what may be refused (a command, a channel, memory) comes before what deletes.
-- Retry   safe: a second copy finds the owner gone. It changes nothing but the tombstone.
local owner, next_field = ARGV[1], ARGV[6]
if ARGV[4] ~= '0' then
  pcall('SET', KEYS[4] .. owner, '1', 'PX', ARGV[4])
end
local held, refused = hold_of(owner)
if refused then
  return refused
end
local there = next_field ~= '' and hold_of(next_field)
local kept = there and there.field == next_field and there
if not held then
  local read = leave_queue(KEYS[3], owner)
  local made_way = leave_queue(KEYS[3], owner .. ':write') or read
  if kept then
    return { 3, kept.left }
  end
  if made_way and call('EXISTS', KEYS[3]) == 1 then
    -- Readers that only waited for this writer to have its turn need not wait any more.
    local found = look_briefly()
    stay = found.mode == 'read'
    if not stay or not give_to_next(ARGV[3]) then
      tell_first(KEYS[3], ARGV[3], found.left)
    end
  end
  return 0
end

local writes, waiting = is_writer(held.field), call('LLEN', KEYS[3])
local longest, ends_sooner = 1, false -- what is left of the hold of one that stays; and whether no other is known to last longer
leaving = { held }
if writes then
  dead = { owner } -- Redisson's writer has a field for its reads, and so has ours
else
  -- Whether others read, and how long the hash must last for them: not exactly, but Redisson's waiters sleep for no more than a second
  -- longer. So the first that is found to last about as long as the hash is enough. Of very many the longest is not looked for: then the
  -- hash stays as it is, which is longer than they need.
  local ttl = call('PTTL', KEYS[1])
  local enough = ttl == -1 and math.huge or held.left < ttl - 1000 and 0 or ttl - 1000
  local found, is_all = longest_reader(ttl, enough, held.field)
  stay, longest = found ~= nil, found or longest
  lasts = stay and is_all and longest < enough and longest or nil
  ends_sooner = stay and longest < enough
end

if waiting == 0 and next_field == '' and not stay and ARGV[9] == '' then
  -- No client of ours waits anywhere: Redisson's unlock.
  local others = call('PUBLISH', ARGV[2], writes and '1' or '0') - ARGV[5]
  if writes then
    wake_late_comers(ARGV[2]) -- also where none is counted: it may listen at a replica (bug 314)
  end
  call('DEL', KEYS[1], timeout_key(held.field, 1))
  return others == 0 and 1 or { 1, others }
end

-- B4: a late copy of this release must not revive a `next` that was given up meanwhile. B2: nor begin anew what `next` holds beside the
-- owner, which would bring its end nearer.
local goes_on = next_field ~= '' and not there and not is_given_up(next_field)
local next_reads = not is_writer(next_field)
local next_waits = goes_on and waiting > 0 and place_of(KEYS[3], next_field) ~= nil
local others, ours, turns = count_others(ARGV[2], marker(), ARGV[5], waiting, tonumber(ARGV[9]) or 1)
if goes_on and (next_reads or not stay) and ARGV[8] == '1' and waiting + ours + turns == 0 then
  take_out()
  if not take(next_field, ARGV[7], not stay) then
    return { 3, tonumber(ARGV[7]) }
  end
end

local granted
if stay or turns == 0 then
  granted = give_to_next(ARGV[3])
end
if granted and not stay then
  tell_of_less(ARGV[2], granted, others > ours, held.left)
end
if granted and goes_on and next_reads and not next_waits and may_join(ARGV[3], ARGV[2]) and not take(next_field, ARGV[7], false) then
  return { 3, tonumber(ARGV[7]) }
end
if granted then
  return kept and { 3, kept.left } or { 2, granted }
end
if not stay then
  return free(ARGV[2], writes, turns, others > ours) or { 1, others, turns }
end
if not taken_out then
  take_out()
end
if ends_sooner then
  tell_first(KEYS[3], ARGV[3], longest)
end
return kept and { 3, kept.left } or 1
