-- Removes a claim from this node and notifies waiters that the lock is free. Works at
-- maxmemory: it begins with DEL, HDEL or PEXPIRE.
-- KEYS lock, tombstone, waiters
-- ARGV id, tombstone ms (0: no tombstone), round (-1: any; else only if it was stored by this round
--      or an earlier one, and the waiter stays), token that must match ("": any), channel ("": nothing
--      is published), "1" to remove the waiter as well
-- Returns {found, id, token, subscribers}: "held", "queued" or "gone".
local lock, id, must = KEYS[1], ARGV[1], ARGV[4]

local found, token, subscribers = 'gone', '0', 0
local value = redis.pcall('GET', lock)
if type(value) == 'string' and string.sub(value, 1, 32) == id then
  local was, round = string.match(value, '^%x+ (%d+) %S+ (%d+) ')
  local mine = ARGV[3] == '-1' or (round and tonumber(round) <= tonumber(ARGV[3]))
  if mine and (must == '' or must == was) then
    redis.call('DEL', lock)
    found, token = 'held', was or '0'
  end
end
if (ARGV[3] == '-1' or ARGV[6] == '1') and (must == '' or must == '0') and redis.call('HDEL', KEYS[3], id) == 1 and found == 'gone' then
  found = 'queued'
end
if ARGV[2] ~= '0' and (must == '' or found ~= 'gone') then
  redis.call('PEXPIRE', KEYS[2], ARGV[2]) -- a write that is always allowed
  redis.call('SET', KEYS[2], '1', 'PX', ARGV[2])
end
if found == 'held' and token ~= '0' and ARGV[5] ~= '' then
  local count = redis.pcall('PUBSUB', 'NUMSUB', ARGV[5])
  subscribers = type(count) == 'table' and count[2] or 1
  if subscribers > 0 then redis.pcall('PUBLISH', ARGV[5], 'free\1' .. token .. '\1' .. subscribers) end
end
return {found, id, token, subscribers}
