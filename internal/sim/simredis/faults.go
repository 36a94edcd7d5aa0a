package simredis

import "strings"

// noRights is the server's answer to a user that may not listen.
var noRights = []byte("-NOPERM this user has no permissions to access one of the channels used as arguments\r\n")

// denied reports whether a command needs rights that the user of its link does not have.
func (c *conn) denied(words []string) bool {
	return c.link != "" && strings.EqualFold(words[0], "SUBSCRIBE") && c.server.sim.Draw(c.link, "rights").IntN(6) == 0
}

// Do carries out a command past all Clients, as an operator would.
func (s *Server) Do(words ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cmd, _, err := s.timed(words)
	if err == nil {
		_, err = s.own.exchange(cmd)
	}
	if err != nil && s.err == nil {
		s.err = err
	}
}

// setBack makes deadlines of waiters an hour later than they should be, as they are when
// the clock of the server was set back, and lets the first of them die.
const setBack = `
local all, first = redis.call('HGETALL', KEYS[1]), redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if all[2] and first[2] then
  local dead = string.rep('d', 32)
  all[#all + 1] = dead
  all[#all + 1] = all[2]
  redis.call('ZADD', KEYS[2], first[2] - 1, dead)
end
for i = 1, #all, 2 do
  local deadline, rest = string.match(all[i + 1], '^(%d+)(.*)$')
  if deadline then redis.call('HSET', KEYS[1], all[i], string.format('%.0f', deadline + 3600000000) .. rest) end
end
return 0`

// Delete loses keys, as an eviction or an operator does.
func (s *Server) Delete(keys ...string) {
	for _, key := range keys {
		s.Do("DEL", key)
	}
}

// SetBack is for the two halves of a queue.
func (s *Server) SetBack(queue, waiters string) { s.Do("EVAL", setBack, "2", waiters, queue) }

// MoveAway lets the server count no subscribers from now on, though they hear, as after a
// failover behind one address; or count them again.
func (s *Server) MoveAway(away bool) {
	if away {
		s.Do("SET", "sim:afar", "1")
		return
	}
	s.Do("DEL", "sim:afar")
}
