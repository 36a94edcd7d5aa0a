-- Makes what is stored of a lock look as if the clock had been set back by an hour since.
-- A holder without half of its lease left may be dead, and then nothing would bring its
-- end back: it is left alone.
-- KEYS lock, queue, waiters
-- ARGV ms that a living holder has left at least, and at most
local HOUR = 3600000
local left = redis.call('PTTL', KEYS[1])
if left > tonumber(ARGV[1]) and left <= tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], left + HOUR) end
local waiters = redis.call('HGETALL', KEYS[3])
for i = 1, #waiters, 2 do
  local deadline, rest = string.match(waiters[i + 1], '^(%d+)( .*)$')
  if deadline then redis.call('HSET', KEYS[3], waiters[i], string.format('%.0f', deadline + HOUR * 1000) .. rest) end
end
local queue = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
for i = 1, #queue, 2 do
  redis.call('ZADD', KEYS[2], string.format('%.0f', queue[i + 1] + HOUR * 1000), queue[i])
end
return #waiters / 2
