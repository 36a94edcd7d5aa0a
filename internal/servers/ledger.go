package servers

import "strings"

// A ledger knows which commands of one connection are not answered yet, so
// that a reply can be told to belong to a command. The connection's lock
// guards it.
type ledger struct {
	open []*expected
	// subscribed: there was a subscription, so that with RESP2 an array may
	// be a message. RESP3 marks them itself.
	subscribed bool
}

// An expected is the reply that a command will get.
type expected struct {
	drop   bool   // hang up instead of passing it on
	hide   bool   // it answers a duplicate: do not pass it on
	canned []byte // the proxy answers itself with this
	sub    string // for a subscription: the first word of its confirmations
	left   int    // confirmations to come, one for each channel
}

// A verdict is what becomes of a reply.
type verdict uint8

const (
	pass verdict = iota
	hide
	hangUp
)

// expect enters a command before it goes to the server.
func (l *ledger) expect(args []string, e expected) {
	if verb := strings.ToLower(args[0]); isSubscription(verb) {
		e.sub, e.left = verb, max(1, len(args)-1)
		l.subscribed = true
	}
	l.open = append(l.open, &e)
}

// answer enters a command that does not go to the server.
func (l *ledger) answer(reply []byte) {
	l.open = append(l.open, &expected{canned: reply})
}

// settle matches a reply with the oldest open command.
func (l *ledger) settle(s shape) verdict {
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
		return hangUp
	case e.hide:
		return hide
	default:
		return pass
	}
}

// confirm handles what comes beside the replies: messages, and confirmations
// of subscriptions, of which a command gets one for each channel. Nobody
// waits for those that come unasked, as when a slot moves away.
func (l *ledger) confirm(s shape) verdict {
	if len(l.open) == 0 || l.open[0].sub != s.verb {
		return pass
	}
	e := l.open[0]
	if e.left--; e.left == 0 {
		l.open = l.open[1:]
	}
	return e.verdict()
}

// answered removes and returns the command that a reply in its proper sense
// belongs to. A subscription gets one only if it failed; if another reply
// comes, it has been confirmed before.
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

// canned removes and returns the proxy's own answers whose turn has come.
func (l *ledger) canned() [][]byte {
	var turn [][]byte
	for len(l.open) > 0 && l.open[0].canned != nil {
		turn = append(turn, l.open[0].canned)
		l.open = l.open[1:]
	}
	return turn
}

// isPush says whether a frame is beside the order of commands and replies.
func (l *ledger) isPush(s shape) bool {
	if s.kind == '>' {
		return true
	}
	return s.kind == '*' && l.subscribed && (isSubscription(s.verb) && s.count == 3 || isMessage(s))
}

// isMessage says whether a push or array is a published message.
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

// isUnmatched says whether a command makes replies and commands differ in
// number from here on: the connection becomes a stream of bytes then.
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
