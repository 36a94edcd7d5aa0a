package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A session is a Client on a Backend for as long as one call of the command lasts.
type session struct {
	*Backend
	client *dlock.Client
}

// patience is how many errors of a backend in a row a call endures: some seconds,
// since a user sits in front of it. Connect has found the backend a moment ago.
const patience = 10

// connect opens the backend, finds out whether it answers, and makes a Client on it.
func (w *app) connect(cmd *cobra.Command, log clog.Logger) (*session, error) {
	return w.connectWithin(cmd.Context(), cmd, log, patience)
}

// connectWithin is connect with a context that may end sooner than the command, and with a limit of errors in a row
// unless the configuration has one; 0 is none.
func (w *app) connectWithin(ctx context.Context, cmd *cobra.Command, log clog.Logger, retries int) (*session, error) {
	b, err := w.open(cmd, log)
	if err != nil {
		return nil, err
	}
	s := &session{Backend: b}
	if b.Connect != nil {
		if err := b.Connect(ctx); err != nil {
			s.close()
			return nil, &exit{ExitBackend, w.withCure(err)}
		}
	}
	if err := s.start(log, retries); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// start makes the Client. It does not need the backend to answer.
func (s *session) start(log clog.Logger, retries int) (err error) {
	cfg := s.Config
	if cfg.MaxRetries == 0 {
		cfg.MaxRetries = retries
	}
	cfg.Backend = dlock.BackendType(s.Name)
	s.client, err = dlock.New(&cfg, dlock.WithBackend(s.Opener), dlock.WithAdmin(), dlock.WithLogger(log))
	return backendError(err)
}

// withCure adds to a refusal where a password can be put.
func (w *app) withCure(err error) error {
	if errors.Is(err, dlock.ErrDenied) && w.config == "" && w.getenv("DLOCK_CONFIG") == "" {
		return fmt.Errorf("%w (the password is read from DLOCK_PASSWORD, DLOCK_BACKEND or ?password_file=)", err)
	}
	return err
}

// close gives everything back, the locks first.
func (s *session) close() error {
	var errs []error
	if s.client != nil {
		errs = append(errs, s.client.Close())
	}
	if s.Close != nil {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// logger is where the lock client writes: nowhere, unless the user asks for it.
func (w *app) logger() clog.Logger {
	if !w.verbose {
		return clog.Logger{}
	}
	return debugLog("console", w.stderr)
}

func debugLog(format string, out io.Writer) clog.Logger {
	return clog.New(&clog.Config{Level: "debug", Format: format, Output: out})
}

// admin is the Admin of a session.
func (s *session) admin() (*dlock.Admin, error) {
	a, err := s.client.Admin()
	if err != nil {
		return nil, backendError(fmt.Errorf("%s cannot show its locks: %w", s.Name, err))
	}
	return a, nil
}

// knowsWaiters reports whether the backend can tell who waits. Waiters for a file are known to their own
// processes only.
func (s *session) knowsWaiters() bool { return s.Name != string(dlock.BackendFile) }

// inspect is who has a key and who waits for it, as far as the backend knows.
func (s *session) inspect(ctx context.Context, key string) []dlock.Claim {
	a, err := s.client.Admin()
	if err != nil {
		return nil
	}
	claims, err := a.Inspect(ctx, key)
	if err != nil {
		return nil
	}
	return claims
}
