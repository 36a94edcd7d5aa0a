package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/ceyewan/genesis/internal/loopback"
)

const (
	startTimeout = 30 * time.Second // no start takes longer, whatever the context says
	startTries   = 10
	startRetry   = 100 * time.Millisecond
	pollEvery    = 5 * time.Millisecond
	askTimeout   = 2 * time.Second // one question to a server that may be paused
	askFirst     = 100 * time.Millisecond
)

var errPortTaken = errors.New("port taken by another program")

// A server is a process that listens on ports that it keeps through restarts.
type server struct {
	name  string
	proc  *Process
	ports []*loopback.Port // the first one is for clients
	// ask returns nil when the server answers, and errPortTaken if another server does.
	ask func(context.Context) error
}

// onFreePorts starts a server, on other ports if another process took them first.
func onFreePorts[S any](ctx context.Context, name string, try func(context.Context) (S, error)) (started S, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for range startTries {
		if started, err = try(ctx); err == nil {
			return started, nil
		}
		if !errors.Is(err, errPortTaken) {
			break
		}
	}
	return started, fmt.Errorf("start %s: %w", name, err)
}

// Addr returns the address for clients.
func (s *server) Addr() string { return s.ports[0].Addr() }

// Pid returns the process ID of the current or last run.
func (s *server) Pid() int { return s.proc.Pid() }

// Dir returns the working directory, which contains the data.
func (s *server) Dir() string { return s.proc.Dir() }

// Log returns the end of the server's log.
func (s *server) Log() string { return s.proc.Log() }

// Running reports whether the process exists, which includes a paused one.
func (s *server) Running() bool { return s.proc.Running() }

// Pause stops the server with SIGSTOP: connections stay open and the kernel accepts new ones, but
// the server answers nothing.
func (s *server) Pause() error { return s.proc.Pause() }

// Resume continues a paused server, which then handles everything that was sent meanwhile.
func (s *server) Resume() error { return s.proc.Resume() }

// Kill ends the server with SIGKILL: data that was not persisted is lost.
func (s *server) Kill() error { return s.proc.Kill() }

// Stop ends the server permanently and releases its ports and its directory. It reports a server
// that had ended without being asked to. A second Stop does nothing.
func (s *server) Stop() error {
	err := s.proc.Stop()
	loopback.ReleasePorts(s.ports)
	if err != nil {
		return fmt.Errorf("stop %s %s: %w", s.name, s.Addr(), err)
	}
	return nil
}

// startAgain starts the process until the port can be bound: a process that took the port while the
// server was down may release it.
func (s *server) startAgain(ctx context.Context) error {
	for {
		if err := s.proc.Restart(); err != nil {
			return err
		}
		err := s.awaitReady(ctx)
		if !errors.Is(err, errPortTaken) {
			return err
		}
		if !pause(ctx, startRetry) {
			return err
		}
	}
}

// awaitReady waits until the server answers. A server that ends instead gives the reason in its
// log.
func (s *server) awaitReady(ctx context.Context) error {
	// A process that took the port may never answer: the wait for an answer is short at first, and
	// becomes longer for a slow machine.
	for timeout := askFirst; ; timeout = min(2*timeout, askTimeout) {
		err := s.ready(ctx, timeout)
		if err == nil {
			return nil
		}
		if !s.Running() {
			return s.startFailure()
		}
		if !pause(ctx, pollEvery) {
			return fmt.Errorf("%s %s does not answer: %w (%w)\n%s", s.name, s.Addr(), context.Cause(ctx), err, s.Log())
		}
	}
}

// ready asks once, and only after a plain dial has succeeded: clients react to failed dials with
// pauses, or with a goroutine that keeps dialing.
func (s *server) ready(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	probe, err := new(net.Dialer).DialContext(ctx, "tcp4", s.Addr())
	if err != nil {
		return err
	}
	probe.Close()
	return s.ask(ctx)
}

func (s *server) startFailure() error {
	log := s.Log()
	if strings.Contains(strings.ToLower(log), "address already in use") {
		return fmt.Errorf("%w: %s", errPortTaken, s.Addr())
	}
	return fmt.Errorf("%s %s ended while starting:\n%s", s.name, s.Addr(), log)
}

// await polls cond until it returns nil. The error at the end of the context says what was awaited,
// and includes the last error of cond.
func await(ctx context.Context, what string, cond func(context.Context) error) error {
	for {
		err := cond(ctx)
		if err == nil {
			return nil
		}
		if !pause(ctx, pollEvery) {
			return fmt.Errorf("waiting for %s: %w (%w)", what, context.Cause(ctx), err)
		}
	}
}

// pause waits and reports whether the context is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
