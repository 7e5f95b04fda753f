-- fenced_mutex/release.lua: give a lease id up for good, and the name, if it has it, to the next client in the queue.
--
-- KEYS[1] name       hash    <owner> -> hold count; its TTL is the lease (Redisson RFencedLock)
-- KEYS[2] queue      list    "<owner> <lease_ms> <ask>" of the waiting clients, next first
-- KEYS[3] gone       string  a tombstone's key without the owner it ends with
-- KEYS[4] token      string  the last token that was given or reserved
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
-- ARGV[11] token_ms  integer how long the token outlives its last use; 0: for ever
--
-- Returns {1, others}  the name is free; so many other clients were told
--         {2, ms}      given to the next client in the queue, for ms from now; it is told its tokens
--         {3, left_ms, first, count} `next` holds it with these tokens, for left_ms from now: it stays with this client, or an
--                      earlier copy found so
--         {0, 0}       the owner did not hold it
-- Error   the name is as it was: commands that may be refused (rights, a channel, memory) come before those that delete.
-- Retry   safe: a second copy finds the owner gone. It changes nothing but the tombstone and, for `next`, the tokens.
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
    local first, count = reserve(ARGV[11])
    if not first then
      return count
    end
    return { 3, call('PTTL', KEYS[1]), first, count }
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
local is_kept = goes_on and stays(ARGV[8], others, waiting)
local is_passed_on = not is_kept and is_queues_turn(others, waiting)
local first, count
if is_kept or is_passed_on then
  -- Where the server refuses that, the name is freed for all.
  first, count = reserve(ARGV[11])
end
if is_kept and first then
  take_out({ owner })
  if write(next_owner, ARGV[7]) then
    return { 3, tonumber(ARGV[7]), first, count }
  end
end

local granted, sooner
if is_passed_on and first then
  granted, sooner = give_to_next({ owner }, ARGV[3], string.format(' %.0f %d', first, count))
end
if sooner and others > waiting then
  -- Redisson's waiters, and those of the mutex, sleep by the end of before: they look, as they would after Redisson's unlock.
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
