-- Renews a lock, if it is one's own.
-- KEYS lock
-- ARGV id, px
local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, 32) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0
