// Package faultdriver wraps a lock backend and injects faults, by rule or at random from a seed:
// calls that fail, that are late, whose request or answer is lost, that arrive twice; pushes that
// are lost, repeated or reordered. It is for tests of the engine and of code that uses it.
package faultdriver

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// ErrInjected is the error of every injected fault.
var ErrInjected = errors.New("injected fault")

// An Op is the operation that a rule applies to.
type Op uint8

// The operations of a driver, and its pushes.
const (
	Acquire Op = iota
	Renew
	Release
	Push
	numOps
)

// A Fault is a kind of failure.
type Fault uint8

const (
	// Fail: the call is not sent, and the error is driver.Transient, which says so.
	Fail Fault = iota
	// LoseRequest: the call is not sent, and the caller cannot tell.
	LoseRequest
	// LoseAnswer: the call is carried out, and the caller cannot tell.
	LoseAnswer
	// Duplicate: the call is carried out twice; the first answer counts.
	Duplicate
	// Delay: the call is sent after Rule.Delay.
	Delay
	// DelayAnswer: the answer comes after Rule.Delay.
	DelayAnswer
	// Blank: a renewal is carried out, and part of its answer is Unknown.
	Blank
	// LosePush, RepeatPush and ReorderPush: a push does not arrive, arrives
	// twice, or after the next one.
	LosePush
	RepeatPush
	ReorderPush
	numFaults
)

// A Rule says when a fault happens.
type Rule struct {
	Op    Op
	Fault Fault
	// Key limits the rule to one key; "" means every key.
	Key string
	// Skip is how many calls pass before the rule begins. Times is the number of faults after which
	// it ends; 0 means that it does not end.
	Skip, Times int
	// Chance is the probability of the fault; 0 means always.
	Chance float64
	// Delay is the delay of Delay and DelayAnswer.
	Delay time.Duration
	// Hang makes a lost request or answer block until the caller's context ends, instead of
	// returning an error at once.
	Hang bool
}

// Faults is a driver.Opener whose drivers are faulty.
type Faults struct {
	inner  driver.Opener
	remote bool

	mu       sync.Mutex
	rng      *rand.Rand
	rules    []*Rule
	injected [numFaults]int
	calls    [numOps]int
}

// New wraps inner. Random choices use seed.
func New(inner driver.Opener, seed uint64, rules ...Rule) *Faults {
	f := &Faults{inner: inner, rng: rand.New(rand.NewPCG(seed, seed))}
	for _, r := range rules {
		f.Add(r)
	}
	return f
}

// Remote makes the drivers report that they cross a network, so that the engine limits its calls.
// It must be called before Open.
func (f *Faults) Remote() *Faults {
	f.remote = true
	return f
}

// Add adds a rule. It applies from the next call on.
func (f *Faults) Add(r Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, &r)
}

// Clear removes all rules, as if the network had recovered.
func (f *Faults) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = nil
}

// Injected returns how often a fault happened, so that a test can assert that it did.
func (f *Faults) Injected(fault Fault) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.injected[fault]
}

// Calls returns how often op was called, faulty or not.
func (f *Faults) Calls(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// Open opens the inner backend and wraps its driver. The result is a driver.Admin if the inner one
// is. Admin calls get no faults.
func (f *Faults) Open(o driver.Options) (driver.Driver, error) {
	d, err := f.inner.Open(o)
	if err != nil {
		return nil, err
	}
	w := &faulty{Driver: d, faults: f, events: make(chan driver.Event, 256), stop: make(chan struct{})}
	w.forwarding.Go(w.forwardPushes)
	if a, ok := d.(driver.Admin); ok {
		return &faultyAdmin{w, a}, nil
	}
	return w, nil
}

// draw returns the rules that apply to a call.
func (f *Faults) draw(op Op, keys ...string) []Rule {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[op]++
	var strikes []Rule
	for _, r := range f.rules {
		if r.Op != op || !r.concerns(keys) || r.Times < 0 {
			continue
		}
		if r.Skip > 0 {
			r.Skip--
			continue
		}
		if r.Chance > 0 && f.rng.Float64() >= r.Chance {
			continue
		}
		if r.Times > 0 {
			r.Times--
			if r.Times == 0 {
				r.Times = -1 // used up
			}
		}
		f.injected[r.Fault]++
		strikes = append(strikes, *r)
	}
	return strikes
}

func (r *Rule) concerns(keys []string) bool {
	if r.Key == "" {
		return true
	}
	for _, k := range keys {
		if k == r.Key {
			return true
		}
	}
	return false
}

// call carries out one call under the rules that apply to it.
func call[T any](ctx context.Context, strikes []Rule, do func() (T, error)) (T, error) {
	var none T
	var answer []Rule
	for _, r := range strikes {
		switch r.Fault {
		case Fail:
			return none, driver.Classify(ErrInjected, driver.Transient)
		case LoseRequest:
			return none, silence(ctx, r)
		case Delay:
			if err := pass(ctx, r.Delay); err != nil {
				return none, err
			}
		case Duplicate:
			first, err := do()
			_, _ = do()
			return first, err
		default:
			answer = append(answer, r)
		}
	}
	st, err := do()
	for _, r := range answer {
		switch r.Fault {
		case LoseAnswer:
			return none, silence(ctx, r)
		case DelayAnswer:
			if err := pass(ctx, r.Delay); err != nil {
				return none, err
			}
		default:
		}
	}
	return st, err
}

func silence(ctx context.Context, r Rule) error {
	if r.Hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return ErrInjected
}

func pass(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
