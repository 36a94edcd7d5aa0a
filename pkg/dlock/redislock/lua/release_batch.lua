-- Removes claims that hold their locks, if no claim waits for them. Works at maxmemory: its only write is
-- always allowed.
-- KEYS locks
-- ARGV "<id>." of each claim
-- Returns "released <first id>" and 1 for each claim that it has removed, 0 for each other, which it leaves as it is.
local answer, held = {'released', string.sub(ARGV[1], 1, 32)}, {}
for i = 1, #KEYS do
  local value = redis.pcall('GET', KEYS[i]) -- an error if readers or permits hold it
  local own = type(value) == 'string' and string.sub(value, 1, 33) == ARGV[i]
  if own then held[#held + 1] = KEYS[i] end
  answer[i + 2] = own and '1' or '0'
end
if #held > 0 then redis.call('DEL', unpack(held)) end
return table.concat(answer, ' ')
