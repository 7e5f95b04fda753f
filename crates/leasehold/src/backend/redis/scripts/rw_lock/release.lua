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
-- ARGV[8] stays      integer the name goes to `next` at once, 1: if no other client waits; 2: if none stands in the queue
-- ARGV[9] ask        integer number of this ask of `next`, if it is to be queued when others wait; 0: it is not
-- ARGV[10] keep_ms   integer how long the queue outlives its last visitor
--
-- Returns {1, others}  the owner has left. The name is free, and so many other clients were told; 0 if others hold it still
--         {2, ms}      given to the next in the queue, to the first of them for ms from now
--         {3, left_ms} `next` holds it, for left_ms from now: it stays with this client, or only readers waited and it reads with them,
--                      or it did before, or an earlier copy found so
--         {0, 0}       the owner did not hold it
-- Error   the name is as it was: what may be refused (a command, a channel, memory) comes before what deletes.
-- Retry   safe: a second copy finds the owner gone. It changes nothing but the tombstone.
local owner, next_field = ARGV[1], ARGV[6]
if ARGV[4] ~= '0' then
  pcall('SET', KEYS[4] .. owner, '1', 'PX', ARGV[4])
end

local function is_place_of(place, field)
  return string.sub(place, 1, #field + 1) == field .. ' '
end

-- Whether a place is the owner's, in whichever form.
local function is_owners(place)
  return string.sub(place, 1, #owner) == owner and string.find(place, '^[: ]', #owner + 1) ~= nil
end

local waiting, next_waits, made_way = 0, false, false
local places = call('LRANGE', KEYS[3], 0, -1)
for _, place in ipairs(places) do
  if is_owners(place) then
    call('LREM', KEYS[3], 0, place)
    made_way = true
  else
    waiting = waiting + 1
    next_waits = next_waits or is_place_of(place, next_field)
  end
end

local all, refused = look()
if not all then
  return refused
end
local held = hold_of(all, owner)
if not held then
  if all.by[next_field] then
    return { 3, all.by[next_field].left }
  end
  -- Readers that only waited for this writer to have its turn need not wait any more.
  if made_way and all.mode == 'read' then
    leave({}, all)
    made_way = not give_to_next(ARGV[3], all.left) -- of which those that wait were told
  end
  if made_way and waiting > 0 then
    tell_first(KEYS[3], ARGV[3], all.left)
  end
  return { 0, 0 }
end
held.count = 1 -- the only one of its leases that is a key
leave({ held }, all)

if waiting == 0 and next_field == '' and stay == 0 then
  -- No client of ours waits anywhere: Redisson's unlock.
  local heard = call('PUBLISH', ARGV[2], all.mode == 'read' and '0' or '1')
  if all.mode ~= 'read' and heard > tonumber(ARGV[5]) then
    wake_late_comers(ARGV[2])
  end
  call('DEL', KEYS[1], timeout_key(held.field, 1))
  return { 1, heard - ARGV[5] }
end

-- B4: a late copy of this release must not revive a `next` that was given up meanwhile. B2: nor begin anew what `next` holds beside the
-- owner, which would bring its end nearer.
local goes_on = next_field ~= '' and not hold_of(all, next_field) and not is_given_up(next_field)
local kept = all.by[next_field] and { 3, all.by[next_field].left }
local others = count_others(ARGV[2], ARGV[5], waiting)
-- Beside those that stay, and those that are let in.
local function next_fits()
  return not is_writer(next_field)
end
if goes_on and stays(ARGV[8], others, waiting) and (stay == 0 or next_fits()) then
  take_out()
  if not take(next_field, ARGV[7], stay == 0) then
    return { 3, tonumber(ARGV[7]) }
  end
end

local granted, readers, sooner
if stay > 0 or is_queues_turn(others, waiting) then
  -- All clients that wait are in our queue. (If not, Redisson waits too, and all race for the name, if it is free.)
  granted, readers, sooner = give_to_next(ARGV[3])
end
if sooner and stay == 0 and others > waiting then
  wake_late_comers(ARGV[2]) -- Redisson's waiters sleep by the end of before
end
if readers and goes_on and not next_waits and next_fits() and not take(next_field, ARGV[7], false) then
  return { 3, tonumber(ARGV[7]) }
end
-- A `next` that has asked by itself meanwhile stands in the queue already, with a later ask, or was just given the name.
-- While others hold it and no client was told, the client asks by itself.
if goes_on and not next_waits and ARGV[9] ~= '0' and (granted or others > 0 and stay == 0) then
  -- Without memory for it, the client finds no place in the queue and asks again. No errors: the name is given already.
  local left = pcall('PTTL', KEYS[3])
  if type(left) == 'number' then
    local place = next_field .. ' ' .. ARGV[7] .. ' ' .. ARGV[9]
    pcall('RPUSH', KEYS[3], place)
    if left < tonumber(ARGV[10]) and type(pcall('PEXPIRE', KEYS[3], ARGV[10])) ~= 'number' then
      pcall('LREM', KEYS[3], 0, place) -- or it would stay for ever
    end
  end
end
if granted then
  return kept or { 2, granted }
end
if stay == 0 then
  return free(ARGV[2]) or { 1, others }
end
if not taken_out then
  take_out()
end
if all.mode ~= 'read' then
  pcall('PUBLISH', ARGV[2], '1') -- others may read now (Redisson leaves them asleep)
  wake_late_comers(ARGV[2])
else
  tell_first(KEYS[3], ARGV[3], soonest())
end
return kept or { 1, 0 }
