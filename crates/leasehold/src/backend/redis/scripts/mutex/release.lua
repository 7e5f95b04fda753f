-- mutex/release.lua: give the name back, to the next client in line if there is one.
--
-- KEYS[1] name       hash    <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- KEYS[2] queue      list    "<owner> <lease_ms>" of the clients in line, next first
-- KEYS[3] gone       string  tombstone of this lease
-- ARGV[1] owner      bytes   <client uuid>:<lease id>
-- ARGV[2] channel    bytes   where Redisson's waiters listen, and ours
-- ARGV[3] grants     bytes   prefix of the channels on which our clients hear that it is their turn
-- ARGV[4] gone_ms    integer leave a tombstone for so long; 0: leave none
-- ARGV[5] listening  integer 1 if this client is a subscriber of the channel itself
-- ARGV[6] next       bytes   owner under which this client goes on; empty: it does not
-- ARGV[7] next_ms    integer its lease; 0: do not keep the name, even if nobody else waits
-- ARGV[8] place      bytes   our entry for the queue, if others wait; empty: do not get in line
-- ARGV[9] keep_ms    integer how long the queue outlives its last visitor
--
-- Returns {1, others}  freed; so many other clients were told
--         {2, ms}      given to the next client in line, for ms from now
--         {3, 0}       nobody else waits: ours under `next`, for next_ms from now
--         {0, 0}       it was not ours
-- Error   nothing was changed: what may be refused (a channel, memory) comes before what deletes.
-- Retry   safe: a second copy finds the owner gone. It answers 3 while `next` holds the name, else 0.
if ARGV[4] ~= '0' then
  redis.pcall('SET', KEYS[3], '1', 'PX', ARGV[4])
end
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  if ARGV[6] ~= '' and redis.call('HEXISTS', KEYS[1], ARGV[6]) == 1 then
    return { 3, 0 }
  end
  return { 0, 0 }
end

local waiting = redis.call('LLEN', KEYS[2])
if waiting == 0 and ARGV[6] == '' then
  -- Nobody of ours waits anywhere: Redisson's unlock, to the letter.
  local heard = redis.call('PUBLISH', ARGV[2], '0')
  redis.call('DEL', KEYS[1])
  return { 1, heard - ARGV[5] }
end

-- A second owner in the hash, until one of the two is taken out. False if the server has no memory for it.
local function write(owner)
  return type(redis.pcall('HSET', KEYS[1], owner, 1)) == 'number'
end

-- The owner written above instead of us.
local function pass_on(lease_ms)
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('PEXPIRE', KEYS[1], lease_ms)
end

-- Where PUBSUB is not permitted, somebody might be waiting.
local heard = redis.pcall('PUBSUB', 'NUMSUB', ARGV[2])
local others = heard.err and 1 or heard[2] - ARGV[5]
if waiting == 0 and others <= 0 and ARGV[7] ~= '0' and write(ARGV[6]) then
  pass_on(ARGV[7])
  return { 3, 0 }
end

local granted
if others <= waiting then
  -- Everybody who waits is in our line. (If not, Redisson waits too, and all race for the name.)
  local place = redis.call('LPOP', KEYS[2])
  while place and not granted do
    local owner, client, lease_ms = string.match(place, '^(([^:]*):%S+) (%d+)$')
    if not owner or not write(owner) then
      break
    end
    -- It must be the holder before it is told so. If nobody hears it, that client is gone.
    local told = redis.pcall('PUBLISH', ARGV[3] .. client, owner)
    if type(told) == 'number' and told > 0 then
      pass_on(lease_ms)
      granted = tonumber(lease_ms)
    else
      redis.call('HDEL', KEYS[1], owner)
      place = redis.call('LPOP', KEYS[2])
    end
  end
end
if ARGV[8] ~= '' and (granted or others > 0) then
  -- Without memory for it, the client finds no place in line and asks again.
  redis.pcall('RPUSH', KEYS[2], ARGV[8])
  redis.call('PEXPIRE', KEYS[2], ARGV[9])
end
if granted then
  return { 2, granted }
end
redis.call('PUBLISH', ARGV[2], '0')
redis.call('DEL', KEYS[1])
return { 1, others }
