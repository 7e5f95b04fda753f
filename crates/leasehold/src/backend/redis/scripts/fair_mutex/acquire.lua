-- fair_mutex/acquire.lua: take the name if it is free and no other is before this owner, else take a place in the queue.
--
-- KEYS[1] name       hash    <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- KEYS[2] queue      list    the owners that wait, next first (Redisson RFairLock)
-- KEYS[3] gone       string  a tombstone's key without the owner it ends with
-- KEYS[4] timeouts   zset    <owner> -> from when on Redisson takes it for dead (Redisson RFairLock)
-- KEYS[5] places     hash    the terms of our waiters, and since when others are silent: line.lua
-- ARGV[1] channel    bytes   where Redisson's waiters listen, each behind ":" and its owner
-- ARGV[2] grants     bytes   prefix of the channels on which our clients hear that the name is theirs
-- ARGV[3] dead_ms    integer a waiter that is not heard for so long is dead
-- ARGV[4] owner      bytes   <client uuid>:<lease id>
-- ARGV[5] lease_ms   integer at least 1; the same in every request for this lease id
-- ARGV[6] ask        integer number of this ask, from 1; 0: take no place in the queue
-- ARGV[7] keep_ms    integer how long the queue outlives its last visitor, if none of Redisson's waits in it
-- ARGV[8] alive_ms   integer this client keeps its places alive within this time
--
-- Returns {1, left_ms} the owner holds the name, for left_ms from now; -1: without an end
--         {0, ttl_ms}  another owner holds it, or is before this one; -1: without an end
--         {3, ttl_ms}  as 0; and clients of Redisson's hold it or are before this one, which tell only the next
--         {2, 0}       this lease id was given up before this request arrived
-- Error   the name is as it was, or given to the next in the queue: no error leaves it held without a holder.
-- Retry   safe: the holder keeps its end or gets a later one (B2), a place keeps its rank and the latest ask (B3).
local owner = ARGV[4]

-- In this order (B3, B4): it holds; it was given up; the name is free, and this owner next; its place.
local holders = pcall('HKEYS', KEYS[1])
if holders.err then
  return refuse('fair_mutex', holders)
end
for _, holder in ipairs(holders) do
  if holder == owner then
    local left = call('PTTL', KEYS[1])
    if left ~= -1 and left < tonumber(ARGV[5]) then
      call('PEXPIRE', KEYS[1], ARGV[5])
      left = tonumber(ARGV[5])
    end
    return { 1, left }
  end
end
if is_given_up(owner) then
  return { 2, 0 }
end
local ttl, foreign
local holder = holders[1]
if holder then
  if call('HEXISTS', KEYS[1], 'mode') == 1 then
    return refuse('fair_mutex')
  end
  ttl = call('PTTL', KEYS[1])
  foreign = is_foreign(holder)
else
  while not ttl do
    local first, place, left = next_in_line(owner)
    if not first or first == owner then
      -- The place first: the queue may be of another type, or a command refused.
      if first then
        leave(owner)
      end
      call('HSET', KEYS[1], owner, 1)
      local ends = pcall('PEXPIRE', KEYS[1], ARGV[5])
      if type(ends) ~= 'number' then
        call('HDEL', KEYS[1], owner)
        return ends
      end
      return { 1, tonumber(ARGV[5]) }
    end
    local ours
    ttl, ours = pass_to(first, place, left)
    foreign = ttl and not ours
  end
end
if ARGV[6] == '0' then
  return { foreign and 3 or 0, ttl }
end

local place = call('HGET', KEYS[5], owner)
local deadline = call('ZSCORE', KEYS[4], owner)
local ask, before = string.match(place or '', '^%d+ (%d+) (%d)$')
if not deadline or not ask then
  -- The one before it tells whether Redisson's are before it, and when Redisson takes that one for dead.
  local last = call('LINDEX', KEYS[2], -1)
  local latest = last and last ~= owner and tonumber(call('ZSCORE', KEYS[4], last) or now)
  before = last and '1' or '0'
  if latest then
    before = string.match(call('HGET', KEYS[5], last) or '', ' (%d)$') or '1'
  end
  local alive_ms = (foreign or before == '1') and dead_ms or tonumber(ARGV[8]) + dead_ms
  if latest and call('HEXISTS', KEYS[5], last) == 0 then
    deadline = deadline_of(alive_ms, 1, latest)
  else
    deadline = string.format('%d', math.max(now + alive_ms, latest or 0))
  end
  call('ZADD', KEYS[4], deadline, owner)
  if call('HEXISTS', KEYS[5], owner) == 1 or last == owner then
    call('LREM', KEYS[2], 0, owner)
  end
  call('RPUSH', KEYS[2], owner)
elseif before == '0' and tonumber(deadline) < now + tonumber(ARGV[8]) and not foreign then
  call('ZADD', KEYS[4], string.format('%d', now + tonumber(ARGV[8]) + dead_ms), owner)
end
if not ask or tonumber(ask) < tonumber(ARGV[6]) then
  call('HSET', KEYS[5], owner, ARGV[5] .. ' ' .. ARGV[6] .. ' ' .. before)
end
foreign = foreign or before == '1'
keep_queue(ARGV[7], foreign)
return { foreign and 3 or 0, ttl }
