-- Records that claims wait, and returns which of them were evicted.
-- KEYS tombstone, waiters of each claim
-- ARGV echo, then id, heartbeat ms, info of each
-- Returns {echo, answer...}: "waits" or "tombstoned".
--@common
local answers = {ARGV[1]}
local t = redis.call('TIME')
for i = 1, #KEYS / 2 do
  if redis.call('EXISTS', KEYS[2 * i - 1]) == 1 then
    answers[i + 1] = 'tombstoned'
  else
    show(KEYS[2 * i], ARGV[3 * i - 1], ARGV[3 * i], t, ARGV[3 * i + 1])
    answers[i + 1] = 'waits'
  end
end
return answers
