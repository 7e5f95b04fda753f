-- mutex/release.lua: give a lease id up for good, and the name, if it has it, to the next client in the queue.
--
-- KEYS[1] name       hash    <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- KEYS[2] queue      list    "<owner> <lease_ms> <ask>" of the waiting clients, next first
-- KEYS[3] gone       string  a tombstone's key without the owner it ends with
-- ARGV[1] owner      bytes   <client uuid>:<lease id>
-- ARGV[2] channel    bytes   where Redisson's waiters listen, and ours
-- ARGV[3] grants     bytes   prefix of the channels on which our clients hear that the name is theirs
-- ARGV[4] gone_ms    integer leave a tombstone for so long; 0: leave none
-- ARGV[5] listening  integer 1 if this client is a subscriber of the channel itself
-- ARGV[6] next       bytes   owner under which this client goes on; empty: it does not
-- ARGV[7] next_ms    integer the lease of `next`
-- ARGV[8] stays      integer the name goes to `next` at once, 1: if no other client waits; 2: if none stands in the queue
-- ARGV[9] ask        integer number of this ask of `next`, if it is to be queued when others wait; 0: it is not
-- ARGV[10] keep_ms   integer how long the queue outlives its last visitor
--
-- Returns {1, others}  the name is free; so many other clients were told
--         {2, ms}      given to the next client in the queue, for ms from now
--         {3, left_ms} `next` holds it, for left_ms from now: it stays with this client, or an earlier copy found so
--         {0, 0}       the owner did not hold it
-- Error   the name is as it was: commands that may be refused (rights, a channel, memory) come before those that delete.
-- Retry   safe: a second copy finds the owner gone. It changes nothing but the tombstone.
local owner, next_owner = ARGV[1], ARGV[6]
if ARGV[4] ~= '0' then
  pcall('SET', KEYS[3] .. owner, '1', 'PX', ARGV[4])
end
local waiting, next_waits, moved = 0, false, false
local places = call('LRANGE', KEYS[2], 0, -1)
for _, place in ipairs(places) do
  if is_place_of(place, owner) then
    call('LREM', KEYS[2], 0, place)
    moved = true
  else
    waiting = waiting + 1
    next_waits = next_waits or is_place_of(place, next_owner)
  end
end
if call('HEXISTS', KEYS[1], owner) == 0 then
  if next_owner ~= '' and call('HEXISTS', KEYS[1], next_owner) == 1 then
    return { 3, call('PTTL', KEYS[1]) }
  end
  if moved and waiting > 0 then
    tell_first(KEYS[2], ARGV[3], call('PTTL', KEYS[1]))
  end
  return { 0, 0 }
end

if waiting == 0 and next_owner == '' then
  -- No client of ours waits anywhere: Redisson's unlock, to the letter.
  local heard = call('PUBLISH', ARGV[2], '0')
  call('DEL', KEYS[1])
  return { 1, heard - ARGV[5] }
end

-- B4: a late copy of this release must not revive a `next` that was given up meanwhile.
local goes_on = next_owner ~= '' and not is_given_up(next_owner)
local others = count_others(ARGV[2], ARGV[5], waiting)
if goes_on and stays(ARGV[8], others, waiting) then
  take_out({ owner })
  if write(next_owner, ARGV[7]) then
    return { 3, tonumber(ARGV[7]) }
  end
end

local granted, sooner
if is_queues_turn(others, waiting) then
  granted, sooner = give_to_next({ owner }, ARGV[3])
end
if sooner and others > waiting then
  -- Redisson's waiters, and those of the fenced mutex, sleep by the end of before: they look, as they would after Redisson's unlock.
  pcall('PUBLISH', ARGV[2], '0')
end
-- A `next` that has asked by itself meanwhile stands in the queue already, with a later ask, or was just given the name.
if goes_on and not next_waits and ARGV[9] ~= '0' and (granted or others > 0) then
  -- Without memory for it, the client finds no place in the queue and asks again. No errors: the name is given already.
  local left = pcall('PTTL', KEYS[2])
  if type(left) == 'number' then
    local place = next_owner .. ' ' .. ARGV[7] .. ' ' .. ARGV[9]
    pcall('RPUSH', KEYS[2], place)
    if left < tonumber(ARGV[10]) and type(pcall('PEXPIRE', KEYS[2], ARGV[10])) ~= 'number' then
      pcall('LREM', KEYS[2], 0, place) -- or it would stay for ever
    end
  end
end
if granted then
  return { 2, granted }
end
return free(ARGV[2]) or { 1, others }
