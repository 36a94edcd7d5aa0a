-- Gives a lock back, if it is one's own.
-- KEYS lock, tombstone, queue
-- ARGV id, tombstone ms (0: none)
if ARGV[2] ~= '0' then redis.call('SET', KEYS[2], '1', 'PX', ARGV[2]) end
redis.call('LREM', KEYS[3], 0, ARGV[1])
local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, 32) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
