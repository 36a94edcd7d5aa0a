-- Records that claims wait, and returns which of them were evicted.
-- KEYS tombstone, waiters, queue of each claim
-- ARGV echo, then id, heartbeat ms, info, channel ("": it waits behind others of its process), when it began
--      to wait (us, 0: unknown) of each
-- Returns {echo, answer...}: "waits" or "tombstoned".
--@common
local answers = {ARGV[1]}
local t = redis.call('TIME')
for i = 1, #KEYS / 3 do
  if redis.call('EXISTS', KEYS[3 * i - 2]) == 1 then
    answers[i + 1] = 'tombstoned'
  else
    local at = 5 * i - 3
    show(KEYS[3 * i - 1], KEYS[3 * i], ARGV[at], ARGV[at + 1], t, ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
    answers[i + 1] = 'waits'
  end
end
return answers
