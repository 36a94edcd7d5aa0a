-- Shared by the scripts; replaces their line --@common. Layout 1:
--   lock       string  "<id> <token> <since> <round> <info>", expires with the lease;
--                      the token is 0 until the claim has won
--   fence      string  the highest token that won here, kept for a day after the last use of the lock
--   tombstone  string  an id that must not be stored any more
--   waiters    hash    id -> "<deadline us> <since> <tokens> <channel> <info>"; the channel
--                      is "-" if the claim waits behind others of its process
--   queue      zset    the ids of those that do not, by when they began to wait, or by their deadline
--                      if they were told to try and have not said since that they wait
--   turn       string  the id of the waiter that was told to try; expires after a moment
-- <since> is seconds and microseconds with a dot between. <info> comes last and may contain
-- anything. Times are the server's. Numbers are printed with %.0f: Lua's own conversion
-- loses digits.

local KEEP_MS = 60000    -- how long untouched waiters are kept
local FENCE_MS = 86400000
local SLACK_US = 1000000 -- how far a proposal may be behind the time

local function digits(n) return string.format('%.0f', n) end

local function owner(value) return value and string.sub(value, 1, 32) end

-- read returns the value of a lock, false if there is none, and "" if the key holds data of another kind. If the
-- server refuses to say, the error follows: the lock may be there.
local function read(lock)
  local value = redis.pcall('GET', lock)
  if type(value) ~= 'table' then return value end
  return '', not string.find(value.err, 'WRONGTYPE', 1, true) and value or nil
end

local function record(id, token, since, round, info)
  return id .. ' ' .. token .. ' ' .. since .. ' ' .. round .. ' ' .. info
end

-- raise stores the token if it is the highest so far.
local function raise(fence, token)
  local last = tonumber(redis.call('GET', fence) or '0')
  if last < tonumber(token) then redis.call('SET', fence, token, 'PX', FENCE_MS) end
end

-- keep stores the highest token again in good time, so that it outlives the lock.
local function keep(fence, token)
  if redis.call('PTTL', fence) >= FENCE_MS / 2 then return end
  local last = redis.call('GET', fence)
  if not last or tonumber(last) < tonumber(token) then last = token end
  redis.pcall('SET', fence, last, 'PX', FENCE_MS)
end

-- show records a waiter, and its place in the queue if it has a channel: by when it began to wait, but no later
-- than when this node first heard of it, in case that the clock it was told is wrong or unknown. The waiters
-- themselves do not depend on it, so it may fail.
local function show(waiters, queue, id, heartbeat_ms, t, info, channel, began)
  local now = t[1] * 1000000 + t[2]
  local since = t[1] .. '.' .. t[2]
  local was = redis.call('HGET', waiters, id)
  if was then since = string.match(was, '^%d+ (%S+) ') or since end
  redis.pcall('HSET', waiters, id, digits(now + heartbeat_ms * 1000) .. ' ' .. since .. ' 1 ' .. (channel ~= '' and channel or '-') .. ' ' .. info)
  redis.call('PEXPIRE', waiters, KEEP_MS)
  if channel ~= '' then
    local seconds, micros = string.match(since, '^(%d+)%.(%d+)$')
    local heard = math.min(seconds and seconds * 1000000 + micros or now, now)
    redis.pcall('ZADD', queue, digits(began ~= '0' and math.min(began, heard) or heard), id)
    redis.pcall('PEXPIRE', queue, KEEP_MS)
  end
  if was or not string.match(id, '^0[0-3]') then return end -- one of 64 newcomers looks for dead ones
  local all = redis.call('HGETALL', waiters)
  for i = 1, #all, 2 do
    local deadline = string.match(all[i + 1], '^(%d+) ')
    if not deadline or tonumber(deadline) <= now then
      redis.call('HDEL', waiters, all[i])
      redis.pcall('ZREM', queue, all[i])
    end
  end
end

-- unshow forgets a waiter.
local function unshow(waiters, queue, id)
  redis.pcall('ZREM', queue, id)
  return redis.call('HDEL', waiters, id) == 1
end
