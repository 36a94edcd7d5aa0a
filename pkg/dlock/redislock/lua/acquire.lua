-- Files a claim. An id that is stored keeps its place, and its deadline restarts.
-- KEYS lock, fence, queue, waiters, bar and, beside plain clients, gap
-- ARGV id, ttl ms, heartbeat ms (0: does not wait), "<channel> <info>" and, if more than
--      one, fences
-- Returns a state.
local lock, fence, queue, bar, gap, id, who = KEYS[1], KEYS[2], KEYS[3], KEYS[5], KEYS[6], ARGV[1], ARGV[4]

-- Nobody has it, nobody waits, nobody barred it: the usual case.
local known
if gap then known = redis.call('EXISTS', lock, queue, bar, gap) else known = redis.call('EXISTS', lock, queue, bar) end
if known == 0 then
  local t = redis.call('TIME')
  local token = t[1] .. string.sub('00000' .. t[2], -6)
  local last = redis.call('SET', fence, ARGV[5] and string.format('%.0f', token + ARGV[5] - 1) or token, 'PX', '86400000', 'GET')
  if last and tonumber(last) >= tonumber(token) then -- see next_token
    token = string.format('%.0f', last + 1)
    redis.call('SET', fence, string.format('%.0f', last + (ARGV[5] or 1)), 'PX', '86400000')
  end
  redis.call('SET', lock, id .. ' ' .. token .. ' ' .. t[1] .. '.' .. t[2] .. ' ' .. who, 'PX', ARGV[2])
  return 'held ' .. id .. ' ' .. token
end

-- Another has it, others wait: the usual case of a busy lock.
local waiters, waits, fences = KEYS[4], ARGV[3] ~= '0', ARGV[5] or '1'
local stored = redis.call('MGET', lock, bar)
local new = false
if stored[1] and not stored[2] and string.sub(stored[1], 1, 32) ~= id and waits then
  local t = redis.call('TIME')
  local record = string.format('%.0f', t[1] * 1000000 + t[2] + ARGV[3] * 1000) .. ' ' .. t[1] .. '.' .. t[2] .. ' ' .. fences .. ' ' .. who
  new = redis.call('HSETNX', waiters, id, record) == 1
  if new then
    local ahead = redis.call('RPUSH', queue, id)
    -- A busy queue is never empty, and its waiters are served before they renew: so now
    -- and then somebody who comes keeps it alive, in every sixteenth second.
    if ahead > 1 and t[1] % 16 ~= 0 then return 'queued ' .. id .. ' 0 ' .. ahead .. ' 0' end
  end
end

--@common
if redis.call('EXISTS', bar) == 1 then return 'gone ' .. id .. ' 0' end
local value = redis.call('GET', lock) -- fails, before anything is written, if it is no string
local free = not value and not open(gap)
if free then
  settle(lock, queue, waiters, fence)
  value = redis.call('GET', lock)
end
local now, since = clock()
if free and not value then -- all who waited were dead
  local token = next_token(fence, tonumber(fences), now)
  hold(lock, id, token, since, who, ARGV[2])
  return 'held ' .. id .. ' ' .. token
end
if value and owner(value) == id then
  redis.call('PEXPIRE', lock, ARGV[2])
  return 'held ' .. id .. ' ' .. token_of(value)
end

if not waits then return 'gone ' .. id .. ' 0' end
if not new then
  local old = redis.call('HGET', waiters, id)
  if old then
    since = string.match(old, '^%d+ (%S+) ') or since
  else
    redis.call('RPUSH', queue, id)
  end
  redis.call('HSET', waiters, id, digits(now + ARGV[3] * 1000) .. ' ' .. since .. ' ' .. fences .. ' ' .. who)
end
redis.call('PEXPIRE', queue, KEEP_MS)
redis.call('PEXPIRE', waiters, KEEP_MS)
return queued(lock, queue, gap, id)
