-- semaphore/pool.lua: the part that the scripts of this folder share, written in front of each of them.
--
-- KEYS[1] name  string  how many permits are free (Redisson RSemaphore)
-- KEYS[2] out   zset    `<client uuid>:<lease id> <count>` of each hold of ours -> until when it is remembered, in ms
--
-- Redisson's wire knows a number and no holders. What is remembered here makes a copy of a request harmless: permits are taken
-- once, and given back once. A hold that is forgotten gives nothing back.
local call, pcall = redis.call, redis.pcall
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function is_error(reply)
  return type(reply) == 'table' and reply.err ~= nil
end

-- Until when a hold is remembered; nil if it is not there.
local function remembered(out, hold)
  local ends_at = tonumber(call('ZSCORE', out, hold) or 0)
  return ends_at > now and ends_at or nil
end

-- All holds are remembered for `keep` ms at least, and for as long as before: `ttl` (B2).
local function outlast(out, ttl, keep)
  if ttl < keep and keep > 0 then
    pcall('PEXPIRE', out, keep)
  end
end

-- Remembers a hold that is there for `keep` ms more at least, and the others as long as before (B2). For how long then.
local function keep_on(out, hold, ends_at, keep)
  local ttl = call('PTTL', out)
  if ends_at < now + keep then
    ends_at = now + keep
    call('ZADD', out, 'XX', ends_at, hold)
  end
  outlast(out, ttl, keep)
  return ends_at - now
end

local function count_of(hold)
  return tonumber(string.match(hold, ' (%d+)$'))
end

-- A write of nothing: to a script that has begun to write, a full server refuses no command. So permits can be given back
-- where there is no memory for INCRBY.
local function begin_to_write(out)
  pcall('ZREM', out, '')
end

-- Whether the user has the right to do this. Redis 6.2 cannot be asked, and refuses it when it is done.
local function may(...)
  return not redis.acl_check_cmd or redis.acl_check_cmd(...)
end

local function tell(channel, number, before)
  return pcall('PUBLISH', channel, (before or '') .. string.format('%d', number))
end

-- How many permits are free; nil and an error if the name is no semaphore of this kind.
local function count_free()
  local free = pcall('GET', KEYS[1])
  if is_error(free) then
    return nil, refuse('semaphore', free)
  end
  free = tonumber(free or '0')
  if not free then
    return nil, refuse('semaphore')
  end
  local other = refuse_other_number('semaphore')
  if other then
    return nil, other
  end
  return free
end

-- How many of so many permits are free: those that are out are not, after another client has deleted the number.
local function all_but_those_out(permits)
  local out = call('ZRANGEBYSCORE', KEYS[2], '(' .. string.format('%d', now), '+inf')
  for _, hold in ipairs(out) do
    permits = permits - count_of(hold)
  end
  return permits
end

-- Gives back so many permits, unless the semaphore was deleted meanwhile: a number is made by no release. An error, if that
-- is refused: then all is as it was.
local function give_back(count, channel, before)
  if call('EXISTS', KEYS[1]) == 0 then
    return nil
  end
  begin_to_write(KEYS[2])
  local free = call('INCRBY', KEYS[1], count)
  -- Redisson cannot read a negative number, and there is nothing to be had at 0.
  local done = free > 0 and tell(channel, free, before)
  if is_error(done) then
    call('INCRBY', KEYS[1], -count)
    return done
  end
end
