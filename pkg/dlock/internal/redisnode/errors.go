package redisnode

import (
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// What a server can answer to a lock command. Test with errors.Is.
var (
	// ErrOutOfMemory: the server is at maxmemory. Releases and renewals still
	// work; nothing new is stored.
	ErrOutOfMemory = errors.New("redis is out of memory")
	// ErrNotReady: the server cannot write now (READONLY, LOADING, MASTERDOWN,
	// CLUSTERDOWN, TRYAGAIN, BUSY, NOREPLICAS, a slot on the move).
	ErrNotReady = errors.New("redis is not ready")
	// ErrDenied: the server does not let us in (NOAUTH, WRONGPASS, NOPERM).
	ErrDenied = errors.New("redis denies access")
	// ErrNotALock: the key holds data of another kind, which is left alone.
	ErrNotALock = errors.New("the key holds something else")
	// ErrReply: the answer was not to what we had asked.
	ErrReply = errors.New("unexpected reply")
)

// kinds is the table of docs/backends/redis.md: what the first word of an error
// reply means. In all of these cases the script was not carried out.
var kinds = map[string]struct {
	err   error
	class driver.Class
}{
	"OOM":         {ErrOutOfMemory, driver.Transient},
	"READONLY":    {ErrNotReady, driver.Transient},
	"LOADING":     {ErrNotReady, driver.Transient},
	"MASTERDOWN":  {ErrNotReady, driver.Transient},
	"CLUSTERDOWN": {ErrNotReady, driver.Transient},
	"TRYAGAIN":    {ErrNotReady, driver.Transient},
	"MOVED":       {ErrNotReady, driver.Transient},
	"ASK":         {ErrNotReady, driver.Transient},
	"BUSY":        {ErrNotReady, driver.Transient},
	"NOREPLICAS":  {ErrNotReady, driver.Transient},
	"MISCONF":     {ErrNotReady, driver.Transient},
	"NOSCRIPT":    {ErrNotReady, driver.Transient},
	"NOAUTH":      {ErrDenied, driver.Fatal},
	"WRONGPASS":   {ErrDenied, driver.Fatal},
	"NOPERM":      {ErrDenied, driver.Fatal},
	"WRONGTYPE":   {ErrNotALock, driver.Fatal},
	"CROSSSLOT":   {driver.ErrInvalidKey, driver.Fatal},
}

// Classify says what an error of the client means for the claim. Everything that
// is not a reply of the server leaves the outcome open.
func Classify(err error) error {
	var reply redis.Error
	if err == nil || !errors.As(err, &reply) {
		return err
	}
	word, _, _ := strings.Cut(reply.Error(), " ")
	if k, ok := kinds[word]; ok {
		return driver.Classify(fmt.Errorf("%w: %w", k.err, err), k.class)
	}
	if strings.Contains(reply.Error(), "The user executing the script") { // Redis 7, of a command inside a script
		return driver.Classify(fmt.Errorf("%w: %w", ErrDenied, err), driver.Fatal)
	}
	// The words of an error inside a script may come after others.
	for word, k := range kinds {
		if strings.Contains(reply.Error(), " "+word+" ") || strings.Contains(reply.Error(), "-"+word+" ") {
			return driver.Classify(fmt.Errorf("%w: %w", k.err, err), k.class)
		}
	}
	return driver.Classify(err, driver.Fatal)
}
