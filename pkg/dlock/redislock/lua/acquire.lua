-- Files a claim. An id that is stored keeps its place, and its deadline restarts.
-- KEYS lock, fence, bar, queue, waiters
-- ARGV id, ttl ms, heartbeat ms, wait (0|1), fences, publish command, channel, info
-- Returns {phase, id, token, ahead, recheck ms}.
local lock, fence, bar, queue, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, ttl, heartbeat, wait, fences = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1', tonumber(ARGV[5])
local publish, channel, info = ARGV[6], ARGV[7], ARGV[8]

-- Nobody has it, nobody waits, nobody barred it: the usual case, in few steps.
if redis.call('EXISTS', lock, queue, bar) == 0 then
  local now = clock()
  local token = next_token(fence, fences, now)
  hold(lock, id, token, now, channel, info, ttl)
  return {'held', id, digits(token), 0, 0}
end

if redis.call('EXISTS', bar) == 1 then return {'gone', id, '0', 0, 0} end
local now = clock()
local value = redis.call('GET', lock)
if not value then
  settle(lock, queue, waiters, fence, publish, now)
  value = redis.call('GET', lock)
end
if not value then -- all who waited were dead
  local token = next_token(fence, fences, now)
  hold(lock, id, token, now, channel, info, ttl)
  return {'held', id, digits(token), 0, 0}
end
if owner(value) == id then
  redis.call('PEXPIRE', lock, ttl)
  return {'held', id, token_of(value), 0, 0}
end

if not wait then return {'gone', id, '0', 0, 0} end
local since = digits(now / 1000)
local record = redis.call('HGET', waiters, id)
if record then
  since = string.match(record, '^%d+ (%d+) ')
else
  local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')
  redis.call('ZADD', queue, math.max(now, tonumber(last[2] or '0') + 1), id)
end
redis.call('HSET', waiters, id, digits(now + heartbeat * 1000) .. ' ' .. since .. ' ' .. digits(fences) .. ' ' .. channel .. ' ' .. info)
redis.call('PEXPIRE', queue, KEEP_MS)
redis.call('PEXPIRE', waiters, KEEP_MS)
return queued(lock, queue, id)
