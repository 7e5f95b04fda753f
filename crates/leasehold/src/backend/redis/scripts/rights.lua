-- rights.lua: which commands the user of this connection may not call. It leaves no entry in `ACL LOG`.
--
-- ARGV[1] key       bytes  a key that the user needs
-- ARGV[2] commands  bytes  their names, with spaces between them
--
-- Returns those that are refused. None if that cannot be told: the user may not touch the key, or the server is older than Redis 7.0.
-- Error   nothing is changed.
-- Retry   safe: it only asks.
local key, refused = ARGV[1], {}
-- The key stands for every argument: the server looks for the keys among them, and does not count them.
local function may(command)
  return redis.acl_check_cmd(command, key, key, key, key, key)
end

if redis.acl_check_cmd and may('EXISTS') then
  for command in string.gmatch(ARGV[2], '%u+') do
    if not may(command) then
      refused[#refused + 1] = command
    end
  end
end
return refused
