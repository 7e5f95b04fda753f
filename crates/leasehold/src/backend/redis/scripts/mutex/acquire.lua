-- mutex/acquire.lua: take the name if it is free, else get in line.
--
-- KEYS[1] name      hash    <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- KEYS[2] gone      string  there if this lease was given up
-- KEYS[3] queue     list    "<owner> <lease_ms>" of the clients in line, next first
-- ARGV[1] owner     bytes   <client uuid>:<lease id>
-- ARGV[2] lease_ms  integer at least 1
-- ARGV[3] place     bytes   our entry for the queue; empty: do not get in line
-- ARGV[4] keep_ms   integer how long the queue outlives its last visitor
--
-- Returns {1, 0}       granted, for lease_ms from now
--         {0, ttl_ms}  held by somebody else; -1: without an end
--         {2, 0}       this lease was given up before this request arrived
-- Retry   safe: whoever holds the name is granted it again, for lease_ms from now.
if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then
  if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return { 1, 0 }
  end
  local ttl = redis.call('PTTL', KEYS[1])
  if ttl ~= -2 then
    if ARGV[3] ~= '' then
      if not redis.call('LPOS', KEYS[3], ARGV[3]) then
        redis.call('RPUSH', KEYS[3], ARGV[3])
      end
      redis.call('PEXPIRE', KEYS[3], ARGV[4])
    end
    return { 0, ttl }
  end
  return { 2, 0 }
end
redis.call('HSET', KEYS[1], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
if ARGV[3] ~= '' then
  redis.call('LREM', KEYS[3], 0, ARGV[3])
end
return { 1, 0 }
