-- Submits exclusive claims that do not wait, in order, until one of them does not get its lock at once.
-- KEYS the locks, their queues, the tombstones of the claims, and the counter of all locks or of each
-- ARGV the ids of all claims, one after the other, ttl ms, "<channel> <info>" of all claims or of each
-- Returns "held <first id>" and the token of each claim that holds its lock, up to the first that does not.
local call = redis.call -- looked up once
local ids, ttl, n = ARGV[1], ARGV[2], #ARGV[1] / 32
local answer, stored, granted = {'held', string.sub(ids, 1, 32)}, {}, n

-- If not all locks are without a holder, a waiter and a tombstone, look at each of them. A claim may be stored already.
if call('EXISTS', unpack(KEYS, 1, 3 * n)) > 0 then
  for i = 1, n do
    local tombstone = call('EXISTS', KEYS[2 * n + i]) == 1
    local value = redis.pcall('GET', KEYS[i]) -- an error if readers or permits hold it
    if not tombstone and type(value) == 'string' and string.sub(value, 1, 32) == string.sub(ids, 32 * i - 31, 32 * i) then
      stored[i] = string.match(value, '^%x+[.+] (%d+)')
    elseif tombstone or call('EXISTS', KEYS[i], KEYS[n + i]) > 0 then
      granted = i - 1
      break
    end
  end
end

-- All tokens come first: at maxmemory the server refuses only the first write of a script, and for a user with few
-- rights every SET or none. So either all claims are stored or none. Claims that share a counter share a token: tokens
-- are compared only with those of the same lock.
local t, tokens, taken = call('TIME'), '1', {}
for i = 1, granted do
  local counter = KEYS[3 * n + i] or KEYS[3 * n + 1]
  if not stored[i] and not taken[counter] then
  --@token
    taken[counter] = token
  end
  answer[i + 2] = stored[i] or taken[counter]
end
for i = 1, granted do
  if stored[i] then call('PEXPIRE', KEYS[i], ttl) end
end
for i = 1, granted do
  if not stored[i] then
    call('SET', KEYS[i], string.sub(ids, 32 * i - 31, 32 * i) .. '. ' .. answer[i + 2] .. ' 1 ' .. (ARGV[i + 2] or ARGV[3]), 'PX', ttl)
  end
end
return table.concat(answer, ' ')
