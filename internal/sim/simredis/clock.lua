-- Stands before every script of a simulation. Gives it the simulation's time, the last of
-- its arguments, and ends keys by that time: the server itself never sees an expiry.
local server, EXPIRY, NOW = redis, 'sim:expiry', tonumber(table.remove(ARGV))
for _, key in ipairs(server.call('ZRANGEBYSCORE', EXPIRY, '-inf', string.format('%.0f', NOW))) do
  server.call('DEL', key)
  server.call('ZREM', EXPIRY, key)
end

local function expire(key, ms) server.call('ZADD', EXPIRY, string.format('%.0f', NOW + ms * 1000), key) end

local function exists(key) return server.call('EXISTS', key) == 1 end

local special = {}

function special.TIME()
  local seconds = math.floor(NOW / 1000000)
  return {string.format('%.0f', seconds), string.format('%.0f', NOW - seconds * 1000000)}
end

function special.PTTL(_, key)
  if not exists(key) then return -2 end
  local at = server.call('ZSCORE', EXPIRY, key)
  if not at then return -1 end
  return math.ceil((at - NOW) / 1000)
end

function special.PEXPIRE(_, key, ms)
  if not exists(key) then return 0 end
  if tonumber(ms) > 0 then expire(key, ms) else server.call('DEL', key) end
  return 1
end

-- While the subscribers sit at a replica, they hear and the server cannot count them.
local function afar() return exists('sim:afar') end

function special.PUBSUB(run, ...)
  local counts = run('PUBSUB', ...)
  if afar() and type(counts) == 'table' and counts[2] then counts[2] = 0 end
  return counts
end

function special.PUBLISH(run, ...)
  local heard = run('PUBLISH', ...)
  return afar() and 0 or heard
end

function special.PERSIST(_, key) return server.call('ZREM', EXPIRY, key) end

function special.SET(run, key, value, ...)
  local rest, given, ms, keep, conditional, get = {}, {...}, nil, false, false, false
  local i = 1
  while i <= #given do
    local word = string.upper(given[i])
    if word == 'PX' or word == 'EX' then
      ms = given[i + 1] * (word == 'EX' and 1000 or 1)
      i = i + 1
    else
      keep = keep or word == 'KEEPTTL'
      conditional = conditional or word == 'NX' or word == 'XX'
      get = get or word == 'GET'
      rest[#rest + 1] = given[i]
    end
    i = i + 1
  end
  local before = conditional and get and exists(key)
  local reply = run('SET', key, value, unpack(rest))
  if type(reply) == 'table' and reply.err then return reply end
  if conditional and not get and not reply then return reply end
  if conditional and get and before then return reply end -- SET NX GET stores nothing
  if ms then expire(key, ms) elseif not keep then server.call('ZREM', EXPIRY, key) end
  return reply
end

-- What creates a key creates it without an expiry, whatever a key of that name had.
local creates = {HSET = 1, HSETNX = 1, ZADD = 1, INCR = 1, INCRBY = 1, RPUSH = 1, LPUSH = 1, SADD = 1}

local function through(run)
  return function(command, key, ...)
    local name = string.upper(command)
    if special[name] then return special[name](run, key, ...) end
    if creates[name] and not exists(key) then server.call('ZREM', EXPIRY, key) end
    if key == nil then return run(command) end
    return run(command, key, ...)
  end
end

local redis = setmetatable({call = through(server.call), pcall = through(server.pcall)}, {__index = server})
