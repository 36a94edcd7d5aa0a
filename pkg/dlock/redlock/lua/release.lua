-- Removes a claim from this node, and tells the claim that has waited longest to try, or all waiters that the
-- lock is free. Works at maxmemory: it begins with DEL, ZREM, HDEL or PEXPIRE.
-- KEYS lock, tombstone, waiters, queue, turn, fence
-- ARGV id, tombstone ms (0: no tombstone), round (-1: any; else only if it was stored by this round
--      or an earlier one, and the waiter stays), token that must match ("": any), channel ("": waiters are
--      not told), "1" to remove the waiter as well, how long only the waiter that is told may try, in ms
-- Returns {found, id, token, subscribers, told}: "held", "queued" or "gone"; told is the waiter
-- that was told to try, or "".
--@common
local lock, waiters, queue, turn, id, must = KEYS[1], KEYS[3], KEYS[4], KEYS[5], ARGV[1], ARGV[4]

-- tell tells the three claims that have waited longest, of those whose process listens: the first to try
-- now, and the others in case that those before them do not. The first one goes to the end of the queue, with its deadline
-- as its time, and is not told again until it says again that it waits: its process may be stopped.
local function tell(token)
  local ids, t, place, told = redis.pcall('ZRANGE', queue, 0, 15, 'WITHSCORES'), redis.call('TIME'), 1, ''
  if ids.err then return '' end
  local now = t[1] * 1000000 + t[2]
  for i = 1, #ids, 2 do
    local w = ids[i]
    if tonumber(ids[i + 1]) > now then break end -- it was told, and so were all after it
    local deadline, channel = string.match(redis.call('HGET', waiters, w) or '', '^(%d+) %S+ %d+ (%S+) ')
    if not deadline or tonumber(deadline) <= now then
      redis.pcall('ZREM', queue, w)
    else
      local listeners = redis.pcall('PUBLISH', channel, table.concat({'turn', token, place, ARGV[7], w, lock}, '\1'))
      if type(listeners) == 'number' and listeners > 0 then
        if place == 1 then
          told = w
          redis.pcall('SET', turn, w, 'PX', ARGV[7])
          redis.pcall('ZADD', queue, 'XX', deadline, w)
        elseif place == 3 then
          break
        end
        place = place + 1
      end
    end
  end
  return told
end

local found, token, subscribers, told = 'gone', '0', 0, ''
local value, failure = read(lock)
if failure then return failure end
if owner(value) == id then
  local was, round = string.match(value, '^%x+ (%d+) %S+ (%d+) ')
  local mine = ARGV[3] == '-1' or (round and tonumber(round) <= tonumber(ARGV[3]))
  if mine and (must == '' or must == was) then
    redis.call('DEL', lock)
    found, token = 'held', was or '0'
  end
end
if token ~= '0' and redis.call('PEXPIRE', KEYS[6], FENCE_MS) == 0 then redis.pcall('SET', KEYS[6], token, 'PX', FENCE_MS) end
local waited = redis.call('EXISTS', waiters, queue, turn) > 0
if waited and (ARGV[3] == '-1' or ARGV[6] == '1') and (must == '' or must == '0') then
  if unshow(waiters, queue, id) and found == 'gone' then found = 'queued' end
  if redis.pcall('GET', turn) == id then -- it was told to try, and does not, or no longer
    redis.call('DEL', turn)
    local won = token ~= '0' and ARGV[5] ~= '' -- then others are told below
    if not won and (found == 'held' or not value) then told = tell('0') end
  end
end
if ARGV[2] ~= '0' and (must == '' or found ~= 'gone') then
  redis.call('PEXPIRE', KEYS[2], ARGV[2]) -- a write that is always allowed
  redis.call('SET', KEYS[2], '1', 'PX', ARGV[2])
end
if waited and found == 'held' and token ~= '0' and ARGV[5] ~= '' then
  told = tell(token)
  if told == '' then
    local count = redis.pcall('PUBSUB', 'NUMSUB', ARGV[5])
    subscribers = type(count) == 'table' and count[2] or 1
    if subscribers > 0 then redis.pcall('PUBLISH', ARGV[5], 'free\1' .. token .. '\1' .. subscribers) end
  end
end
return {found, id, token, subscribers, told}
