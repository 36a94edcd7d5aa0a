package lockreader

import (
	"fmt"
	"os"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// CannotEvict returns why no backend of this kind could evict a holder, and what to do instead, or
// nil if it can.
func CannotEvict(backend dlock.BackendType, key string, token int64, holder dlock.Info) error {
	key = Escape(key)
	switch {
	case backend == dlock.BackendFile && holder.PID == 0:
		return fmt.Errorf("locks that are files end with their process. %s is held by a program that did not say who it is: `lslocks` may show it", key)
	case backend == dlock.BackendFile && isHere(holder.Host) && hasEnded(holder.PID):
		return fmt.Errorf("locks that are files end with their processes. %s was taken by %s, which has ended, and is held by a process that it started: `lslocks` or `fuser` with its file shows which",
			key, Escape(Describe(holder)))
	case backend == dlock.BackendFile:
		return fmt.Errorf("locks that are files end with their process. %s is held by %s: on that host, end it with `kill %d`",
			key, Escape(Describe(holder)), holder.PID)
	case token == 0:
		return fmt.Errorf("%s is held by another library, which gave it no token: remove it with the tools of %s", key, backend)
	}
	return nil
}

// isHere reports whether a holder runs on this host.
func isHere(host string) bool {
	name, err := os.Hostname()
	return err == nil && host == name
}

// EvictionRecord returns the fields of the log line for an eviction. result is "evicted", "refused",
// "failed" if nothing was changed, or "unknown".
func EvictionRecord(result, backend, key string, token int64, holder dlock.Info) []clog.Field {
	return []clog.Field{
		clog.String("result", result), clog.String("backend", backend), clog.String("key", key), clog.Int64("token", token),
		clog.String("owner", holder.Owner), clog.String("host", holder.Host), clog.Int("pid", holder.PID),
	}
}

// EvictionMessage is the message of that line.
const EvictionMessage = "eviction by an operator"
