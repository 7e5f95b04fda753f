-- rw_lock/acquire.lua: take the name to read or to write if that can be had, else take a place in the queue.
--
-- KEYS[1] name      hash    mode -> read or write; <reader> or <writer>:write -> hold count (Redisson RReadWriteLock)
-- KEYS[2] timeouts  string  what the keys of the readers' leases begin with; <reader>:rwlock_timeout:<i> follows
-- KEYS[3] queue     list    "<field> <lease_ms> <ask>" of the waiting clients, next first
-- KEYS[4] gone      string  tombstone of this lease id
-- ARGV[1] field     bytes   <client uuid>:<lease id> to read, <client uuid>:<lease id>:write to write
-- ARGV[2] lease_ms  integer at least 1; the same in every request for this lease id
-- ARGV[3] ask       integer number of this ask, from 1; 0: take no place in the queue
-- ARGV[4] keep_ms   integer how long the queue outlives its last visitor
-- ARGV[5] grants    bytes   prefix of the channels on which our clients hear that the name is theirs
-- ARGV[6] channel   bytes   where Redisson's waiters listen, and ours
--
-- Returns {1, left_ms} the field holds the name, for left_ms from now; -1: without an end
--         {0, ttl_ms}  others hold it, or a writer waits that goes first; -1: without an end
--         {2, 0}       this lease id was given up before this request arrived
-- Error   the name is as it was, and the queue has at most a place less: a name that is held for no one is not left.
-- Retry   safe: the holder keeps its end or gets a later one (B2), a place keeps its rank and the latest ask (B3).
local field = ARGV[1]

-- The field's place in the queue: its index and its text.
local function find_place()
  for i, place in ipairs(call('LRANGE', KEYS[3], 0, -1)) do
    if string.sub(place, 1, #field + 1) == field .. ' ' then
      return i - 1, place
    end
  end
end

-- Whether a writer waits whose client may hear that the name is its. One that hears nothing is gone: readers that stand behind
-- it have been waiting in vain.
local dead_writer = false
local function writer_waits()
  for _, place in ipairs(call('LRANGE', KEYS[3], 0, -1)) do
    local client = string.match(place, '^([^:]*):%S*:write %d+ %d+$')
    if client then
      local heard = pcall('PUBSUB', 'NUMSUB', ARGV[5] .. client)
      if heard.err or heard[2] ~= 0 then
        return true
      end
      call('LREM', KEYS[3], 0, place)
      dead_writer = true
    end
  end
  return false
end

local found, refused = look()
if not found then
  return refused
end
-- In this order (B3, B4): it holds; it was given up; it can be had; its place.
local held = found.by[field]
if held then
  local left = lengthen(field, held.left, ARGV[2])
  return type(left) == 'number' and { 1, left } or left
end
if call('EXISTS', KEYS[4]) == 1 then
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
if not free and (is_writer(field) or found.mode ~= 'read' or writer_waits()) then
  if ARGV[3] ~= '0' then
    local wanted = field .. ' ' .. ARGV[2] .. ' ' .. ARGV[3]
    local at, place = find_place()
    if not at then
      call('RPUSH', KEYS[3], wanted)
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
-- The place first: the queue may be of another type, or a command refused.
if ARGV[3] ~= '0' then
  local at, place = find_place()
  if at then
    call('LREM', KEYS[3], 0, place)
  end
end
if dead_writer then
  pcall('PUBLISH', ARGV[6], '1')
end
return take(field, ARGV[2], free) or { 1, tonumber(ARGV[2]) }
