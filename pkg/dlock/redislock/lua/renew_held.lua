-- Renews held claims. Works at maxmemory: its only write is PEXPIRE.
-- KEYS lock...
-- ARGV echo, then id and ttl ms of each lock
-- Returns {echo, token...}; the token is empty if the claim does not hold the lock.
local answers = {ARGV[1]}
for i, lock in ipairs(KEYS) do
  local value = redis.pcall('GET', lock)
  if type(value) == 'string' and string.sub(value, 1, 32) == ARGV[2 * i] then
    redis.call('PEXPIRE', lock, ARGV[2 * i + 1])
    answers[i + 1] = string.match(value, '^%x+[.+] (%d+) ') or ''
  else
    answers[i + 1] = ''
  end
end
return answers
