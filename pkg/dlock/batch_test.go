package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// batching makes a driver.Batcher of each driver of a backend. It records the batches.
type batching struct {
	driver.Opener
	before func(batch string) error // called before a batch, such as "acquire a b"
	after  func(batch string) error // called after it
	leaves string                   // a key that ReleaseBatch leaves

	mu  sync.Mutex
	ids []string // of the claims of each batch
	log []string
}

type batchingDriver struct {
	driver.Driver
	driver.Admin
	b *batching
}

func (b *batching) Open(o driver.Options) (driver.Driver, error) {
	d, err := b.Opener.Open(o)
	admin, _ := d.(driver.Admin)
	return &batchingDriver{d, admin, b}, err
}

func (b *batching) batches() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.log)
}

// run records a batch and runs it between before and after.
func (b *batching) run(op string, refs []driver.Ref, f func() ([]driver.State, error)) ([]driver.State, error) {
	var ids []string
	for _, r := range refs {
		op, ids = op+" "+r.Key, append(ids, r.ID)
	}
	b.mu.Lock()
	b.log, b.ids = append(b.log, op), append(b.ids, strings.Join(ids, " "))
	b.mu.Unlock()
	if b.before != nil {
		if err := b.before(op); err != nil {
			return nil, err
		}
	}
	states, err := f()
	if err == nil && b.after != nil {
		err = b.after(op)
	}
	return states, err
}

func (d *batchingDriver) CanBatch(keys []string) bool { return !slices.Contains(keys, "alone") }

func (d *batchingDriver) AcquireBatch(ctx context.Context, rs []driver.Request) ([]driver.State, error) {
	var refs []driver.Ref
	for _, r := range rs {
		refs = append(refs, r.Ref)
	}
	return d.b.run("acquire", refs, func() ([]driver.State, error) {
		states := make([]driver.State, len(rs))
		for i := range states {
			states[i].Phase = driver.Gone
		}
		for i, r := range rs {
			st, err := d.Acquire(ctx, r)
			if err != nil {
				return nil, err
			}
			if states[i] = st; st.Phase != driver.Held {
				break
			}
		}
		return states, nil
	})
}

func (d *batchingDriver) ReleaseBatch(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	return d.b.run("release", refs, func() ([]driver.State, error) {
		states := make([]driver.State, len(refs))
		for i, r := range refs {
			if r.Key == d.b.leaves {
				continue
			}
			var err error
			if states[i], err = d.Release(ctx, r); err != nil {
				return nil, err
			}
		}
		return states, nil
	})
}

func wantBatches(t *testing.T, b *batching, want ...string) {
	t.Helper()
	if got := b.batches(); !slices.Equal(got, want) {
		t.Errorf("the batches are %q, not %q", got, want)
	}
}

// Keys that can be are acquired and released in one call each, and are ordinary locks otherwise.
func TestAcquireAllInOneCall(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		b := &batching{Opener: store}
		c, other := client(t, b, dlock.Config{}), client(t, store, dlock.Config{})
		all := acquireAll(t, c, "b", "c", "a")
		for _, key := range all.Keys() {
			if claims := inspect(t, other, key); len(claims) != 1 || claims[0].Token != all.Token(key) || all.Token(key) == 0 {
				t.Errorf("%q: claims %v, token %d", key, claims, all.Token(key))
			}
		}
		elapse(time.Minute) // it is renewed
		wantErr(t, all.Unlock(ctx))
		wantErr(t, all.Unlock(ctx), dlock.ErrLockNotHeld)
		wantBatches(t, b, "acquire a b c", "release a b c")
		nothing(t, other, "a", "b", "c")

		wantErr(t, acquireAll(t, c, "a", "alone").Unlock(ctx))
		wantErr(t, acquireAll(t, c, "a").Unlock(ctx))
		wantBatches(t, b, "acquire a b c", "release a b c")
		shared, err := c.AcquireAll(ctx, []string{"a", "b"}, dlock.WithShared())
		wantErr(t, err)
		wantErr(t, shared.Unlock(ctx))
		wantBatches(t, b, "acquire a b c", "release a b c")
		nothing(t, other, "a", "b", "alone")
		if n := c.Entries(); n != 0 {
			t.Errorf("%d entries are left", n)
		}
	})
}

// A key that is taken is waited for, with those before it held and none after it.
func TestAcquireAllWaitsAfterABatch(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		b := &batching{Opener: store}
		c, other := client(t, b, dlock.Config{}), client(t, store, dlock.Config{})
		taken := acquire(t, other, "b")
		waits := async(func() error {
			all, err := c.AcquireAll(ctx, []string{"a", "b", "c"})
			if err != nil {
				return err
			}
			return all.Unlock(ctx)
		})
		elapse(time.Second)
		for key, want := range map[string]int{"a": 1, "b": 2, "c": 0} {
			if claims := inspect(t, other, key); len(claims) != want {
				t.Errorf("%q has %v", key, claims)
			}
		}
		unlock(t, taken)
		wantErr(t, <-waits)
		_, err := c.AcquireAll(ctx, []string{"x", "y"}, dlock.WithWait(0))
		wantErr(t, err)
		wantBatches(t, b, "acquire a b c", "release a b c", "acquire x y")
		_, err = c.AcquireAll(ctx, []string{"w", "x"}, dlock.WithWait(0))
		wantErr(t, err, dlock.ErrLockHeldByOther)
		elapse(time.Second)
		nothing(t, other, "a", "b", "c", "w")
	})
}

// first returns a hook that fails the first batch of an operation.
func (b *batching) first(op string, err error) func(string) error {
	return func(batch string) error {
		of := slices.DeleteFunc(b.batches(), func(one string) bool { return !strings.HasPrefix(one, op) })
		if strings.HasPrefix(batch, op) && len(of) == 1 {
			return err
		}
		return nil
	}
}

// A batch that fails is sent again with the same IDs, whether it was carried out or not. One that the backend refuses
// leaves nothing, and its keys are acquired alone.
func TestAcquireAllAfterAFailedBatch(t *testing.T) {
	again := []string{"acquire a b", "acquire a b", "release a b"}
	for name, failure := range map[string]struct {
		err     error
		carried bool // the batch is carried out
		want    []string
	}{
		"transient":       {driver.Classify(errors.New("no"), driver.Transient), false, again},
		"request lost":    {errors.New("no"), false, again},
		"answer lost":     {errors.New("no"), true, again},
		"attempt timeout": {sharedtimeout.ErrAttemptTimeout, true, again},
		"refused":         {driver.Classify(errors.New("no"), driver.Fatal), false, []string{"acquire a b", "release a b"}},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store := memlock.New()
				b := &batching{Opener: store}
				if b.before = b.first("acquire", failure.err); failure.carried {
					b.before, b.after = nil, b.before
				}
				c, other := client(t, b, dlock.Config{}), client(t, store, dlock.Config{})
				all := acquireAll(t, c, "a", "b")
				if name != "refused" && b.ids[0] != b.ids[1] {
					t.Errorf("the IDs are %q", b.ids)
				}
				elapse(time.Minute)
				for _, key := range all.Keys() {
					if claims := inspect(t, other, key); len(claims) != 1 || claims[0].Token != all.Token(key) {
						t.Errorf("%q has %v, not only the token %d", key, claims, all.Token(key))
					}
				}
				wantErr(t, all.Unlock(ctx))
				wantBatches(t, b, failure.want...)
				elapse(time.Minute)
				nothing(t, other, "a", "b")
				if n := c.Entries() + c.Unanswered(); n != 0 {
					t.Errorf("%d entries are left", n)
				}
			})
		})
	}
}

// The answer of a batch is lost: a call that does not wait, or that has waited for long enough, does not know the outcome.
// It never takes its own claims for those of another.
func TestLostBatchIsNotHeldByOther(t *testing.T) {
	for name, opts := range map[string][]dlock.LockOption{
		"try": {dlock.WithWait(0)}, "wait": {dlock.WithWait(time.Second)}, "short wait": {dlock.WithWait(10 * time.Millisecond)},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store, faults := faulty(faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseRequest})
				b := &batching{Opener: faults, after: func(string) error { return errors.New("lost") }}
				c, other := client(t, b, dlock.Config{}), client(t, store, dlock.Config{})
				_, err := c.AcquireAll(ctx, []string{"a", "b", "c"}, opts...)
				if !errors.Is(err, dlock.ErrUnknownOutcome) || errors.Is(err, dlock.ErrLockHeldByOther) {
					t.Errorf("error %v", err)
				}
				faults.Clear()
				elapse(2 * time.Second)
				nothing(t, other, "a", "b", "c")
				if n := c.Entries() + c.Unanswered(); n != 0 {
					t.Errorf("%d entries are left", n)
				}
			})
		})
	}
}

// The same without a batch.
func TestLostTryIsNotHeldByOther(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty(faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.LoseAnswer, Times: 2},
			faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseRequest})
		b := &batching{Opener: faults}
		c, other := client(t, b, dlock.Config{}), client(t, store, dlock.Config{})
		_, err := c.AcquireAll(ctx, []string{"a", "alone"}, dlock.WithWait(time.Second))
		if !errors.Is(err, dlock.ErrUnknownOutcome) || errors.Is(err, dlock.ErrLockHeldByOther) {
			t.Errorf("error %v", err)
		}
		faults.Clear()
		elapse(2 * time.Second)
		nothing(t, other, "a", "alone")
	})
}

// A batch was carried out and not answered, and one of its locks was evicted and given to another: the second attempt
// stops there, and what it leaves behind is not taken for a claim of another.
func TestBatchIsTakenBackBehindATakenKey(t *testing.T) {
	for _, stays := range []bool{false, true} { // the claim that is left cannot be released
		t.Run(fmt.Sprint(stays), func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store := memlock.New()
				faults := faultdriver.New(store, 1).Remote()
				b := &batching{Opener: faults}
				c, other := client(t, b, dlock.Config{}), client(t, store, dlock.Config{})
				var taken *dlock.Guard
				fail := b.first("acquire", sharedtimeout.ErrAttemptTimeout)
				b.after = func(batch string) error {
					if len(b.batches()) > 1 {
						return nil
					}
					admin, err := other.Admin()
					wantErr(t, err)
					wantErr(t, admin.Evict(ctx, "b", inspect(t, other, "b")[0].Token))
					taken = acquire(t, other, "b")
					if stays {
						faults.Add(faultdriver.Rule{Op: faultdriver.Release, Key: "c", Fault: faultdriver.LoseRequest})
					}
					return fail(batch)
				}
				result := async(func() error {
					all, err := c.AcquireAll(ctx, []string{"a", "b", "c"}, dlock.WithWait(5*time.Second))
					if err != nil {
						return err
					}
					return all.Unlock(ctx)
				})
				elapse(time.Second)
				unlock(t, taken)
				err := <-result
				if stays && (!errors.Is(err, dlock.ErrUnknownOutcome) || errors.Is(err, dlock.ErrLockHeldByOther)) || !stays && err != nil {
					t.Errorf("error %v", err)
				}
				faults.Clear()
				elapse(2 * time.Second)
				nothing(t, other, "a", "b", "c")
			})
		})
	}
}

// A call that must not overtake the releases of several keys waits for all of them together.
func TestBatchAwaitsReleasesTogether(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty()
		c, other := client(t, faults, dlock.Config{}), client(t, store, dlock.Config{})
		keys := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
		all, err := c.AcquireAll(ctx, keys, dlock.WithAsyncUnlock())
		wantErr(t, err)
		faults.Add(faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseRequest, Hang: true})
		wantErr(t, all.Unlock(ctx))
		begun := time.Now()
		_, err = c.AcquireAll(ctx, keys, dlock.WithWait(0))
		wantErr(t, err, dlock.ErrLockHeldByOther)
		if took := time.Since(begun); took > 450*time.Millisecond { // once for all keys, and once for the first alone
			t.Errorf("the call took %v", took)
		}
		faults.Clear()
		elapse(time.Minute)
		nothing(t, other, keys...)
	})
}

// Unlock does not outlive its context, or its own timeout, whether a batch hangs or fails.
func TestUnlockOfABatchEndsInTime(t *testing.T) {
	for _, hang := range []bool{false, true} {
		for name, limit := range map[string]time.Duration{"context": 100 * time.Millisecond, "timeout": 2 * time.Second} {
			t.Run(fmt.Sprint(name, hang), func(t *testing.T) {
				virtual(t, func(t *testing.T) {
					store, faults := faulty()
					c, other := client(t, faults, dlock.Config{DefaultTTL: time.Minute}), client(t, store, dlock.Config{})
					all := acquireAll(t, c, "a", "b", "c")
					faults.Add(faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseAnswer, Hang: hang})
					call := ctx
					if name == "context" {
						limited, cancel := context.WithTimeout(ctx, limit)
						defer cancel()
						call = limited
					}
					begun := time.Now()
					err := all.Unlock(call)
					if took := time.Since(begun); took > limit {
						t.Errorf("Unlock took %v", took)
					}
					wantErr(t, err, dlock.ErrUnknownOutcome)
					faults.Clear()
					elapse(2 * time.Second)
					nothing(t, other, "a", "b", "c")
				})
			})
		}
	}
}

// An Unlock whose context has ended releases all the same.
func TestUnlockOfABatchAfterItsContext(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty()
		c, other := client(t, faults, dlock.Config{}), client(t, store, dlock.Config{})
		all := acquireAll(t, c, "a", "b")
		faults.Add(faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseAnswer, Times: 1})
		done, cancel := context.WithCancel(ctx)
		cancel()
		wantErr(t, all.Unlock(done))
		nothing(t, other, "a", "b")
	})
}

// A claim that a batch leaves is released alone, and one that is lost is an error of its own.
func TestUnlockAfterABatch(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		b := &batching{Opener: store, leaves: "b"}
		c, other := client(t, b, dlock.Config{}), client(t, store, dlock.Config{}, dlock.WithAdmin())
		all := acquireAll(t, c, "a", "b", "c")
		admin, err := other.Admin()
		wantErr(t, err)
		wantErr(t, admin.Evict(ctx, "c", all.Token("c")))
		err = all.Unlock(ctx)
		wantErr(t, err, dlock.ErrOwnershipLost)
		if !strings.Contains(err.Error(), `"c"`) || strings.Contains(err.Error(), `"a"`) {
			t.Errorf("%v does not name the key", err)
		}
		nothing(t, other, "a", "b", "c")
		elapse(time.Minute)
		if n := c.Entries() + c.Unanswered(); n != 0 {
			t.Errorf("%d entries are left", n)
		}
	})
}

// A hook of the backend's client that panics in a batch leaves nothing, and Close does not wait for it.
func TestBatchPanics(t *testing.T) {
	for _, op := range []string{"acquire", "release"} {
		t.Run(op, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store := memlock.New()
				b := &batching{Opener: store}
				b.after = func(batch string) error {
					if strings.HasPrefix(batch, op) {
						panic("a hook")
					}
					return nil
				}
				c, other := client(t, b, dlock.Config{}), client(t, store, dlock.Config{})
				func() {
					defer func() {
						if got := recover(); got != "a hook" {
							t.Errorf("recovered %v", got)
						}
					}()
					all, err := c.AcquireAll(ctx, []string{"a", "b"})
					wantErr(t, err)
					_ = all.Unlock(ctx)
				}()
				elapse(time.Minute)
				nothing(t, other, "a", "b")
				if n := c.Entries() + c.Unanswered(); n != 0 {
					t.Errorf("%d entries are left", n)
				}
				wantErr(t, c.Close())
			})
		})
	}
}

// A caller that leaves during a batch gets nothing, and nothing is left, wherever the call is then. The same holds for
// Close.
func TestBatchEndsEarly(t *testing.T) {
	for name, want := range map[string]error{"cancel": context.Canceled, "close": dlock.ErrClosed} {
		for _, moment := range []string{"before", "during", "after", "pause"} {
			t.Run(name+" "+moment, func(t *testing.T) {
				virtual(t, func(t *testing.T) {
					store, faults := faulty()
					call, cancel := context.WithCancel(ctx)
					defer cancel()
					b := &batching{Opener: faults}
					c, other := client(t, b, dlock.Config{}), client(t, store, dlock.Config{})
					end := cancel
					if name == "close" {
						end = func() { go func() { _ = c.Close() }(); time.Sleep(time.Millisecond) }
					}
					once := sync.OnceFunc(end)
					switch moment {
					case "before":
						b.before = func(string) error { once(); return nil }
					case "after":
						b.after = func(string) error { once(); return nil }
					case "during":
						faults.Add(faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.LoseAnswer, Hang: true, Times: 1})
						time.AfterFunc(10*time.Millisecond, once)
					case "pause":
						faults.Add(faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.LoseAnswer})
						time.AfterFunc(10*time.Millisecond, once)
					}
					begun := time.Now()
					_, err := c.AcquireAll(call, []string{"a", "b"})
					wantErr(t, err, want)
					if took := time.Since(begun); took > 100*time.Millisecond {
						t.Errorf("it took %v", took)
					}
					_, err = c.AcquireAll(call, []string{"a", "b"})
					wantErr(t, err, want)
					faults.Clear()
					elapse(time.Minute)
					nothing(t, other, "a", "b")
				})
			})
		}
	}
}

// spanOf returns the first span of a name and a key.
func (o *observatory) spanOf(t *testing.T, name, key string) sdktrace.ReadOnlySpan {
	t.Helper()
	for i := 0; ; i++ {
		if s := o.span(t, name, i); attrs(s)["dlock.key"] == key { // ends the test if there is none
			return s
		}
	}
}

// startTracer runs a function of the test at the start of each span.
type startTracer struct {
	embedded.Tracer
	at func(name, key string)
}

func (s startTracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	cfg := trace.NewSpanStartConfig(opts...)
	for _, kv := range cfg.Attributes() {
		if kv.Key == "dlock.key" {
			s.at(name, kv.Value.AsString())
		}
	}
	return tracenoop.NewTracerProvider().Tracer("").Start(ctx, name)
}

// A slow tracer or logger delays the calls for many keys as it delays those for one: the locks are held meanwhile.
func TestSlowObserversOfABatch(t *testing.T) {
	const slow = 5 * time.Millisecond
	code := &userCode{do: func() { elapse(slow) }}
	code.armed.Store(true)
	for name, opt := range map[string]dlock.Option{
		"tracer": dlock.WithTracer(startTracer{at: func(string, string) { elapse(slow) }}), "logger": code.options()["logger"],
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				var keys []string
				for i := range 64 {
					keys = append(keys, fmt.Sprint(i))
				}
				b := &batching{Opener: memlock.New()}
				c, began := client(t, b, dlock.Config{}, opt), time.Now()
				all := acquireAll(t, c, keys...)
				acquired := time.Since(began)
				wantErr(t, all.Unlock(ctx))
				if unlocked := time.Since(began) - acquired; acquired > 3*slow || unlocked > 2*slow || acquired+unlocked < 2*slow {
					t.Errorf("AcquireAll took %v, Unlock %v", acquired, unlocked)
				}
				if n := len(b.batches()); n != 2 {
					t.Errorf("%d batches", n)
				}
			})
		})
	}
}

// A tracer that blocks does not keep locks that are unlocked, nor Close.
func TestBlockedTracerKeepsNoLockOfABatch(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, blocked := memlock.New(), make(chan struct{})
		tracer := startTracer{at: func(name, key string) {
			if name == "dlock.release" && key == "b" {
				<-blocked
			}
		}}
		c, other := client(t, &batching{Opener: store, leaves: "a"}, dlock.Config{}, dlock.WithTracer(tracer)), client(t, store, dlock.Config{})
		all := acquireAll(t, c, "a", "b", "c")
		unlocked := async(func() error { return all.Unlock(ctx) })
		elapse(time.Second)
		nothing(t, other, "a", "b", "c")
		wantErr(t, c.Close())
		close(blocked)
		wantErr(t, <-unlocked)
	})
}

// Each key of a batch has its own spans, measurements and log lines, as if it had been locked alone. A key that was
// not tried is not counted.
func TestBatchIsReportedByKey(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o, store := observe(t), memlock.New()
		c, other := o.client(t, store, dlock.Config{}), client(t, store, dlock.Config{})
		stored, err := store.Open(driver.Options{})
		wantErr(t, err)
		defer stored.Close()
		all := acquireAll(t, c, "a", "b", "d")
		tokens := map[string]string{}
		for _, key := range all.Keys() {
			tokens[key] = fmt.Sprint(all.Token(key))
			claims, err := stored.(driver.Admin).Inspect(ctx, key)
			wantErr(t, err)
			if span := claims[0].Info.Trace; !strings.Contains(span, o.spanOf(t, "dlock.acquire", key).SpanContext().SpanID().String()) {
				t.Errorf("%q carries the span %q", key, span)
			}
		}
		elapse(second)
		began := time.Now()
		wantErr(t, all.Unlock(ctx))
		for _, key := range all.Keys() {
			for _, name := range []string{"dlock.release", "dlock.hold"} {
				if got := attrs(o.spanOf(t, name, key)); got["dlock.token"] != tokens[key] {
					t.Errorf("%s of %q has %v, and the token is %s", name, key, got, tokens[key])
				}
			}
			release, hold := o.spanOf(t, "dlock.release", key), o.spanOf(t, "dlock.hold", key)
			if release.StartTime().Before(began) || release.StartTime().After(hold.EndTime()) {
				t.Errorf("the release of %q began at %v, the call at %v, and the hold ended at %v", key, release.StartTime(), began, hold.EndTime())
			}
			for _, event := range []string{"lock acquired", "lock released"} {
				line := func(line string) bool { return strings.Contains(line, event) && strings.Contains(line, "key="+key+" ") }
				if !slices.ContainsFunc(o.lines(), line) {
					t.Errorf("%q of %q is not in %q", event, key, o.lines())
				}
			}
		}
		o.want(t, "dlock.acquisitions", "result", "acquired", 3)
		o.want(t, "dlock.releases", "result", "released", 3)
		taken := acquire(t, other, "b")
		_, err = c.AcquireAll(ctx, []string{"a", "b", "c"}, dlock.WithWait(0))
		wantErr(t, err, dlock.ErrLockHeldByOther)
		o.want(t, "dlock.acquisitions", "result", "acquired", 4)
		o.want(t, "dlock.acquisitions", "result", "lock_held_by_other", 2) // in the batch, and alone
		unlock(t, taken)
	})
}

// A backend that refuses a batch has not refused its keys: no failure is reported, and they are acquired alone.
func TestRefusedBatchIsNoFailure(t *testing.T) {
	o := observe(t)
	b := &batching{Opener: memlock.New()}
	b.before = b.first("acquire", driver.Classify(errors.New("keys in different slots"), driver.Fatal))
	c := o.client(t, b, dlock.Config{})
	wantErr(t, acquireAll(t, c, "a", "b").Unlock(ctx))
	o.want(t, "dlock.acquisitions", "result", "acquired", 2)
	if n, _ := o.read(t, "dlock.acquisitions", "", ""); n != 2 {
		t.Errorf("%d acquisitions are counted", n)
	}
	for _, s := range o.spans.Ended() {
		if s.Status().Code == codes.Error {
			t.Errorf("%s has failed: %v", s.Name(), s.Status())
		}
	}
}

// The options of a hold apply to each key of a batch.
func TestBatchKeepsTheOptions(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty()
		c, other := client(t, faults, dlock.Config{DefaultTTL: 10 * time.Second}), client(t, store, dlock.Config{})
		keys := []string{"a", "b"}
		all, err := c.AcquireAll(ctx, keys, dlock.WithMinHold(3*time.Second))
		wantErr(t, err)
		wantErr(t, all.Unlock(ctx))
		elapse(2900 * time.Millisecond)
		for _, key := range keys {
			if len(inspect(t, other, key)) != 1 {
				t.Errorf("%q is free before its minimum hold", key)
			}
		}
		elapse(200 * time.Millisecond)
		nothing(t, other, keys...)

		all, err = c.AcquireAll(ctx, keys, dlock.WithMaxHold(time.Minute))
		wantErr(t, err)
		elapse(time.Minute - time.Second)
		wantErr(t, all.Err())
		elapse(2 * time.Second)
		wantErr(t, all.Err(), dlock.ErrOwnershipLost)
		wantErr(t, all.Unlock(ctx), dlock.ErrOwnershipLost)

		all, err = c.AcquireAll(ctx, keys, dlock.WithoutRenewal())
		wantErr(t, err)
		elapse(11 * time.Second)
		wantErr(t, all.Unlock(ctx), dlock.ErrOwnershipLost)

		all, err = c.AcquireAll(ctx, keys, dlock.WithAsyncUnlock())
		wantErr(t, err)
		wantErr(t, all.Extend(ctx, time.Hour))
		wantErr(t, all.Unlock(ctx))
		all, err = c.AcquireAll(ctx, keys, dlock.WithWait(0)) // it does not overtake the releases
		wantErr(t, err)
		wantErr(t, all.Unlock(ctx))
		elapse(time.Second)
		nothing(t, other, keys...)
	})
}

// A batch takes no key that another claim waits for.
func TestBatchDoesNotPassAWaiter(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		first, second, c := client(t, store, dlock.Config{}), client(t, store, dlock.Config{}), client(t, store, dlock.Config{})
		g := acquire(t, first, "b", dlock.WithShared())
		waits := async(func() *dlock.Guard { return acquire(t, second, "b") })
		elapse(time.Second)
		done := async(func() error {
			all, err := c.AcquireAll(ctx, []string{"a", "b"})
			if err != nil {
				return err
			}
			return all.Unlock(ctx)
		})
		elapse(time.Second)
		unlock(t, g)
		waiter := <-waits
		elapse(time.Second)
		select {
		case err := <-done:
			t.Errorf("it was served before a waiter: %v", err)
		default:
		}
		unlock(t, waiter)
		wantErr(t, <-done)
	})
}

// A context that panics in a batch leaves nothing behind, and Close does not wait for it.
func TestContextThatPanicsInABatch(t *testing.T) {
	for _, in := range []string{"Done", "Err", "Value", "Deadline"} {
		for _, moment := range []string{"acquire before", "acquire after", "unlock", "release before", "release after"} {
			t.Run(in+" "+moment, func(t *testing.T) {
				virtual(t, func(t *testing.T) {
					store, faults := faulty()
					own, cancel := context.WithCancel(ctx)
					defer cancel()
					bad := &badContext{Context: own, in: in}
					arm := func(when string) func(string) error {
						return func(batch string) error {
							if op, _, _ := strings.Cut(batch, " "); op+" "+when == moment {
								bad.armed.Store(true)
							}
							return nil
						}
					}
					b := &batching{Opener: faults, before: arm("before"), after: arm("after"), leaves: "b"}
					c, other := client(t, b, dlock.Config{}), client(t, store, dlock.Config{})
					_ = panics(func() {
						all, err := c.AcquireAll(bad, []string{"a", "b"})
						wantErr(t, err)
						bad.armed.Store(bad.armed.Load() || moment == "unlock")
						wantErr(t, all.Unlock(bad))
					})
					elapse(time.Minute)
					nothing(t, other, "a", "b")
					if n := c.Entries() + c.Unanswered(); n != 0 {
						t.Errorf("%d entries are left", n)
					}
					wantErr(t, c.Close())
				})
			})
		}
	}
}

// A backend that refuses one call for all keys is asked for each of them at once, not for one after the other.
func TestAcquireAllAfterARefusedBatch(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		slow := &scripted{Opener: store, acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			elapse(second)
			return d.Acquire(ctx, r)
		}}
		b := &batching{Opener: slow, before: func(string) error { return driver.ErrUnsupported }}
		c := client(t, b, dlock.Config{})
		began := time.Now()
		all := acquireAll(t, c, "a", "b", "c", "d")
		if took := time.Since(began); took > 2*second {
			t.Errorf("it took %v, and each key takes a second", took)
		}
		wantErr(t, all.Unlock(ctx))
		nothing(t, client(t, store, dlock.Config{}), "a", "b", "c", "d")
	})
}
