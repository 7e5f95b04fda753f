-- fenced_store/delete_field.lua: delete a field of a hash.
--
-- KEYS[1] fence    string  the newest fencing token that was seen in a write
-- KEYS[2] key      hash    the data
-- ARGV[1] token    integer the writer's token
-- ARGV[2] keep_ms  integer how long the fence outlives its last write; 0: for ever
-- ARGV[3] field    bytes
--
-- Returns {1, 0}       written
--         {0, newest}  refused: a newer token was seen
-- Error   the data is as it was; the fence may have seen the token.
-- Retry   safe: the same write under the same token again, and none under an older one than was seen.
local goes, answer = passes(ARGV[1], ARGV[2])
if not goes then
  return answer
end
redis.call('HDEL', KEYS[2], ARGV[3])
return { 1, 0 }
