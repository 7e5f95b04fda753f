-- find.lua: read one page of the server's keys, and name the locks among them.
--
-- ARGV[1] cursor   integer  where the page begins: 0, then what the page before returned
-- ARGV[2] pattern  bytes    which keys, as SCAN reads it
-- ARGV[3] count    integer  look at about so many keys
--
-- Returns {cursor, keys, kind, name, kind, name, ...}; cursor "0": this was the last page; keys: with the first page how many the server has,
--         else empty, and where it does not tell. What is a lock stands in docs/keys.md. Keys that this
--         user may not read are passed over
-- Retry   safe: it only reads.
local call, pcall, find = redis.call, redis.pcall, string.find

local function is_error(reply)
  return type(reply) == 'table' and reply.err ~= nil
end

-- Whether a refusal is about one key, and not about a command.
local function is_of_another_tenant(refusal)
  return find(refusal.err, 'access a key', 1, true) or find(refusal.err, 'of the keys', 1, true)
end

-- Keys that stand beside a name.
local function is_beside(key)
  return find(key, '^leasehold:') or find(key, '^redisson_')
end

local function braced(name)
  return find(name, '{', 1, true) and name or '{' .. name .. '}'
end

-- `<client uuid>:<number>`, and words behind it: `:write`, the id of a transaction of Redisson's.
local function is_owner(field)
  local client, more = string.match(field, '^([%x-]+):%-?%d+(.*)$')
  return client and #client == 36 and (more == '' or find(more, '^:[%w:-]+$'))
end

-- The kind of a hash whose fields are owners; nil: it is none.
local function kind_of_hash(name)
  local size = call('HLEN', name)
  local is_alone = size == 1
  if not is_alone then
    local mode = call('HSTRLEN', name, 'mode') <= 5 and call('HGET', name, 'mode')
    if mode ~= 'read' and mode ~= 'write' then
      return nil
    end
  end
  -- The server serves no other client meanwhile: of a hash a few fields are read, and no values, which may be long in one of data.
  local fields, owners = call('HRANDFIELD', name, 8), 0
  for _, field in ipairs(fields) do
    if is_owner(field) then
      owners = owners + 1
    elseif is_alone or field ~= 'mode' then
      return nil
    end
  end
  if owners == 0 then
    return nil
  elseif not is_alone then
    return 'rw_lock'
  elseif pcall('EXISTS', 'redisson_lock_token:' .. braced(name)) == 1 then
    return 'fenced_mutex'
  elseif pcall('EXISTS', 'redisson_lock_queue:' .. braced(name)) == 1 then
    return 'fair_mutex'
  end
  return 'mutex'
end

-- Whether a string is what libraries write into a lock: random bytes in hex, in base64 or as a uuid, an owner of ours, or ShedLock's words.
local function is_token(value)
  if is_owner(value) or find(value, '^ADDED:') then
    return true
  end
  return #value >= 16 and find(value, '^[%w+/=_-]+$') and find(value, '%d') and find(value, '%a')
end

local found = {}
local function add(kind, name)
  found[#found + 1] = kind
  found[#found + 1] = name
end

local page = pcall('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
if is_error(page) then
  return page
end
local keys = ARGV[1] == '0' and pcall('DBSIZE')
found[1], found[2] = page[1], type(keys) == 'number' and tostring(keys) or ''
local numbers = {}
for _, name in ipairs(page[2]) do
  if not is_beside(name) then
    local is = pcall('TYPE', name)
    if is_error(is) then
      if not is_of_another_tenant(is) then
        return is
      end
    elseif is.ok == 'hash' then
      local kind = kind_of_hash(name)
      if kind then
        add(kind, name)
      end
    elseif is.ok == 'string' then
      -- Longer than any token.
      local value = call('GETRANGE', name, 0, 128)
      if #value < 12 and find(value, '^%-?%d+$') then
        numbers[#numbers + 1] = name
      elseif #value <= 128 and is_token(value) and call('PTTL', name) >= 0 then
        add('plain_mutex', name)
      end
    end
  end
end

local time = call('TIME')
local after = string.format('(%d', time[1] * 1000 + math.floor(time[2] / 1000))
local function is_out(key)
  local one = pcall('ZRANGEBYSCORE', key, after, '+inf', 'LIMIT', 0, 1)
  return not is_error(one) and #one > 0
end

-- A number by itself says nothing. Permits that are out do, and clients that wait.
local STEP = 500
for from = 1, #numbers, STEP do
  local outs, channels = {}, {}
  for i = from, math.min(from + STEP - 1, #numbers) do
    local name = numbers[i]
    local key = braced(name)
    outs[#outs + 1] = key .. ':timeout'
    channels[#channels + 1] = 'redisson_countdownlatch__channel__{' .. name .. '}'
    channels[#channels + 1] = 'redisson_sc:' .. key
  end
  local some, heard = pcall('EXISTS', unpack(outs)) ~= 0, pcall('PUBSUB', 'NUMSUB', unpack(channels))
  for i, out in ipairs(outs) do
    local name = numbers[from + i - 1]
    -- Of none, where the server does not tell. A number that it miscounts (Valkey 9.1) is one.
    local waits, races = heard[4 * i - 2] or 0, heard[4 * i] or 0
    if some and is_out(out) then
      add('leased_semaphore', name)
    elseif waits ~= 0 then
      add('latch', name)
    elseif races ~= 0 then
      add('semaphore', name)
    end
  end
end
return found
