-- Shared by the scripts; replaces their line --@common. Layout 3:
--   lock       string  "<id><mark> <token> <tokens> <channel> <info>", expires with the lease
--              zset    if readers or permits hold it: id -> deadline, us, and <mode> -> +inf; expires
--                      with the last lease
--   holders    hash    of readers or permits: id -> "<token> <tokens> <channel> <info>"
--   queue      zset    id -> arrival, us: max(time, arrival of the last + 1)
--   waiters    hash    id -> "<deadline us> <since> <tokens><mode> <skipped> <channel> <info>"
--   counter    string  the last token of many locks, see counterOf
--   tombstone  string  an id that must not be stored any more
--   gap        string  exists while the key is left free for plain clients
-- <mark> is "+" if claims wait, and otherwise ".", so that a release need not look for them. If the
-- mark is wrong, waiters find the free lock when they renew. <since> is seconds and microseconds,
-- separated by a dot. <tokens> is the number of tokens to reserve, or that are reserved. <info> comes
-- last and may contain anything. The channel is "-" if the process is not subscribed; a channel that
-- begins with a brace is sharded. <skipped> is 1 after the waiter was skipped because its channel had
-- no subscriber, and 2 once it has renewed after that. <mode> is "s" for a reader, "p<limit>" for a
-- permit, and empty for an exclusive claim.
-- Who holds a lock is decided by one key, so that no lost key gives it to others. A reader or permit
-- whose record in holders was lost is gone when it renews.
-- Times are the server's. Numbers of more than 14 digits are printed with %.0f: Lua's own conversion loses digits.
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
local EXACT = 8              -- waiters of a renewal whose place is read
local MAX_GRANTS = 32        -- readers or permits that are granted at a time

local function digits(n) return string.format('%.0f', n) end

-- clock returns the time in microseconds, in the form of <since>, and as the server returns it.
local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2], t[1] .. '.' .. t[2], t
end

local function owner(value) return type(value) == 'string' and string.sub(value, 1, 32) end

local function token_of(value) return string.match(value, '^%x+[.+] (%d+) ') end

-- mark notes in the value of a lock that claims wait for it. The value of a plain client stays as
-- it is.
local function mark(lock, value)
  if type(value) == 'string' and string.sub(value, 33, 33) == '.' and string.find(value, '^%x+%. %d+ %d+ %S+ ') then redis.call('SETRANGE', lock, 32, '+') end
end

-- in_gap reports whether the key is now left free for plain clients. Only Clients that share the
-- key with such clients pass a gap.
local function in_gap(gap) return gap and redis.call('EXISTS', gap) == 1 end

-- parse reads the record of a waiter.
local function parse(record)
  local deadline, since, tokens, mode, skipped, channel, info
  if record then deadline, since, tokens, mode, skipped, channel, info = string.match(record, '^(%d+) (%S+) (%d+)(%a?%d*) (%d) (%S+) (.*)$') end
  if not deadline then return nil end
  return {deadline = tonumber(deadline), since = since, tokens = tokens, mode = mode, skipped = skipped, channel = channel, info = info}
end

-- store writes the record of a waiter.
local function store(waiters, id, w)
  redis.call('HSET', waiters, id, digits(w.deadline) .. ' ' .. w.since .. ' ' .. w.tokens .. w.mode .. ' ' .. w.skipped .. ' ' .. w.channel .. ' ' .. w.info)
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

-- count returns who holds a lock of readers or permits, and deletes it if nobody does. stale: some of
-- them may be past their deadline.
local function count(lock, holders, mode, stale)
  local n = redis.call('ZCARD', lock) - 1
  if n > 0 then return {mode = mode, n = n, stale = stale} end
  redis.call('DEL', lock, holders)
  return nil
end

-- is_wrong_type reports whether a command was refused because of the type of the key.
local function is_wrong_type(failure) return string.find(failure.err, 'WRONGTYPE', 1, true) end

-- mode_of returns the mode of a lock that readers or permits hold. If the key is something else, or cannot be read, it
-- returns nil and the error; value is the error that GET has returned.
local function mode_of(lock, value)
  local last = redis.pcall('ZRANGE', lock, -1, -1, 'WITHSCORES')
  if last.err then return nil, is_wrong_type(value) and last or value end
  if last[2] == 'inf' and (last[1] == 's' or string.find(last[1], '^p%d+$')) then return last[1] end
  return nil, value
end

-- current returns what holds the lock: nil if it is free, its value if it is a string, and mode and
-- number if readers or permits hold it. It drops those past their deadline, at most CHUNK of them. A
-- key that is none of these is an error, which the caller returns.
local function current(lock, holders, now)
  local value = redis.pcall('GET', lock)
  if type(value) ~= 'table' then return value or nil end
  local mode, failure = mode_of(lock, value)
  if not mode then return nil, failure end
  local dead = redis.call('ZRANGE', lock, '-inf', digits(now), 'BYSCORE', 'LIMIT', 0, CHUNK)
  if #dead > 0 then
    redis.call('ZREM', lock, unpack(dead))
    redis.call('HDEL', holders, unpack(dead))
  end
  return count(lock, holders, mode, #dead == CHUNK)
end

-- is_stale reports whether another call must drop more holders that are past their deadline.
local function is_stale(held) return type(held) == 'table' and held.stale end

-- fits reports whether a claim of that mode can hold the lock together with those that hold it.
local function fits(held, mode)
  if not held then return true end
  if type(held) == 'string' or held.mode ~= mode then return false end
  return mode == 's' or held.n < tonumber(string.sub(mode, 2))
end

-- last_at_least makes keys last for at least that time.
local function last_at_least(ms, ...)
  for _, key in ipairs({...}) do
    if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, ms) end
  end
end

-- shrink makes the keys of readers or permits expire with the last lease, after a lease that would have lasted
-- until the deadline was ended or shortened. Only the last lease matters for that; leases that have ended
-- never are the last. The mode comes after all leases. If the last one has ended, the keys are deleted.
local function shrink(lock, holders, deadline, now)
  local last = redis.call('ZRANGE', lock, -2, -2, 'WITHSCORES')[2]
  if last - deadline >= 0 then return end
  if last - now <= 0 then
    redis.call('DEL', lock, holders)
    return
  end
  local ms = math.ceil((last - now) / 1000)
  redis.call('PEXPIRE', lock, ms)
  redis.call('PEXPIRE', holders, ms)
end

-- join adds a reader or a permit to the holders, until its deadline. What the server may refuse comes first,
-- so that no lock is stored without an expiry: PEXPIRE does nothing to a lock that does not exist yet.
local function join(lock, holders, held, w, token, now)
  local ms, lasts, recorded = math.ceil((w.deadline - now) / 1000), redis.call('PTTL', lock), redis.call('PTTL', holders)
  if lasts < ms or recorded < ms then redis.call('PEXPIRE', lock, math.max(lasts, ms)) end
  redis.call('HSET', holders, w.id, token .. ' ' .. w.tokens .. ' ' .. w.who)
  if recorded < ms then redis.call('PEXPIRE', holders, ms) end
  redis.call('ZADD', lock, 'GT', 'inf', w.mode, digits(w.deadline), w.id)
  if lasts == -2 then redis.call('PEXPIRE', lock, ms) end
  return {mode = w.mode, n = (held and held.n or 0) + 1}
end

-- extend restarts the lease of a claim that holds the lock, and returns its token, or nil if it does
-- not hold the lock.
local function extend(lock, holders, held, id, now, ms)
  if owner(held) == id then
    redis.call('PEXPIRE', lock, ms)
    return token_of(held)
  end
  local before = type(held) == 'table' and redis.call('ZSCORE', lock, id)
  local token = before and string.match(redis.call('HGET', holders, id) or '', '^%d+')
  if not token then return nil end
  local deadline = now + ms * 1000
  last_at_least(tonumber(ms), lock, holders)
  redis.call('ZADD', lock, 'XX', digits(deadline), id)
  if before - deadline > 0 then shrink(lock, holders, before, now) end
  return token
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

-- drop_dead is prune for a caller that does not need the others.
local function drop_dead(queue, waiters, ids, records, now)
  local dead = {}
  for i, id in ipairs(ids) do
    local deadline = records[i] and tonumber(string.match(records[i], '^(%d+) %S+ %d+%a?%d* %d %S+ '))
    if not deadline or deadline <= now then
      dead[#dead + 1] = id
    elseif deadline > now + HEARTBEAT_US then
      prune(queue, waiters, {id}, {records[i]}, now)
    end
  end
  drop(queue, waiters, dead)
  return #dead
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

-- grant gives the lock to a waiter, for the rest of its heartbeat, and then notifies its process.
local function grant(lock, queue, waiters, counter, holders, held, w, now, t)
  local token = next_token(counter, w.tokens, t)
  drop(queue, waiters, {w.id})
  w.who = w.channel .. ' ' .. w.info
  if w.mode == '' then
    hold(lock, w.id, redis.call('EXISTS', queue) == 1 and '+' or '.', token, w.tokens, w.who, math.ceil((w.deadline - now) / 1000))
  else
    held = join(lock, holders, held, w, token, now)
  end
  push(w.channel, 'held', lock, w.id, token)
  return held
end

-- grant_next gives the lock to the first live waiter if it fits: to one, or to some readers or
-- permits. Skipped waiters keep their places; if all are skipped, the first ones that fit get the lock,
-- and find out when they renew. Returns true if another call must continue.
local function grant_next(lock, queue, waiters, counter, holders, held)
  local now, _, t = clock()
  local skipped, dropped, granted = {}, 0, 0
  local alive, dead, seen
  repeat
    alive, dead, seen = prune_range(queue, waiters, #skipped, #skipped + CHUNK - 1, now)
    dropped = dropped + dead
    for _, w in ipairs(alive) do
      if grantable(w) then
        for _, s in ipairs(skipped) do -- also if w does not fit: one before it may
          if s.skipped == '0' then
            s.skipped = '1'
            store(waiters, s.id, s)
          end
        end
        if not fits(held, w.mode) then return is_stale(held) end
        if granted == MAX_GRANTS then return true end
        held = grant(lock, queue, waiters, counter, holders, held, w, now, t)
        granted = granted + 1
        if w.mode == '' then return false end
      else
        skipped[#skipped + 1] = w
        if #skipped == MAX_SKIPS then break end
      end
    end
  until #skipped == MAX_SKIPS or seen < CHUNK or dropped >= MAX_DROPS
  for _, w in ipairs(granted == 0 and skipped or {}) do
    if not fits(held, w.mode) then return is_stale(held) end
    if granted == MAX_GRANTS then return true end
    held = grant(lock, queue, waiters, counter, holders, held, w, now, t)
    granted = granted + 1
    if w.mode == '' then return false end
  end
  return #skipped < MAX_SKIPS and seen == CHUNK and redis.call('EXISTS', queue) == 1
end

-- lease_left returns after how many milliseconds the lock is free at the latest if its holder is dead. It is
-- negative if the lock has no expiry.
local function lease_left(lock, gap, held, now)
  local left
  if type(held) == 'table' then
    left = math.ceil((redis.call('ZRANGE', lock, 0, 0, 'WITHSCORES')[2] - now) / 1000)
  else
    left = redis.call('PTTL', lock)
  end
  return gap and math.max(left, redis.call('PTTL', gap)) or left
end

-- queued returns the state of a waiter with so many waiters before it. The first few waiters ask again
-- when the holder's lease will have ended, because the very first may be dead; only for them left is needed.
-- A recheck time of 0 means none. With plain clients, which do not announce a release, the first waiter asks
-- often.
local function queued(gap, id, rank, more, held, left)
  local recheck = 0
  if more then
    recheck = 1
  elseif rank < RECHECKS then
    if left >= 0 then recheck = left + 2 end
    if gap and rank == 0 and (recheck == 0 or recheck > 50) then recheck = 50 end
  end
  return 'queued ' .. id .. ' 0 ' .. (rank + (type(held) == 'table' and held.n or 1)) .. ' ' .. recheck
end

