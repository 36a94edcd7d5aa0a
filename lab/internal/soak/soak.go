// Package soak has users call the whole API on real servers for hours, and looks for what
// grows: heap, goroutines and descriptors of the process, keys, bytes and connections of the
// servers.
package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// every is how often the processes and servers are measured.
const every = 10 * time.Second

// rests is how often in a half the users rest for a measurement, and faults how many
// there are in the second half.
const (
	rests  = 20
	faults = 24
)

// A run is all backends at work.
type run struct {
	plan Plan
	logf func(format string, args ...any)

	mu      sync.Mutex // guards what follows
	out     *json.Encoder
	samples []Sample
}

// Run soaks for as long as planned, or until ctx ends. The samples are written to a file as
// they are taken.
func Run(ctx context.Context, plan Plan, path string, logf func(format string, args ...any)) (report Report, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return report, err
	}
	file, err := os.Create(path)
	if err != nil {
		return report, err
	}
	defer file.Close()
	r := &run{plan: plan, logf: logf, out: json.NewEncoder(file)}
	backends, err := r.start(ctx)
	defer func() {
		for _, b := range backends {
			err = errors.Join(err, b.stop())
		}
	}()
	if err != nil {
		return report, err
	}
	r.plan.Begin = time.Now()
	if err := r.out.Encode(r.plan); err != nil {
		return report, err
	}
	var all sync.WaitGroup
	errs := make([]error, len(backends))
	for i, b := range backends {
		b.plan = r.plan
		all.Go(func() { errs[i] = r.soak(ctx, b) })
	}
	all.Wait()
	return NewReport(r.plan, r.samples), errors.Join(errs...)
}

func (r *run) start(ctx context.Context) (all []*backendRun, err error) {
	for i, name := range r.plan.Backends {
		b, err := startBackend(ctx, name, r.plan, uint64(i))
		if err != nil {
			return all, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, b)
		r.logf("%s: pid %d", name, b.child.Process.Pid)
	}
	return all, nil
}

// soak measures and disturbs one backend until the end, and then has its child finish.
func (r *run) soak(ctx context.Context, b *backendRun) error {
	err := r.watch(ctx, b)
	if errors.Is(err, context.Canceled) {
		err = nil // we were told to stop: what there is by now is reported
	}
	last, lastErr := b.finish()
	if lastErr == nil {
		lastErr = r.record(last)
	}
	return errors.Join(err, lastErr)
}

// watch does what is next: a sample, one at rest, or a fault.
func (r *run) watch(ctx context.Context, b *backendRun) error {
	half := r.plan.Half()
	end := r.plan.Begin.Add(r.plan.Duration)
	look, rest := r.plan.Begin, r.plan.Begin.Add(r.restInterval())
	fault := r.plan.Begin.Add(half + half/10)
	happened := ""
	for {
		next := earliest(look, rest, fault)
		pause(ctx, min(time.Until(next), time.Until(end)))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !time.Now().Before(end) {
			return nil
		}
		if next.Equal(fault) {
			what, err := b.injectFault(ctx)
			if err != nil {
				return err
			}
			r.logf("%s: %s", b.name, what)
			happened = what
			fault = after(fault, max(half/faults, time.Minute))
			continue
		}
		sample, err := b.measure(ctx, next.Equal(rest))
		if err != nil {
			return err
		}
		sample.Fault, happened = happened, ""
		if err := r.record(sample); err != nil {
			return err
		}
		rest, look = after(rest, r.restInterval()), after(look, r.interval())
	}
}

// after moves a time that has passed to the next of its kind.
func after(t time.Time, step time.Duration) time.Time {
	for !t.After(time.Now()) {
		t = t.Add(step)
	}
	return t
}

// interval is shorter in a short run, so that there are points enough.
func (r *run) interval() time.Duration { return min(every, r.plan.Half()/rests) }

// restInterval leaves time for work: users need many seconds to come to rest. A short run
// has no rests.
func (r *run) restInterval() time.Duration { return max(r.plan.Half()/rests, 30*time.Second) }

func earliest(first time.Time, others ...time.Time) time.Time {
	for _, t := range others {
		if !t.After(first) {
			first = t
		}
	}
	return first
}

func (r *run) record(s Sample) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples = append(r.samples, s)
	if s.Rest {
		f := s.Figures
		r.logf("%s: %.0f s at rest: heap %.0f KiB, %.0f goroutines, %.0f descriptors, %.0f connections, %.0f names", s.Backend, s.At,
			f[heap]/1024, f[goroutines], f[descriptors], f[connections], f[names])
	}
	return r.out.Encode(s)
}
