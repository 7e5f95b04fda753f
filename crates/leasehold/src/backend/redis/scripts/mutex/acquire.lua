-- mutex/acquire.lua: take the name if it is free, else take a place in the queue.
--
-- KEYS[1] name      hash    <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- KEYS[2] gone      string  tombstone of this lease id
-- KEYS[3] queue     list    "<owner> <lease_ms> <ask>" of the waiting clients, next first
-- ARGV[1] owner     bytes   <client uuid>:<lease id>
-- ARGV[2] lease_ms  integer at least 1; the same in every request for this lease id
-- ARGV[3] ask       integer number of this ask, from 1; 0: take no place in the queue
-- ARGV[4] keep_ms   integer how long the queue outlives its last visitor
--
-- Returns {1, left_ms} the owner holds the name, for left_ms from now; -1: without an end
--         {0, ttl_ms}  another owner holds it; -1: without an end
--         {2, 0}       this lease id was given up before this request arrived
-- Error   the name is as it was, and the queue has at most a place less: no error leaves the name held without a holder.
-- Retry   safe: the holder keeps its end or gets a later one (B2), a place keeps its rank and the latest ask (B3).
local call, pcall, owner = redis.call, redis.pcall, ARGV[1]

-- The owner's place in the queue: its index and its text.
local function find_place()
  for i, place in ipairs(call('LRANGE', KEYS[3], 0, -1)) do
    if string.sub(place, 1, #owner + 1) == owner .. ' ' then
      return i - 1, place
    end
  end
end

-- In this order (B3, B4): it holds; it was given up; the name is free; its place.
local known = call('EXISTS', KEYS[1], KEYS[2])
if known > 0 then
  local ours = pcall('HEXISTS', KEYS[1], owner)
  if type(ours) ~= 'number' then
    return refuse('mutex', ours)
  end
  if ours == 1 then
    local left = call('PTTL', KEYS[1])
    if left ~= -1 and left < tonumber(ARGV[2]) then
      call('PEXPIRE', KEYS[1], ARGV[2])
      left = tonumber(ARGV[2])
    end
    return { 1, left }
  end
  local ttl = call('PTTL', KEYS[1])
  if known == 2 or ttl == -2 then
    return { 2, 0 }
  end
  if call('HEXISTS', KEYS[1], 'mode') == 1 then
    return refuse('mutex')
  end
  if ARGV[3] ~= '0' then
    local wanted = owner .. ' ' .. ARGV[2] .. ' ' .. ARGV[3]
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
  return { 0, ttl }
end
-- The place first: the queue may be of another type, or a command refused.
if ARGV[3] ~= '0' then
  local at, place = find_place()
  if at then
    call('LREM', KEYS[3], 0, place)
  end
end
call('HSET', KEYS[1], owner, 1)
local ends = pcall('PEXPIRE', KEYS[1], ARGV[2])
if type(ends) ~= 'number' then
  -- HDEL and not DEL: a user whose rights go by the type of a key may use it where it may use HSET.
  call('HDEL', KEYS[1], owner)
  return ends
end
return { 1, tonumber(ARGV[2]) }
