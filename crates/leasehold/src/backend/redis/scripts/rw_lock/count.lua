-- rw_lock/count.lua: write how often the owner has entered, for those who look, and find out whether others wait.
--
-- KEYS[1] name       hash    mode -> read or write; <reader> or <writer>:write -> hold count (Redisson RReadWriteLock)
-- KEYS[2] timeouts   string  what the keys of the readers' leases begin with; <reader>:rwlock_timeout:<i> follows
-- KEYS[3] queue      list    "<field> <lease_ms> <ask>" of the waiting clients, next first
-- ARGV[1] field      bytes   <client uuid>:<lease id> of a reader, <client uuid>:<lease id>:write of a writer
-- ARGV[2] holds      integer at least 1
-- ARGV[3] channel    bytes   where Redisson's waiters listen, and ours
-- ARGV[4] grants     bytes   prefix of the channels on which our clients hear that the name is theirs
-- ARGV[5] listening  integer 1 if this client is a subscriber of the channel itself
-- ARGV[6] reads      integer so many of the writer's holds only read
--
-- Returns 1 written; 2 written, and a client waits that may not hold the name beside this reader; 0 not ours
-- Retry   safe: the count is absolute.
local call, pcall, field = redis.call, redis.pcall, ARGV[1]
local writes = string.sub(field, -6) == ':write'
if call('HEXISTS', KEYS[1], field) == 0 then
  -- It was downgraded, or is about to be.
  local owner = string.match(field, '^[^:]*:%d+') or field
  field = nil
  for _, form in ipairs({ '', ':write' }) do
    if call('HEXISTS', KEYS[1], owner .. form) == 1 then
      field = owner .. form
    end
  end
  if not field then
    return 0
  end
end
if string.sub(field, -6) ~= ':write' and call('EXISTS', KEYS[2] .. field .. ':rwlock_timeout:1') == 0 then
  return 0
end
call('HSET', KEYS[1], field, ARGV[2])
if writes and field == ARGV[1] then
  -- Redisson's writer has a field for its reads. To us it is a reader whose lease is over, which holds nothing.
  local reader = string.sub(field, 1, -7)
  if ARGV[6] == '0' then
    call('HDEL', KEYS[1], reader)
  else
    call('HSET', KEYS[1], reader, ARGV[6])
  end
end
if writes then
  return 1
end
local ours = string.match(field, '^[^:]*')
local clients, in_queue = {}, 0
for _, place in ipairs(call('LRANGE', KEYS[3], 0, -1)) do
  local client, waits = string.match(place, '^([^:]*):(%S*) ')
  local heard = client and pcall('PUBSUB', 'NUMSUB', ARGV[4] .. client)
  -- One that hears nothing is gone.
  if heard and (heard.err or heard[2] ~= 0) then
    if string.sub(waits, -6) == ':write' then
      return 2
    end
    if client ~= ours and not clients[client] then
      clients[client] = true
      in_queue = in_queue + 1
    end
  end
end
-- A client that listens and has no place is Redisson's, and may want to write. Valkey 9.1 miscounts some numbers: then one
-- might, as where PUBSUB is not permitted.
local heard = pcall('PUBSUB', 'NUMSUB', ARGV[3])
if heard.err or heard[2] < 0 or heard[2] > 1000000 or heard[2] - ARGV[5] > in_queue then
  return 2
end
return 1
