-- Renews readers and permits of one lock without its queue, for a cluster slot that moves: only keys
-- that exist may be used there. Works at maxmemory: its first write is always allowed.
-- KEYS lock, holders
-- ARGV echo, then id and ttl ms of each claim
-- Returns {echo, token...}; the token is empty if the claim does not hold the lock.
--@common
local lock, holders = KEYS[1], KEYS[2]
redis.call('HDEL', holders, '') -- that field does not exist
local now = clock()
local held, failure = current(lock, holders, now)
if failure then return failure end
local answers = {ARGV[1]}
for i = 2, #ARGV, 2 do answers[#answers + 1] = extend(lock, holders, held, ARGV[i], now, ARGV[i + 1]) or '' end
return answers
