package connector

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/clog"
)

// A link is the common part of all connectors: it calls the server within a timeout, and it closes
// the client once.
type link struct {
	name    string // redis or etcd
	addrs   []string
	timeout time.Duration
	log     clog.Logger
	secrets []string // in all forms that are hidden
	ask     func(context.Context) error
	shut    func() error

	lifetime context.Context // ends with Close
	end      context.CancelFunc
	once     sync.Once
	closeErr error

	mu    sync.Mutex // orders calls.Go before calls.Wait
	calls sync.WaitGroup
}

func newLink(name string, addrs []string, timeout time.Duration, log clog.Logger, secrets ...string) *link {
	l := &link{name: name, addrs: addrs, timeout: timeout, secrets: secretForms(secrets)}
	l.log = log.WithNamespace("connector").With(clog.String("connector", name), clog.String("addr", l.where()))
	l.lifetime, l.end = context.WithCancel(context.Background())
	return l
}

func (l *link) where() string { return strings.Join(l.addrs, ",") }

func (l *link) describe() string {
	if l == nil {
		return "no connector"
	}
	return l.name + " " + l.where()
}

// errUnmade is the error of a connector that is a zero value.
var errUnmade = fmt.Errorf("connector: %w: it was not made by a constructor", ErrConfigNil)

func (l *link) connect(ctx context.Context) error {
	if err := l.try(ctx, "connect"); err != nil {
		return err
	}
	l.log.Info("connected") //nolint:contextcheck // a Logger takes none
	return nil
}

// try calls the server once. It returns when ctx ends, even if the client does not honor ctx.
func (l *link) try(ctx context.Context, op string) error {
	switch {
	case l == nil:
		return errUnmade
	case ctx == nil:
		return l.fail(op, invalid("context", "is nil"))
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	defer context.AfterFunc(l.lifetime, cancel)() //nolint:contextcheck // whichever ends first
	answer := make(chan error, 1)
	if !l.start(func() { answer <- l.ask(ctx) }) {
		return l.fail(op, ErrClosed)
	}
	var err error
	select {
	case err = <-answer:
		if end := ended(ctx); err != nil && end != nil {
			err = fmt.Errorf("%w: %w", end, err)
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	switch {
	case err == nil:
		return nil
	case l.lifetime.Err() != nil:
		return l.fail(op, ErrClosed)
	}
	return l.fail(op, err)
}

// ended returns ctx.Err, also when a socket with the same deadline reported it first.
func ended(ctx context.Context) error {
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

func (l *link) start(call func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lifetime.Err() != nil {
		return false
	}
	l.calls.Go(call)
	return true
}

func (l *link) close() error {
	if l == nil {
		return errUnmade
	}
	l.once.Do(func() {
		l.mu.Lock()
		l.end()
		l.mu.Unlock()
		l.closeErr = l.shut()
		l.calls.Wait()
		l.log.Info("closed")
	})
	return l.closeErr
}

func (l *link) fail(op string, err error) error {
	return fmt.Errorf("connector: %s: %s: %w", l.describe(), op, typed(err, netKind(err)))
}
