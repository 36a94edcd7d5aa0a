package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

const (
	startBound = 30 * time.Second // no start takes longer, whatever the context says
	startTries = 10
	startRetry = 100 * time.Millisecond
	pollEvery  = 5 * time.Millisecond
	askBound   = 2 * time.Second // one question to a server that may be paused
	askFirst   = 100 * time.Millisecond
)

var errPortTaken = errors.New("port taken by another program")

// A server is a process that listens on ports which it keeps for life.
type server struct {
	name  string
	proc  *Process
	ports []*port // the first one is for clients
	// ask returns nil when the server answers; errPortTaken if another does.
	ask func(context.Context) error
}

// onFreePorts starts a server, on other ports if somebody was faster.
func onFreePorts[S any](ctx context.Context, name string, try func(context.Context) (S, error)) (started S, err error) {
	ctx, cancel := context.WithTimeout(ctx, startBound)
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

// Addr is where clients connect.
func (s *server) Addr() string { return s.ports[0].addr() }

// Pid is the process id of the present or last life.
func (s *server) Pid() int { return s.proc.Pid() }

// Dir is the working directory, which contains the data.
func (s *server) Dir() string { return s.proc.Dir() }

// Log is the end of the server's log.
func (s *server) Log() string { return s.proc.Log() }

// Running says whether the process exists; a paused one does.
func (s *server) Running() bool { return s.proc.Running() }

// Pause stops the server with SIGSTOP: connections stay open and the kernel
// accepts new ones, but nothing is answered.
func (s *server) Pause() error { return s.proc.Pause() }

// Resume lets a paused server go on with everything that was sent meanwhile.
func (s *server) Resume() error { return s.proc.Resume() }

// Kill ends the server with SIGKILL: what was not persisted is lost.
func (s *server) Kill() error { return s.proc.Kill() }

// Stop ends the server for good and gives back its ports and its directory.
// It reports a server that had ended without being asked to. Stopping twice
// is harmless.
func (s *server) Stop() error {
	err := s.proc.Stop()
	releasePorts(s.ports)
	if err != nil {
		return fmt.Errorf("stop %s %s: %w", s.name, s.Addr(), err)
	}
	return nil
}

// startAgain starts the process until the port can be bound: somebody who
// took it while the server was down may give it back.
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

// awaitReady waits until the server answers. A server that ends instead
// says why in its log.
func (s *server) awaitReady(ctx context.Context) error {
	// Somebody who took the port need not answer at all: do not wait long for
	// the first answer, but do in the end, on a machine that is slow.
	for bound := askFirst; ; bound = min(2*bound, askBound) {
		err := s.ready(ctx, bound)
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

// ready asks once, and only after a plain dial has worked: clients answer
// failed dials with pauses, or with a goroutine that dials on.
func (s *server) ready(ctx context.Context, bound time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
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

// await polls cond until it returns nil. The error at the end of the context
// says what was waited for and what was missing last.
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

// pause waits and says whether the context still lives.
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
