-- Shared by the scripts; stands where they say --@common. Layout 1:
--   lock     string  "<id> <token> <since> <channel> <info>", expires with the lease
--   queue    list    ids in order of arrival
--   waiters  hash    id -> "<deadline us> <since> <fences> <channel> <info>"
--   fence    string  the last token of this lock, kept for a day
--   bar      string  an id that must not be filed any more
--   gap      string  there while the key is left free for plain clients
-- <since> is seconds and microseconds with a dot between. <info> comes last and may
-- hold anything. A channel of "-" means no pushes, one that begins with a brace lives in
-- a slot of a cluster. Times are the server's. Numbers are printed with %.0f: Lua's own
-- way loses digits. That is dear, so what the server has as a string stays one.
--
-- A state is "<phase> <id> <token>", of a waiter followed by how many are before it, a
-- hint, and in how many milliseconds to ask again.
--
-- Functions are made anew whenever a script runs, so what scripts do most they do by
-- hand before this point.

local KEEP_MS = 60000        -- how long an untouched queue is kept
local SKIPS = 64             -- waiters without a listener that are passed over

local function digits(n) return string.format('%.0f', n) end

-- clock is the time in microseconds, and as <since>.
local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2], t[1] .. '.' .. t[2]
end

local function owner(value) return value and string.sub(value, 1, 32) end

local function token_of(value) return string.match(value, '^%x+ (%d+) ') end

-- open says whether the key is left free for plain clients now. Only they who contend
-- with such clients have a gap.
local function open(gap) return gap and redis.call('EXISTS', gap) == 1 end

-- push tells a process of a change and returns how many heard it.
local function push(channel, ...)
  if not channel or channel == '-' then return 0 end
  local n = redis.pcall(string.byte(channel) == 123 and 'SPUBLISH' or 'PUBLISH', channel, table.concat({...}, '\1'))
  if type(n) ~= 'number' then return 0 end
  return n
end

-- next_token takes the next token, max(last + 1, time), and reserves as many as are
-- asked for. The time keeps tokens increasing when the counter was lost or, after a
-- failover, is old; the counter does when the clock was set back.
local function next_token(fence, fences, now)
  local last = redis.call('SET', fence, digits(now + fences - 1), 'PX', 86400000, 'GET')
  if not last or tonumber(last) < now then return digits(now) end
  redis.call('SET', fence, digits(last + fences), 'PX', 86400000)
  return digits(last + 1)
end

-- hold makes a claim the holder of a free lock. who is "<channel> <info>".
local function hold(lock, id, token, since, who, px)
  redis.call('SET', lock, id .. ' ' .. token .. ' ' .. since .. ' ' .. who, 'PX', px)
end

-- settle gives a free lock to the first living waiter, for what is left of its
-- heartbeat. Dead waiters are dropped. Those whose process does not listen are
-- passed over, unless nobody does: then the first of them finds out by itself.
-- popped is the id that was already taken off the queue, if any.
local function settle(lock, queue, waiters, fence, popped)
  local now, since = clock()
  local next = nil
  local passed = {}
  local id = popped or redis.call('LPOP', queue)
  while id do
    local record = redis.call('HGET', waiters, id)
    local deadline, fences, who, channel
    if record then deadline, fences, who, channel = string.match(record, '^(%d+) %S+ (%d+) ((%S+) .*)$') end
    if not deadline or tonumber(deadline) <= now then
      redis.call('HDEL', waiters, id)
    else
      local token = next_token(fence, tonumber(fences), now)
      local claim = {id, token, who, math.ceil((deadline - now) / 1000)}
      if push(channel, 'held', lock, id, token) > 0 then
        next = claim
        break
      end
      passed[#passed + 1] = claim
      if #passed == SKIPS then break end
    end
    id = redis.call('LPOP', queue)
  end
  local back = 1
  if not next and passed[1] then next, back = passed[1], 2 end
  for i = #passed, back, -1 do redis.call('LPUSH', queue, passed[i][1]) end
  if not next then return end
  redis.call('HDEL', waiters, next[1])
  hold(lock, next[1], next[2], since, next[3], next[4])
  if #passed > 0 then redis.call('PEXPIRE', queue, KEEP_MS) end
end

-- queued is the state of a waiter. The first asks again when the holder's lease will
-- have ended; 0 means that nothing can be said. Beside plain clients, who tell nobody
-- when they leave, it asks often.
local function queued(lock, queue, gap, id)
  local ahead, recheck = 1, 0
  if redis.call('LINDEX', queue, 0) ~= id then
    ahead = redis.call('LLEN', queue)
  else
    local left = redis.call('PTTL', lock)
    if gap then left = math.max(left, redis.call('PTTL', gap)) end
    if left >= 0 then recheck = left + 2 end
    if gap and (recheck == 0 or recheck > 50) then recheck = 50 end
  end
  return 'queued ' .. id .. ' 0 ' .. ahead .. ' ' .. recheck
end

