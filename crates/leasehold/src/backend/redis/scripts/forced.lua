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
