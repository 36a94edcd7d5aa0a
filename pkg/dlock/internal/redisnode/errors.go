package redisnode

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// Errors that a server can return for a lock command, in addition to the errors of package driver.
// Test with errors.Is.
var (
	// ErrOutOfMemory: the server has reached maxmemory. Releases and renewals still work; new
	// claims are not stored. It is an ErrNotReady.
	ErrOutOfMemory = fmt.Errorf("%w: redis is out of memory", driver.ErrNotReady)
	// ErrNotALock: the key holds data of another kind, which is left unchanged.
	ErrNotALock = driver.ErrNotALock
	// ErrUnexpectedReply: the answer does not match the request.
	// It is an ErrNotReady.
	ErrUnexpectedReply = xerrors.NewOf(driver.ErrNotReady, "unexpected_reply", "unexpected reply")
)

type kind struct {
	err   error
	class driver.Class
}

// kinds is the table of docs/backends/redis.md: the meaning of the first word of an error reply. In
// all of these cases the script was not carried out, or, without the documented rights, not to its end.
var kinds = map[string]kind{
	"OOM":         {ErrOutOfMemory, driver.Transient},
	"READONLY":    {driver.ErrNotReady, driver.Transient},
	"LOADING":     {driver.ErrNotReady, driver.Transient},
	"MASTERDOWN":  {driver.ErrNotReady, driver.Transient},
	"CLUSTERDOWN": {driver.ErrNotReady, driver.Transient},
	"TRYAGAIN":    {driver.ErrNotReady, driver.Transient},
	"MOVED":       {driver.ErrNotReady, driver.Transient},
	"ASK":         {driver.ErrNotReady, driver.Transient},
	"BUSY":        {driver.ErrNotReady, driver.Transient},
	"NOREPLICAS":  {driver.ErrNotReady, driver.Transient},
	"MISCONF":     {driver.ErrNotReady, driver.Transient},
	"NOSCRIPT":    {driver.ErrNotReady, driver.Transient},
	"NOAUTH":      {driver.ErrDenied, driver.Fatal},
	"WRONGPASS":   {driver.ErrDenied, driver.Fatal},
	"NOPERM":      {driver.ErrDenied, driver.Fatal},
	"WRONGTYPE":   {ErrNotALock, driver.Fatal},
	"CROSSSLOT":   {driver.ErrInvalidKey, driver.Fatal},
}

// Classify says what an error of the client means for a call that changes nothing. A call that
// stores a claim is a Command, which knows more.
func Classify(err error) error {
	if isUnsent(err) {
		return Unsent(err)
	}
	return classifyReply(err)
}

// classifyReply says what an error of a call that was sent means. Every error that is not a reply
// of the server leaves the outcome unknown.
func classifyReply(err error) error {
	var reply redis.Error
	if err == nil || !errors.As(err, &reply) {
		return err
	}
	text := reply.Error()
	word, _, _ := strings.Cut(text, " ")
	k, ok := kinds[word]
	switch {
	case ok:
	case strings.Contains(text, "The user executing the script"), strings.Contains(text, "ACL failure in script"): // Redis 7.0, and later
		k = kinds["NOPERM"]
	case strings.HasPrefix(text, "ERR max number of clients"):
		k = kinds["BUSY"]
	case strings.Contains(text, "attempted to access a non local key"): // the slot is moving, and a part was carried out
		k = kind{driver.ErrNotReady, driver.Ambiguous}
	case strings.Contains(text, "while the cluster is down"): // with cluster-allow-reads-when-down, of the first write
		k = kinds["CLUSTERDOWN"]
	default:
		k = kindWithin(text)
	}
	err = &plainReply{err}
	if k.err == nil {
		return driver.Classify(err, driver.Fatal)
	}
	if strings.Contains(text, "READONLY ") {
		err = fmt.Errorf("this server is a replica, connect to the master: %w", err)
	}
	return driver.Classify(fmt.Errorf("%w: %w", k.err, err), k.class)
}

// An errorText is an error that a script has returned as text: for one of several claims, of which the others have
// other answers. An error inside of a list would not do: the client ends with it, and leaves the rest of the list unread.
type errorText string

func (e errorText) Error() string { return string(e) }

// RedisError makes it an error of the server.
func (errorText) RedisError() {}

// ReplyError says what the text of an error of the server means, as Classify does.
func ReplyError(text string) error { return classifyReply(errorText(text)) }

// deniedKeys is how servers say that a user may not access a key: Redis 6 and 7.0 (also inside of a script), later ones,
// and those that name the key.
var deniedKeys = []string{"one of the keys", "permissions to access a key", "' key"}

// DeniedKey reports whether the server has refused a command because of a key, and not because of the command: it may
// permit the same command for other keys.
func DeniedKey(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) || !errors.Is(classifyReply(reply), driver.ErrDenied) {
		return false
	}
	return slices.ContainsFunc(deniedKeys, func(text string) bool { return strings.Contains(reply.Error(), text) })
}

// A plainReply leaves out of an error where in our script it occurred.
type plainReply struct{ error }

func (p *plainReply) Error() string {
	text := p.error.Error()
	if i := strings.LastIndex(text, " script: "); i >= 0 && strings.Contains(text[i:], "@user_script") {
		return text[:i]
	}
	return text
}

func (p *plainReply) Unwrap() error { return p.error }

// kindWithin finds the error word of a command inside a script. Other words may precede it.
func kindWithin(text string) kind {
	for word, k := range kinds {
		if strings.Contains(text, " "+word+" ") || strings.Contains(text, "-"+word+" ") {
			return k
		}
	}
	return kind{}
}
