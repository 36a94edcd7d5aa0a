-- Renews a lock, if it is one's own.
-- KEYS lock
-- ARGV id, px, when ("": always)
local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, 32) == ARGV[1] then
  if ARGV[3] == '' then redis.call('PEXPIRE', KEYS[1], ARGV[2]) else redis.call('PEXPIRE', KEYS[1], ARGV[2], ARGV[3]) end
  return 1
end
return 0
