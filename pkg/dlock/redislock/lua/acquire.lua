-- Files a claim. An id that is stored keeps its place, and its deadline restarts.
-- KEYS lock, fence, bar, queue, waiters
-- ARGV id, ttl ms, heartbeat ms, wait (0|1), fences, publish command, channel, info
-- Returns {phase, id, token, ahead, recheck ms}.
local lock, fence, bar, queue, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, ttl, heartbeat, wait, fences = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1', tonumber(ARGV[5])
local publish, channel, info = ARGV[6], ARGV[7], ARGV[8]

local stored = redis.call('MGET', lock, fence, bar)
if stored[3] then return {'gone', id, '0', 0, 0} end
local value = stored[1]
if owner(value) == id then
  redis.call('PEXPIRE', lock, ttl)
  return {'held', id, token_of(value), 0, 0}
end

local waiting = redis.call('EXISTS', queue) == 1
local now = clock()
if not value and waiting then
  settle(lock, queue, waiters, fence, publish, now)
  value = redis.call('GET', lock)
  if owner(value) == id then
    redis.call('PEXPIRE', lock, ttl)
    return {'held', id, token_of(value), 0, 0}
  end
  stored[2] = redis.call('GET', fence)
end

if not value then
  local token = math.max(tonumber(stored[2] or '0') + 1, now)
  if redis.call('EXISTS', lock) == 1 then -- MGET does not see what is no string
    return redis.error_reply('WRONGTYPE the key holds no lock')
  end
  hold(lock, fence, id, token, fences, now, channel, info, ttl)
  return {'held', id, digits(token), 0, 0}
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
