-- forced.lua: who is told that a lock was taken by force; written behind waiting.lua, in front of the scripts that do that.

-- Tells the clients of these owners, if they listen, that the lock was taken from them by force.
local function tell_holders(grants, owners)
  for _, owner in ipairs(owners) do
    local client = client_in(owner)
    if client then
      pcall('PUBLISH', grants .. client, 'forced')
    end
  end
end

-- Whether a lock is still held as it was seen: by these owners, none of which was renewed since. Behind the other arguments, from
-- `first`, stand those that were seen, each with what may be left of its lease, -1 without an end; none: all holders are meant.
-- `left_of(i)`: what is left of the lease of owner i.
local function is_as_seen(first, owners, left_of)
  local most = {}
  for i = first, #ARGV, 2 do
    most[ARGV[i]] = tonumber(ARGV[i + 1])
  end
  if #ARGV >= first and #ARGV ~= first - 1 + 2 * #owners then
    return false
  end
  for i, owner in ipairs(#ARGV >= first and owners or {}) do
    local seen, left = most[owner], left_of(i)
    if not seen or (seen == -1) ~= (left == -1) or left > seen then
      return false
    end
  end
  return true
end
