-- Submits an exclusive claim. A claim that is already stored keeps its place, and its deadline restarts.
-- KEYS lock, counter, queue, waiters, holders, tombstone and, with plain clients, gap
-- ARGV id, ttl ms, heartbeat ms (0: does not wait), "<channel> <info>" and, if it is not 1,
--      the number of tokens
-- Returns a state, or "again <id> 0" if dead waiters or holders must be dropped before it is known
-- whether the lock is free, or "full <id> <waiters>".
local call = redis.call -- looked up once
local lock, counter, queue, waiters, holders, tombstone, gap = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local id, who, tokens, mode = ARGV[1], ARGV[4], ARGV[5] or '1', ''

-- The common case: the lock has no holder, no waiter and no tombstone. A tombstone counts twice, so that it
-- is not taken for the waiters of a queue that has lost them.
local known
if gap then known = call('EXISTS', lock, queue, waiters, tombstone, gap) else known = call('EXISTS', lock, queue, waiters, tombstone, tombstone) end
if known == 0 then
  local t = call('TIME')
  --@token
  call('SET', lock, id .. '. ' .. token .. ' ' .. tokens .. ' ' .. who, 'PX', ARGV[2])
  return 'held ' .. id .. ' ' .. token
end

-- The common case of a busy lock: another claim holds it, so this one waits or fails. The first that
-- waits marks the value, unless it is that of a plain client. Both halves of the queue exist, or none, and
-- no tombstone.
local waits = ARGV[3] ~= '0'
local value = redis.pcall('GET', lock) -- an error if readers or permits hold it
local ahead = call('ZCARD', queue)
if value then known = known - 1 end
if ahead > 0 then known = known - 2 end
if type(value) == 'string' and known == 0 and ahead < 1024 and not gap and string.sub(value, 1, 32) ~= id then
  if not waits then return 'gone ' .. id .. ' 0' end
  local t = call('TIME')
  local micros, seconds = string.sub('00000' .. t[2], -6), ARGV[3] / 1000
  local arrival = t[1] .. micros
  local deadline = seconds % 1 == 0 and (t[1] + seconds) .. micros or string.format('%.0f', arrival + ARGV[3] * 1000)
  -- What the server may refuse comes first, or is undone: a claim that is refused is not stored.
  if string.sub(value, 33, 33) == '.' and string.find(value, '^%x+%. %d+ %d+ %S+ ') then call('SETRANGE', lock, '32', '+') end
  -- A busy queue is never empty, and its waiters get the lock before they renew. So new
  -- waiters extend the expiry of the queue, in every sixteenth second.
  local extends, recheck = ahead == 0 or t[1] % 16 == 0, 0
  if extends then
    local left = call('PTTL', lock) -- see queued(); other waiters get their recheck time when they renew
    if left >= 0 then recheck = left + 2 end
  end
  if ahead > 0 and call('ZCOUNT', queue, arrival, '+inf') > 0 then -- the clock was set back
    arrival = string.format('%.0f', call('ZRANGE', queue, '-1', '-1', 'WITHSCORES')[2] + 1)
  end
  if call('HSETNX', waiters, id, deadline .. ' ' .. t[1] .. '.' .. t[2] .. ' ' .. tokens .. ' 0 ' .. who) == 1 then
    local failed = redis.pcall('ZADD', queue, 'NX', arrival, id)
    if extends and type(failed) ~= 'table' then
      failed = redis.pcall('PEXPIRE', queue, '60000')
      redis.pcall('PEXPIRE', waiters, '60000')
    end
    if type(failed) == 'table' then
      redis.pcall('ZREM', queue, id)
      redis.pcall('HDEL', waiters, id)
      return failed
    end
    return 'queued ' .. id .. ' 0 ' .. (ahead + 1) .. ' ' .. recheck
  end
end

--@common
--@submit
