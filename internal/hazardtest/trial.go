package hazardtest

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
)

// Within runs a test of something that ends by itself after a time, such as a place in a queue that nothing renews. If the test
// fails, took that long, and stalls of the machine explain that, it is void: it runs again, with servers of its own. Under stress
// nothing is excused.
func Within(t *testing.T, limit time.Duration, test func(t testing.TB)) {
	t.Helper()
	metronome := testenv.StartMetronome(t)
	for void := 0; ; void++ {
		began, r := time.Now(), &recorder{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			test(r)
		}()
		<-done
		if t.Skipped() {
			t.SkipNow()
		}
		failures := r.end()
		stalled := time.Since(began) >= limit && metronome.MayMiss(began, limit, limit/3)
		if len(failures) > 0 && stalled && void < maxVoid {
			t.Logf("the machine stalled, so the test is repeated: %q", failures)
			continue
		}
		for _, failure := range failures {
			t.Error(failure)
		}
		return
	}
}

// A recorder is a test whose failures are recorded until it ends. What its cleanup reports then fails the real test.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	ended    bool
}

func (r *recorder) record(failure string) {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		r.TB.Error(failure)
		return
	}
	r.failures = append(r.failures, failure)
}

func (r *recorder) end() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	return r.failures
}

func (r *recorder) Error(args ...any) { r.Helper(); r.record(fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) {
	r.Helper()
	r.record(fmt.Sprintf(format, args...))
}
func (r *recorder) Fail() { r.Helper(); r.record("failed") }

func (r *recorder) FailNow() {
	r.Helper()
	r.Fail()
	runtime.Goexit()
}

func (r *recorder) Fatal(args ...any) {
	r.Helper()
	r.record(fmt.Sprint(args...))
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Helper()
	r.record(fmt.Sprintf(format, args...))
	runtime.Goexit()
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failures) > 0 || r.TB.Failed()
}
