-- Files a claim. An id that is stored keeps its place, and its deadline restarts.
-- KEYS lock, fence, bar, queue, waiters, gap
-- ARGV id, ttl ms, heartbeat ms, wait (0|1), fences, publish command, channel, info,
--      plain (1: beside plain clients)
-- Returns {phase, id, token} or, for a waiter, {phase, id, token, ahead, recheck ms}.
local lock, fence, queue, id = KEYS[1], KEYS[2], KEYS[4], ARGV[1]

-- Nobody has it, nobody waits, nobody barred it: the usual case, in few steps and
-- before anything else is prepared.
if redis.call('EXISTS', lock, queue, KEYS[3], KEYS[6]) == 0 then
  local t = redis.call('TIME')
  local now, more = t[1] * 1000000 + t[2], ARGV[5] - 1
  local token = string.format('%.0f', now)
  local last = redis.call('SET', fence, more == 0 and token or string.format('%.0f', now + more), 'PX', 86400000, 'GET')
  if last and tonumber(last) >= now then -- see next_token
    token = string.format('%.0f', last + 1)
    redis.call('SET', fence, string.format('%.0f', last + 1 + more), 'PX', 86400000)
  end
  redis.call('SET', lock, id .. ' ' .. token .. ' ' .. t[1] .. '.' .. t[2] .. ' ' .. ARGV[7] .. ' ' .. ARGV[8], 'PX', ARGV[2])
  return {'held', id, token}
end

--@common
local waiters, ttl, fences, publish, channel, info = KEYS[5], ARGV[2], tonumber(ARGV[5]), ARGV[6], ARGV[7], ARGV[8]

if redis.call('EXISTS', KEYS[3]) == 1 then return {'gone', id, '0'} end
local value = redis.call('GET', lock) -- fails, before anything is written, if it is no string
local free = not value and redis.call('EXISTS', KEYS[6]) == 0
if free then
  settle(lock, queue, waiters, fence, publish)
  value = redis.call('GET', lock)
end
local now, since = clock()
if free and not value then -- all who waited were dead
  local token = next_token(fence, fences, now)
  hold(lock, id, token, since, channel, info, ttl)
  return {'held', id, token}
end
if value and owner(value) == id then
  redis.call('PEXPIRE', lock, ttl)
  return {'held', id, token_of(value)}
end

if ARGV[4] ~= '1' then return {'gone', id, '0'} end
local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES') -- in order of arrival, though the clock be set back
local new = redis.call('ZADD', queue, 'NX', math.max(now, tonumber(last[2] or '0') + 1), id) == 1
if not new then since = string.match(redis.call('HGET', waiters, id) or '', '^%d+ (%S+) ') or since end
redis.call('HSET', waiters, id, digits(now + ARGV[3] * 1000) .. ' ' .. since .. ' ' .. ARGV[5] .. ' ' .. channel .. ' ' .. info)
local ahead = redis.call('ZCARD', queue)
if new and ahead > 1 then return {'queued', id, '0', ahead, 0} end
redis.call('PEXPIRE', queue, KEEP_MS)
redis.call('PEXPIRE', waiters, KEEP_MS)
return queued(lock, queue, KEYS[6], ARGV[9] == '1', id)
