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
-- Returns {1, left_ms} the field holds the name for left_ms from now; -1: without an end
--         {0, ttl_ms}  others hold it, or a writer waits that goes first; it is worth another look then; -1: without an end
--         {2, 0}       this lease id was given up before this request arrived
-- Error   the name is as it was, and the queue has at most a place less: a name that is held for no one is not left.
-- Retry   safe: the holder keeps its end or gets a later one (B2), a place keeps its rank and the latest ask (B3).
local field = ARGV[1]

-- The field's place in the queue: its index and its text. One that asks for none is not kept from the name by a queue that cannot be read.
local function find_place()
  local read = ARGV[3] == '0' and pcall or call
  for i, place in ipairs(read('LRANGE', KEYS[3], 0, -1)) do
    if string.sub(place, 1, #field + 1) == field .. ' ' then
      return i - 1, place
    end
  end
end

local found, refused = look()

-- Whether a writer waits whose client may hear that the name is its. One that hears nothing is gone: readers that stand behind it
-- have been waiting in vain.
local dead_writer = false
local function writer_waits()
  for _, place in ipairs(call('LRANGE', KEYS[3], 0, -1)) do
    local waits, client = string.match(place, '^(([^:]*):%S*:write) %d+ %d+$')
    if waits and hold_of(found, waits) then
      waits = nil -- it has the name
    end
    if waits then
      if may_hear(ARGV[5] .. client) then
        return true
      end
      call('LREM', KEYS[3], 0, place)
      dead_writer = true
    end
  end
  return false
end

if not found then
  return refused
end
-- In this order (B3, B4): it holds; it was given up; it can be had; its place.
local held = found.by[field]
if held then
  local left = lengthen(held, ARGV[2])
  return type(left) == 'number' and { 1, left } or left
end
if is_given_up(field) then
  return { 2, 0 }
end
if found.other then
  return refuse('rw_lock')
end
-- Readers that died. Without them the name may be free.
if found.mode ~= 'write' then
  for _, dead in ipairs(found.dead) do
    call('HDEL', KEYS[1], dead)
  end
end
local free = not found.mode
local fits
if free then
  fits = true
elseif is_writer(field) or found.mode ~= 'read' or hold_of(found, field) then
  fits = false -- or a late copy: the lease id reads already
else
  fits = not writer_waits()
end
if not fits then
  if ARGV[3] ~= '0' and not hold_of(found, field) then
    local wanted = field .. ' ' .. ARGV[2] .. ' ' .. ARGV[3]
    local at, place = find_place()
    if not at then
      local done = pcall('RPUSH', KEYS[3], wanted)
      if type(done) ~= 'number' then
        return done
      end
    elseif tonumber(string.match(place, '%d+$')) < tonumber(ARGV[3]) then
      call('LSET', KEYS[3], at, wanted)
    end
    if call('PTTL', KEYS[3]) < tonumber(ARGV[4]) then
      local ends = pcall('PEXPIRE', KEYS[3], ARGV[4])
      if type(ends) ~= 'number' then
        call('LREM', KEYS[3], 0, wanted) -- or it would stay for ever
        return ends
      end
    end
  end
  return { 0, found.left }
end
-- The place first: the queue may be of another type, or a command refused. An ask without a place may come behind one with it, and
-- who holds the name has none (B4): its place would keep others out.
local at, own = find_place()
if at then
  call('LREM', KEYS[3], 0, own)
end
if dead_writer then
  pcall('PUBLISH', ARGV[6], '1')
end
local refusal = take(field, ARGV[2], free)
if refusal then
  return refusal
end
if free and not is_writer(field) and call('EXISTS', KEYS[3]) == 1 then
  -- The holder before has died: no release lets in the readers that wait. From here on no error may hide that this one holds the name.
  _G.pcall(function()
    writer_waits() -- those that are dead keep readers out no longer
    leave({}, look())
    give_to_next(ARGV[5], tonumber(ARGV[2]))
  end)
end
return { 1, tonumber(ARGV[2]) }
