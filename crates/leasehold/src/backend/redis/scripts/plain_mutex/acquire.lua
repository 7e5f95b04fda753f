-- plain_mutex/acquire.lua: take the name if it is free, else take a place in the queue.
--
-- KEYS[1] name      string  <owner>, or another library's token; its TTL is the lease
-- KEYS[2] gone      string  tombstone of this lease id
-- KEYS[3] queue     list    "<owner> <lease_ms> <ask>" of the waiting clients, next first
-- ARGV[1] owner     bytes   <client uuid>:<lease id>
-- ARGV[2] lease_ms  integer at least 1; the same in every request for this lease id
-- ARGV[3] ask       integer number of this ask, from 1; 0: take no place in the queue
-- ARGV[4] keep_ms   integer how long the queue outlives its last visitor
--
-- Returns {1, left_ms} the owner holds the name, for left_ms from now
--         {0, ttl_ms}  another owner of ours holds it; -1: without an end
--         {3, ttl_ms}  a holder that is none of ours: it tells no client when it leaves; -1: without an end
--         {2, 0}       this lease id was given up before this request arrived
-- Error   the name is as it was, and the queue has at most a place less.
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
if call('EXISTS', KEYS[1], KEYS[2]) > 0 then
  local holder = pcall('GET', KEYS[1])
  if type(holder) == 'table' then
    return refuse('plain_mutex', holder)
  end
  local ttl = call('PTTL', KEYS[1])
  if holder == owner then
    if ttl ~= -1 and ttl < tonumber(ARGV[2]) then
      call('PEXPIRE', KEYS[1], ARGV[2])
      ttl = tonumber(ARGV[2])
    end
    return { 1, ttl }
  end
  if not holder or call('EXISTS', KEYS[2]) == 1 then
    return { 2, 0 }
  end
  if is_permits(holder) then
    return refuse('plain_mutex')
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
  local is_ours = string.find(holder, '^%x+%-%x+%-%x+%-%x+%-%x+:%d+$')
  return { is_ours and 0 or 3, ttl }
end
-- The place first: the queue may be of another type, or a command refused.
if ARGV[3] ~= '0' then
  local at, place = find_place()
  if at then
    call('LREM', KEYS[3], 0, place)
  end
end
call('SET', KEYS[1], owner, 'NX', 'PX', ARGV[2])
return { 1, tonumber(ARGV[2]) }
