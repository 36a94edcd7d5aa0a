-- Shared by the scripts; replaces their line --@common. Layout 3:
--   lock       string  "<id><mark> <token> <tokens> <channel> <info>", expires with the lease
--   queue      zset    id -> arrival, us: max(time, arrival of the last + 1)
--   waiters    hash    id -> "<deadline us> <since> <tokens> <skipped> <channel> <info>"
--   counter    string  the last token of many locks, see counterOf
--   tombstone  string  an id that must not be stored any more
--   gap        string  exists while the key is left free for plain clients
-- <mark> is "+" if claims wait, and otherwise ".", so that a release need not look for them. If the
-- mark is wrong, waiters find the free lock when they renew. <since> is seconds and microseconds,
-- separated by a dot. <tokens> is the number of tokens to reserve, or that are reserved. <info> comes
-- last and may contain anything. The channel is "-" if the process is not subscribed; a channel that
-- begins with a brace is sharded. <skipped> is 1 after the waiter was skipped because its channel had
-- no subscriber, and 2 once it has renewed after that.
-- Times are the server's. Numbers are printed with %.0f: Lua's own conversion loses digits.
-- Printing is expensive, so a string from the server stays a string.
--
-- A state is "<phase> <id> <token>". For a waiter three fields follow: how many claims are ahead
-- (a hint), after how many milliseconds to ask again, and "unsubscribed" if the channel that the
-- process named has no subscriber.
--
-- Every loop is bounded: the server does nothing else while a script runs. If work remains, the
-- script reports "more".
--
-- Each run of a script creates its functions again, which takes time. So scripts handle the common
-- cases before the line --@common, without functions, and token.lua replaces each line --@token.

local KEEP_MS = 60000        -- how long an untouched queue is kept
local HEARTBEAT_US = 3000000 -- the longest heartbeat, see driver.Heartbeat
local MAX_SKIPS = 64         -- waiters without a subscriber that a grant skips
local CHUNK = 128            -- waiters read at a time
local MAX_DROPS = 512        -- dead waiters that a grant drops, rounded up to a chunk
local TRIM = 16              -- waiters at the head that each renewal examines
local RECHECKS = 8           -- waiters at the head that ask again when the lease ends

local function digits(n) return string.format('%.0f', n) end

-- clock returns the time in microseconds, in the form of <since>, and as the server returns it.
local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2], t[1] .. '.' .. t[2], t
end

local function owner(value) return value and string.sub(value, 1, 32) end

local function token_of(value) return string.match(value, '^%x+[.+] (%d+) ') end

-- mark notes in the value of a lock that claims wait for it. The value of a plain client stays as
-- it is.
local function mark(lock, value)
  if value and string.sub(value, 33, 33) == '.' and string.find(value, '^%x+%. %d+ %d+ %S+ ') then redis.call('SETRANGE', lock, 32, '+') end
end

-- in_gap reports whether the key is now left free for plain clients. Only Clients that share the
-- key with such clients pass a gap.
local function in_gap(gap) return gap and redis.call('EXISTS', gap) == 1 end

-- parse reads the record of a waiter.
local function parse(record)
  local deadline, since, tokens, skipped, channel, info
  if record then deadline, since, tokens, skipped, channel, info = string.match(record, '^(%d+) (%S+) (%d+) (%d) (%S+) (.*)$') end
  if not deadline then return nil end
  return {deadline = tonumber(deadline), since = since, tokens = tokens, skipped = skipped, channel = channel, info = info}
end

-- store writes the record of a waiter.
local function store(waiters, id, w)
  redis.call('HSET', waiters, id, digits(w.deadline) .. ' ' .. w.since .. ' ' .. w.tokens .. ' ' .. w.skipped .. ' ' .. w.channel .. ' ' .. w.info)
end

-- arrival_of returns the arrival for <since>.
local function arrival_of(since)
  local seconds, micros = string.match(since, '^(%d+)%.(%d+)$')
  return digits((seconds or 0) * 1000000 + (micros or 0))
end

-- subscribed reports whether a channel has a subscriber at this server. It sends no message. If the
-- server does not answer the question, the result is true.
local function subscribed(channel)
  local counts = redis.pcall('PUBSUB', string.byte(channel) == 123 and 'SHARDNUMSUB' or 'NUMSUB', channel)
  return counts[2] ~= 0
end

-- push publishes to a process a state that is already stored.
local function push(channel, ...)
  if not channel or channel == '-' then return end
  redis.pcall(string.byte(channel) == 123 and 'SPUBLISH' or 'PUBLISH', channel, table.concat({...}, '\1'))
end

-- next_token returns the next token, and reserves that number of tokens. t is the time.
local function next_token(counter, tokens, t)
  --@token
  return token
end

-- hold makes a claim the holder of a free lock. who is "<channel> <info>".
local function hold(lock, id, mark, token, tokens, who, px)
  redis.call('SET', lock, id .. mark .. ' ' .. token .. ' ' .. tokens .. ' ' .. who, 'PX', px)
end

-- drop removes waiters from both structures.
local function drop(queue, waiters, ids)
  if #ids == 0 then return end
  redis.call('ZREM', queue, unpack(ids))
  redis.call('HDEL', waiters, unpack(ids))
end

-- prune drops the dead ones of the given waiters. It returns the others, in order, and how many it
-- dropped. A deadline beyond the longest heartbeat was set before the clock was set back; it is
-- reduced to the longest heartbeat.
local function prune(queue, waiters, ids, records, now)
  local alive, dead = {}, {}
  for i, id in ipairs(ids) do
    local deadline = records[i] and tonumber(string.match(records[i], '^%d+'))
    local w = deadline and deadline > now and parse(records[i])
    if w then
      w.id = id
      if deadline > now + HEARTBEAT_US then
        w.deadline = now + HEARTBEAT_US
        store(waiters, id, w)
      end
      alive[#alive + 1] = w
    else
      dead[#dead + 1] = id
    end
  end
  drop(queue, waiters, dead)
  return alive, #dead
end

-- prune_range is prune for the waiters at positions first to last of the queue. Also returns how
-- many waiters there were.
local function prune_range(queue, waiters, first, last, now)
  local ids = redis.call('ZRANGE', queue, first, last)
  if #ids == 0 then return {}, 0, 0 end
  local alive, dropped = prune(queue, waiters, ids, redis.call('HMGET', waiters, unpack(ids)), now)
  return alive, dropped, #ids
end

-- grantable reports whether a waiter gets the lock in its turn. A waiter without a subscriber is
-- skipped until it has renewed, which a dead one never does.
local function grantable(w)
  return w.channel == '-' or w.skipped == '2' or subscribed(w.channel)
end

-- grant_next gives a free lock to the first live waiter, for the rest of its heartbeat, and then
-- notifies its process. Skipped waiters keep their places; if all are skipped, the first one gets
-- the lock, and finds out when it renews. Returns true if it dropped so many dead
-- waiters that another call must continue.
local function grant_next(lock, queue, waiters, counter)
  local now, _, t = clock()
  local skipped, dropped, next = {}, 0, nil
  local alive, dead, seen
  repeat
    alive, dead, seen = prune_range(queue, waiters, #skipped, #skipped + CHUNK - 1, now)
    dropped = dropped + dead
    for _, w in ipairs(alive) do
      if grantable(w) then
        next = w
        break
      end
      skipped[#skipped + 1] = w
      if #skipped == MAX_SKIPS then break end
    end
  until next or #skipped == MAX_SKIPS or seen < CHUNK or dropped >= MAX_DROPS
  if next then
    for _, w in ipairs(skipped) do
      if w.skipped == '0' then
        w.skipped = '1'
        store(waiters, w.id, w)
      end
    end
  else
    next = skipped[1]
  end
  if not next then return redis.call('EXISTS', queue) == 1 end
  local token = next_token(counter, next.tokens, t)
  drop(queue, waiters, {next.id})
  local mark = redis.call('EXISTS', queue) == 1 and '+' or '.'
  hold(lock, next.id, mark, token, next.tokens, next.channel .. ' ' .. next.info, math.ceil((next.deadline - now) / 1000))
  push(next.channel, 'held', lock, next.id, token)
  return false
end

-- queued returns the state of a waiter. The first few waiters ask again when the holder's lease
-- will have ended, because the very first may be dead. A recheck time of 0 means none. With plain
-- clients, which do not announce a release, the first waiter asks often.
local function queued(lock, queue, gap, id, more)
  local rank, recheck = redis.call('ZRANK', queue, id) or 0, 0
  if more then
    recheck = 1
  elseif rank < RECHECKS then
    local left = redis.call('PTTL', lock)
    if gap then left = math.max(left, redis.call('PTTL', gap)) end
    if left >= 0 then recheck = left + 2 end
    if gap and rank == 0 and (recheck == 0 or recheck > 50) then recheck = 50 end
  end
  return 'queued ' .. id .. ' 0 ' .. (rank + 1) .. ' ' .. recheck
end

