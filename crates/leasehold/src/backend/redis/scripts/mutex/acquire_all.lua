-- mutex/acquire_all.lua: take several different names, all of them or none.
--
-- n names: the first half of KEYS are the names, the second half what belongs to each, in the same order.
-- KEYS[i]       name      hash    <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- KEYS[n + i]   gone      string  tombstone of the lease id that asks for it
-- ARGV[2i - 1]  owner     bytes   <client uuid>:<lease id>
-- ARGV[2i]      lease_ms  integer at least 1; the same in every request for this lease id
--
-- Returns {1, left_ms, ...} each owner holds its name, for left_ms from now; -1: without an end
--         {0, i}            none was taken by this request: another owner holds name i, or its lease id was given up before
-- Error   each name is as it was: what was taken here is given back in the same step.
-- Retry   safe: a holder keeps its end or gets a later one (B2), and what an earlier copy took is never given back here.
local call, pcall = redis.call, redis.pcall
local count = #KEYS / 2

-- In this order (B4): it holds; it was given up; the name is free.
local ours = {}
if call('EXISTS', unpack(KEYS)) > 0 then
  for i = 1, count do
    if call('EXISTS', KEYS[i]) == 1 then
      local held = pcall('HEXISTS', KEYS[i], ARGV[2 * i - 1])
      if type(held) ~= 'number' then
        return held
      end
      if held == 0 then
        if call('HEXISTS', KEYS[i], 'mode') == 1 then
          return redis.error_reply('WRONGTYPE the name is held as a rw_lock, and not as a mutex')
        end
        return { 0, i }
      end
      ours[i] = true
    elseif call('EXISTS', KEYS[count + i]) == 1 then
      return { 0, i }
    end
  end
end

local reply = { 1 }
for i = 1, count do
  local lease_ms = tonumber(ARGV[2 * i])
  local left = ours[i] and call('PTTL', KEYS[i]) or 0
  local done = 1
  if not ours[i] then
    done = pcall('HSET', KEYS[i], ARGV[2 * i - 1], 1)
  end
  if type(done) == 'number' and left ~= -1 and left < lease_ms then
    done = pcall('PEXPIRE', KEYS[i], ARGV[2 * i])
    left = lease_ms
  end
  if type(done) ~= 'number' then
    for taken = 1, i do
      if not ours[taken] then
        pcall('HDEL', KEYS[taken], ARGV[2 * taken - 1])
      end
    end
    return done
  end
  reply[i + 1] = left
end
return reply
