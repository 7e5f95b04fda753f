-- leased_semaphore/pool.lua: the part that the scripts of this folder share, written in front of each of them.
--
-- KEYS[1] name  string  how many permits are free (Redisson RPermitExpirableSemaphore)
-- KEYS[2] out   zset    the id of each permit that is out -> its end in ms; {name}:timeout
--
-- Every change moves permits by INCRBY first: if what follows is refused, the same command takes that back. So a refusal
-- neither loses a permit nor counts one twice.
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Redisson's end of a permit that has none.
local NEVER = 922337203685477

-- The id of permit `i`, from 0, of a hold: its first id with the number in bytes 7 and 8, high byte first; of 32 bytes, if that is
-- written in hex.
local function permit(first, i)
  if #first == 32 then
    return string.sub(first, 1, 12) .. string.format('%04x', i) .. string.sub(first, 17)
  end
  return string.sub(first, 1, 6) .. string.char(math.floor(i / 256), i % 256) .. string.sub(first, 9)
end

-- The ends of the permits of a hold: `ends[i]`, nil for one that is not there or over; how many there are; the earliest.
local function look(out, first, count)
  local ends, there, earliest = {}, 0, nil
  for i = 0, count - 1 do
    local ends_at = tonumber(call('ZSCORE', out, permit(first, i)) or 0)
    if ends_at > now then
      ends[i], there = ends_at, there + 1
      earliest = math.min(earliest or ends_at, ends_at)
    end
  end
  return ends, there, earliest
end

-- A write of nothing: to a script that has begun to write, a full server refuses no command. So holds can be extended, and
-- permits given back, where there is no memory for ZADD and INCRBY.
local function begin_to_write(out)
  pcall('ZREM', out, '')
end

-- Lets a hold that is there end at `till` at least, never sooner than it does (B2). Returns what is left of it: the whole
-- semaphore may have an end too (Redisson's `expire`).
local function move_forward(out, first, ends, count, earliest, till)
  if earliest < till then
    begin_to_write(out)
    for i = 0, count - 1 do
      if ends[i] < till then
        call('ZADD', out, 'XX', till, permit(first, i))
      end
    end
    earliest = till
  end
  local ttl = call('PTTL', out)
  return ttl >= 0 and math.min(ttl, earliest - now) or earliest - now
end

-- Lets there be so many permits, free and out together. Those that are out are not free after another client has deleted the
-- number. (Redisson asks for that only if it is there.) How many are free; nil and an error if that is refused: then all is as it was.
local function set_permits(permits, free, channel)
  local more = permits - free - call('ZCARD', KEYS[2])
  -- Before what changes. Redisson cannot read a negative number.
  local done = permits > 0 and tell(channel, permits)
  if is_error(done) then
    return nil, done
  end
  if more ~= 0 or call('EXISTS', KEYS[1]) == 0 then
    call('INCRBY', KEYS[1], more)
  end
  return free + more
end

-- Gives the permits back whose time is over, as each step of Redisson's does. How many are free then; nil and an error if
-- that is refused: then all is as it was.
local function reclaim(channel)
  local free, refused = read_number('leased_semaphore')
  if refused then
    return nil, refused
  end
  local over = pcall('ZCOUNT', KEYS[2], 0, now)
  if is_error(over) then
    return nil, refuse('leased_semaphore', over)
  end
  if over == 0 then
    return free
  end
  begin_to_write(KEYS[2])
  free = call('INCRBY', KEYS[1], over)
  local done = pcall('ZREMRANGEBYSCORE', KEYS[2], 0, now)
  if is_error(done) then
    call('INCRBY', KEYS[1], -over)
    return nil, done
  end
  if free > 0 then
    tell(channel, free) -- who does not hear it looks by itself at the end of a permit
  end
  return free
end

-- Gives back so many permits of a hold that are there, and says `message` (by default how many are free then), behind
-- `before`. How many are free; nil and an error if that is refused: then all is as it was.
local function give_back(first, ends, count, there, channel, message, before)
  begin_to_write(KEYS[2])
  local free = call('INCRBY', KEYS[1], there)
  -- Before what cannot be taken back. Redisson cannot read a negative number, and there is nothing to be had at 0.
  local done = free > 0 and tell(channel, message or free, before)
  for i = 0, count - 1 do
    if ends[i] and not is_error(done) then
      done = pcall('ZREM', KEYS[2], permit(first, i))
    end
  end
  if is_error(done) then
    call('INCRBY', KEYS[1], -there)
    return nil, done
  end
  return free
end
