-- Renews claims on one lock, in any phase, drops dead heads and grants. Works at
-- maxmemory: it begins with a write that is always allowed.
-- KEYS lock, fence, queue, waiters and, beside plain clients, gap
-- ARGV echo, then id, ttl ms and heartbeat ms of each claim
-- Returns {echo, state...}.
--@common
local lock, fence, queue, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

redis.call('PEXPIRE', queue, KEEP_MS)
redis.call('PEXPIRE', waiters, KEEP_MS)
local now = clock()
local record = {}
for i = 2, #ARGV, 3 do
  local id = ARGV[i]
  local was = redis.call('HGET', waiters, id)
  if was then
    local deadline, rest = string.match(was, '^(%d+)( .*)$')
    if tonumber(deadline) <= now then
      redis.call('LREM', queue, 1, id)
      redis.call('HDEL', waiters, id)
    else
      record[id] = true
      redis.call('HSET', waiters, id, digits(now + ARGV[i + 2] * 1000) .. rest)
    end
  end
end

local value = redis.call('GET', lock)
if not value and not open(KEYS[5]) then
  settle(lock, queue, waiters, fence)
  value = redis.call('GET', lock)
end
local answers = {ARGV[1]}
for i = 2, #ARGV, 3 do
  local id = ARGV[i]
  if owner(value) == id then
    redis.call('PEXPIRE', lock, ARGV[i + 1])
    answers[#answers + 1] = 'held ' .. id .. ' ' .. token_of(value)
  elseif record[id] then
    answers[#answers + 1] = queued(lock, queue, KEYS[5], id)
  else
    answers[#answers + 1] = 'gone ' .. id .. ' 0'
  end
end
return answers
