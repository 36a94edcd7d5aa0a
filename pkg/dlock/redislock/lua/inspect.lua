-- Returns the claims on a lock, one page at a time. Writes nothing.
-- KEYS lock, queue, waiters, holders
-- ARGV where the page begins: "-inf" at first; then what the last page returned
-- Returns {now us, held, pttl, where the next page begins or "" at the end, id, record, id,
-- record...}. held is "=" and the value of the lock, "~" and the mode of readers or permits, or "" if the
-- lock is free. Readers and permits come first, with "=<deadline us> " before their records, and then
-- the queue in order.
--@common
local lock, queue, waiters, holders, from = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1]
local PAGE = 500
local shown = {digits(clock()), '', redis.call('PTTL', lock), ''}
local value = redis.pcall('GET', lock)
if type(value) == 'string' then shown[2] = '=' .. value end

-- add adds the claims of a page; before is what precedes their records.
local function add(ids, records, before)
  for i, id in ipairs(ids) do
    shown[#shown + 1] = id
    shown[#shown + 1] = before[i] .. (records[i] or '')
  end
end

if type(value) == 'table' then
  local mode, failure = mode_of(lock, value)
  if not mode then return failure end
  shown[2] = '~' .. mode
  local rank = from == '-inf' and 0 or tonumber(string.match(from, '^#(%d+)'))
  if rank then
    local page, ids, deadlines = redis.call('ZRANGE', lock, rank, rank + PAGE - 1, 'WITHSCORES'), {}, {}
    for i = 1, #page, 2 do
      if page[i] ~= mode then ids[#ids + 1], deadlines[#deadlines + 1] = page[i], '=' .. page[i + 1] .. ' ' end
    end
    if #ids > 0 then add(ids, redis.call('HMGET', holders, unpack(ids)), deadlines) end
    if #ids == PAGE then
      shown[4] = '#' .. rank + PAGE
      return shown
    end
    from = '-inf'
  end
elseif string.sub(from, 1, 1) == '#' then
  from = '-inf' -- the holders are others by now
end

local page, ids, none = redis.call('ZRANGE', queue, from, '+inf', 'BYSCORE', 'LIMIT', 0, PAGE, 'WITHSCORES'), {}, {}
for i = 1, #page, 2 do ids[#ids + 1], none[#none + 1] = page[i], '' end
if #ids == PAGE then shown[4] = '(' .. page[#page] end
if #ids > 0 then add(ids, redis.call('HMGET', waiters, unpack(ids)), none) end
return shown
