package cli

import (
	"context"
	"errors"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// A watch is one call of dlock watch.
type watch struct {
	*app
	*locks
	prefix   string
	interval time.Duration
	asJSON   bool
}

// A view is where a watch shows what it sees.
type view interface {
	// rows is how many locks it has room for.
	rows() int
	show(snapshot) error
	// close leaves everything as it was.
	close()
}

// A snapshot is what a watch saw.
type snapshot struct {
	at    time.Time
	locks []lock
	of    int  // how many keys there are
	more  bool // than those that were counted
	err   error
}

const (
	defaultInterval = time.Second
	leastInterval   = 100 * time.Millisecond
	maxWatched      = 1000 // keys that are counted, and shown where there is room
)

func (w *app) watchCommand() *cobra.Command {
	v := &watch{app: w}
	cmd := &cobra.Command{
		Use:   "watch [PREFIX]",
		Short: "Watch the locks, as ls shows them",
		Long: `Watch shows what ls shows, of the keys that begin with PREFIX, and keeps it up to date
until q or Ctrl-C is pressed. It shows as many as fit, of the first 1000.

If standard output is no terminal, the table is written again whenever a lock was
taken, given back or handed over, or a waiter came or went. With --json, one
line is written for each lock that has changed: what ls --json says of it, with "time",
and with "event": "held", or "free" if it is neither held nor waited for any more.

A backend that fails meanwhile is reported, and asked again.`,
		Example: `  dlock watch
  dlock watch --interval 5s orders:
  dlock watch --json | jq -c 'select(.event == "free")'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				v.prefix = args[0]
			}
			if v.interval < leastInterval {
				return usage(cmd, "--interval %v is below %v", v.interval, leastInterval)
			}
			return v.do(cmd)
		},
	}
	cmd.Flags().VarP(newDuration(&v.interval, defaultInterval), "interval", "i", "from one look to the next")
	cmd.Flags().BoolVar(&v.asJSON, "json", false, "one line of JSON for each change")
	return w.completesKey(cmd)
}

func (v *watch) do(cmd *cobra.Command) error {
	s, err := v.connect(cmd, v.logger())
	if err != nil {
		return err
	}
	defer func() { _ = s.close() }()
	if v.locks, err = s.locks(); err != nil {
		return err
	}
	first := v.look(cmd.Context(), maxWatched)
	if first.err != nil {
		return backendError(first.err)
	}
	return v.untilSignal(cmd.Context(), first)
}

// untilSignal runs the watch until a signal ends it, also if our output is not read any more.
func (v *watch) untilSignal(parent context.Context, first snapshot) error {
	keyboard, _ := term.GetState(int(v.stdin.Fd())) // none, if it is no terminal
	ctx, stop := untilSignal(parent)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- v.run(ctx, first) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(unreadTimeout):
	}
	if keyboard != nil {
		_ = term.Restore(int(v.stdin.Fd()), keyboard)
	}
	return whyEnded(ctx)
}

// view is a screen for people, and lines for programs.
func (v *watch) view() (view, <-chan byte, error) {
	switch {
	case v.asJSON:
		return &changes{out: v.stdout, errs: v.stderr, last: map[string]string{}}, nil, nil
	case v.drawable(v.stdout):
		return openScreen(v)
	}
	return &printout{app: v.app}, nil, nil
}

// run shows one snapshot after the other. The backend is asked concurrently, so that keys
// are heard while it is silent.
func (v *watch) run(told context.Context, seen snapshot) error {
	out, keys, err := v.view()
	if err != nil {
		return err
	}
	defer out.close()
	ctx, cancel := context.WithCancel(told)
	snapshots := make(chan snapshot)
	asked := false
	defer func() {
		if cancel(); asked {
			<-snapshots
		}
	}()
	due := time.NewTimer(v.interval)
	defer due.Stop()
	for {
		if err := out.show(seen); err != nil {
			return err
		}
		select {
		case <-due.C:
			if rows := out.rows(); !asked {
				asked = true
				go func() { snapshots <- v.look(ctx, rows) }()
			}
		case now := <-snapshots:
			asked = false
			seen = seen.then(now)
			due.Reset(v.interval)
		case key := <-keys:
			if quits(key) {
				return nil
			}
		case <-told.Done():
			return whyEnded(told)
		}
	}
}

// endedBy is 0 for Ctrl-C, which is how a watch ends.
func endedBy(s os.Signal) error {
	if n, ok := s.(syscall.Signal); ok && n != syscall.SIGINT {
		return &exit{exitSignal + int(n), nil}
	}
	return nil
}

// whyEnded is endedBy the signal that has ended a context.
func whyEnded(ctx context.Context) error {
	var s signalled
	_ = errors.As(context.Cause(ctx), &s)
	return endedBy(s.Signal)
}

// then is the next snapshot. One that failed leaves what was seen before.
func (s snapshot) then(next snapshot) snapshot {
	if next.err != nil {
		s.err = next.err
		return s
	}
	return next
}

// look reads the first locks in the order of their keys.
func (v *watch) look(ctx context.Context, most int) snapshot {
	s := snapshot{at: time.Now()}
	var keys []string
	next, err := v.Pages(ctx, v.prefix, "", maxWatched, func(page []string) error {
		keys = append(keys, page...)
		return nil
	})
	if err != nil {
		s.err = err
		return s
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	s.of, s.more = len(keys), next != ""
	s.locks, s.err = v.read(ctx, keys[:min(most, len(keys))])
	return s
}
