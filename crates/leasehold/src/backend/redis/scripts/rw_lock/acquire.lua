-- rw_lock/acquire.lua: take the name to read or to write if that can be had, else take a place in the queue.
--
-- KEYS[1] name      hash    mode -> read or write; <reader> or <writer>:write -> hold count (Redisson RReadWriteLock)
-- KEYS[2] timeouts  string  what the keys of the readers' leases begin with; <reader>:rwlock_timeout:<i> follows
-- KEYS[3] queue     list    "<field> <lease_ms> <ask>" of the waiting clients, next first
-- KEYS[4] gone      string  a tombstone's key without the lease id it ends with
-- ARGV[1] field     bytes   <client uuid>:<lease id> to read, with :write behind it to write
-- ARGV[2] lease_ms  integer at least 1; the same in every request for this lease id
-- ARGV[3] ask       integer number of this ask, from 1; 0: take no place in the queue
-- ARGV[4] keep_ms   integer how long the queue outlives its last visitor
-- ARGV[5] grants    bytes   prefix of the channels on which our clients hear that the name is theirs
-- ARGV[6] channel   bytes   where Redisson's waiters listen, and ours
--
-- Returns 1            the field holds the name for lease_ms from now
--         {1, left_ms} it held the name before, and does for left_ms from now; -1: without an end
--         {0, ttl_ms}  others hold it, or a writer waits that goes first; it is worth another look then; -1: without an end
--         {2, 0}       this lease id was given up before this request arrived
-- Error   the name is as it was, and the queue has at most a place less: a name that is held for no one is not left.
-- Retry   safe: the holder keeps its end or gets a later one (B2), a place keeps its rank and the latest ask (B3).
local field, owner = ARGV[1], owner_of(ARGV[1])

-- In this order (B3, B4): it holds; it was given up; it can be had; its place.
local is_new = call('EXISTS', KEYS[1], KEYS[3], KEYS[4] .. owner) == 0
local is_free, fits = is_new, is_new
if not is_new then
  local held, refused = hold_of(field)
  if refused then
    return refused
  elseif held and held.field == field then
    local left = lengthen(held, ARGV[2])
    return type(left) == 'number' and { 1, left } or left
  elseif is_given_up(field) then
    return { 2, 0 }
  end
  fits = not held and not is_writer(field) and may_join(ARGV[5], ARGV[6])
  local left
  if not fits then
    local found = look_briefly()
    if found.other then
      return refuse('rw_lock')
    end
    if found.mode ~= 'write' then
      for _, reader in ipairs(found.dead) do
        call('HDEL', KEYS[1], reader) -- it has died; without such the name may be free
      end
    end
    left, is_free = found.left, not found.mode
    fits = is_free
  end
  local asks = ARGV[3] ~= '0'
  -- A client that waits gives a free name to the first in the queue. (One that comes may be faster.)
  local first = is_free and asks and client_in(call('LINDEX', KEYS[3], 0) or '')
  local gives = first and first ~= client_in(field) and hears(ARGV[5] .. first)
  if fits and not gives then
    -- The place first: the queue may be of another type, or a command refused. An ask without a place may come behind one with it, and
    -- who holds the name has none (B4): its place would keep others out. It is not kept from the name by a queue that cannot be read.
    local is_list, place = asks, nil
    if not asks then
      is_list, place = _G.pcall(place_of, KEYS[3], field)
    end
    if asks or is_list and place then
      leave_queue(KEYS[3], field)
    end
  else
    if asks and not held then -- one that reads under this lease id has sent a copy that is late
      take_place(KEYS[3], field, ARGV[2], ARGV[3])
      if call('PTTL', KEYS[3]) < tonumber(ARGV[4]) then
        local ends = pcall('PEXPIRE', KEYS[3], ARGV[4])
        if type(ends) ~= 'number' then
          leave_queue(KEYS[3], field) -- or it would stay for ever
          return ends
        end
      end
    end
    if not gives then
      return { 0, left }
    end
    local given, own = give_to_next(ARGV[5]), hold_of(field)
    if own or given then
      return own and { 1, own.left } or { 0, given }
    end
    leave_queue(KEYS[3], field) -- who holds the name has none
  end
end
local refusal = take(field, ARGV[2], is_free)
if refusal then
  return refusal
end
if is_free and not is_new and not is_writer(field) then
  -- The holder before has died: no release lets in the readers that wait. From here on no error may hide that this one holds the name.
  stay = true
  _G.pcall(function() give_to_next(ARGV[5]) end)
end
return 1
