package faultproxy

import "strings"

// A ledger records which commands of one connection are not answered yet, so that a reply can be
// assigned to its command. The connection's lock guards it.
type ledger struct {
	open []*expected
	// subscribed: there was a subscription, so with RESP2 an array may be a message. RESP3 marks
	// messages itself.
	subscribed bool
}

// An expected is the reply that a command will get.
type expected struct {
	drop   bool   // close instead of forwarding it
	hide   bool   // it answers a duplicate: do not pass it on
	canned []byte // the proxy answers itself with this
	sub    string // for a subscription: the first word of its confirmations
	left   int    // confirmations to come, one for each channel
}

// A verdict is what to do with a reply.
type verdict uint8

const (
	pass verdict = iota
	hide
	closeConn
)

// expect records a command before it goes to the server.
func (l *ledger) expect(args []string, e expected) {
	if verb := strings.ToLower(args[0]); isSubscription(verb) {
		e.sub, e.left = verb, max(1, len(args)-1)
		l.subscribed = true
	}
	l.open = append(l.open, &e)
}

// answer records a command that does not go to the server.
func (l *ledger) answer(reply []byte) {
	l.open = append(l.open, &expected{canned: reply})
}

// match pairs a reply with the oldest open command.
func (l *ledger) match(s shape) verdict {
	if l.isPush(s) {
		return l.confirm(s)
	}
	e := l.answered(s)
	if e == nil {
		return pass
	}
	return e.verdict()
}

func (e *expected) verdict() verdict {
	switch {
	case e.drop:
		return closeConn
	case e.hide:
		return hide
	default:
		return pass
	}
}

// confirm handles messages outside the order of replies: published messages, and confirmations of
// subscriptions, of which a command gets one for each channel. No command waits for unsolicited
// confirmations, such as those after a slot has moved away.
func (l *ledger) confirm(s shape) verdict {
	if len(l.open) == 0 || l.open[0].sub != s.verb {
		return pass
	}
	e := l.open[0]
	e.left--
	if e.left == 0 {
		l.open = l.open[1:]
	}
	return e.verdict()
}

// answered removes and returns the command that a proper reply belongs to. A subscription gets one
// only if it failed; if another reply comes, it has been confirmed before.
func (l *ledger) answered(s shape) *expected {
	for len(l.open) > 0 {
		e := l.open[0]
		l.open = l.open[1:]
		if e.sub == "" || s.isError() {
			return e
		}
	}
	return nil
}

// canned removes and returns the proxy's own answers that are next in order.
func (l *ledger) canned() [][]byte {
	var turn [][]byte
	for len(l.open) > 0 && l.open[0].canned != nil {
		turn = append(turn, l.open[0].canned)
		l.open = l.open[1:]
	}
	return turn
}

// isPush reports whether a frame is outside the order of commands and replies.
func (l *ledger) isPush(s shape) bool {
	if s.kind == '>' {
		return true
	}
	return s.kind == '*' && l.subscribed && (isSubscription(s.verb) && s.count == 3 || isMessage(s))
}

// isMessage reports whether a push or array is a published message.
func isMessage(s shape) bool {
	switch s.verb {
	case "message", "smessage":
		return s.count == 3
	case "pmessage":
		return s.count == 4
	default:
		return false
	}
}

func isSubscription(verb string) bool {
	switch verb {
	case "subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe":
		return true
	default:
		return false
	}
}

// isUnmatched reports whether the numbers of replies and commands differ after this command: the
// connection is then treated as a stream of bytes.
func isUnmatched(args []string) bool {
	switch strings.ToUpper(args[0]) {
	case "MONITOR", "SYNC", "PSYNC":
		return true
	case "CLIENT":
		return len(args) > 1 && strings.EqualFold(args[1], "REPLY")
	default:
		return false
	}
}
