package faultproxy

import (
	"slices"
	"strings"
	"sync/atomic"
)

// An Action is what the proxy does with one command.
type Action struct {
	verb actionVerb
	text string
}

type actionVerb uint8

const (
	verbForward actionVerb = iota
	verbDropReply
	verbSwallow
	verbTwice
	verbError
)

var (
	// Forward forwards the command and its reply, as without a rule.
	Forward = Action{verb: verbForward}
	// DropReply forwards the command and, once the server has replied, closes the client's
	// connection instead of forwarding the reply. Replies to earlier commands of a pipeline arrive
	// before that; later commands may or may not reach the server.
	DropReply = Action{verb: verbDropReply}
	// Swallow neither forwards the command nor answers it.
	Swallow = Action{verb: verbSwallow}
	// Twice forwards the command twice; the client sees the first reply.
	Twice = Action{verb: verbTwice}
)

// ReplyError answers the command with an error of this text, such as "TRYAGAIN later", without
// forwarding it. In a pipeline the answer comes in the command's place, after the replies to the
// commands before it.
func ReplyError(text string) Action { return Action{verb: verbError, text: text} }

// A Rule decides on a command. cmd[0] is the name in upper case; the other words are as the client
// sent them. The proxy calls the rule in the goroutine that reads from the client, so a rule that
// blocks holds that one connection. It must not block forever, or Proxy.Close will not return.
type Rule func(cmd []string) Action

// Next returns a rule that takes the action for the next n commands with one of these names, and
// forwards everything else.
func Next(n int, action Action, names ...string) Rule {
	var seen atomic.Int64
	return func(cmd []string) Action {
		if isNamed(cmd, names) && seen.Add(1) <= int64(n) {
			return action
		}
		return Forward
	}
}

// Every returns a rule that takes the action for all commands with one of these names, and forwards
// everything else.
func Every(action Action, names ...string) Rule {
	return func(cmd []string) Action {
		if isNamed(cmd, names) {
			return action
		}
		return Forward
	}
}

func isNamed(cmd, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, cmd[0]) })
}
