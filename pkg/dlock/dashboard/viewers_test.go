package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// withoutServer returns a page without a server, for virtual time: a network would end it.
func withoutServer(t *testing.T, opts ...Option) *fixture {
	f := &fixture{T: t, store: &countingStore{Store: memlock.New()}}
	f.locks = f.client()
	page, err := New([]Source{{Name: "memory", Client: f.locks}}, append([]Option{WithInterval(minInterval)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	f.page = page
	t.Cleanup(func() { _ = page.Close() })
	return f
}

// A sink is the browser of a viewer: it reads everything at once.
type sink struct {
	header http.Header
	events int
}

func (s *sink) Header() http.Header { return s.header }
func (s *sink) WriteHeader(int)     {}
func (s *sink) Flush()              {}
func (s *sink) Write(b []byte) (int, error) {
	s.events++
	return len(b), nil
}

// watch runs viewers for a time while locks change hands after each hold, and returns what the backend was asked.
// Each viewer also asks for a lock, the jobs and the metrics every ten seconds.
func (f *fixture) watch(viewers int, within, hold time.Duration) (lists, inspects, checks int64) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), within)
	defer cancel()
	var all sync.WaitGroup
	for range viewers {
		browser := &sink{header: http.Header{}}
		all.Go(func() {
			f.page.ServeHTTP(browser, httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/api/v1/stream", http.NoBody))
			if browser.events < int(within/time.Second) {
				f.Errorf("%d events in %v", browser.events, within)
			}
		})
		all.Go(func() {
			for ctx.Err() == nil {
				for _, path := range []string{"/api/v1/lock?source=memory&key=k0", "/api/v1/jobs", "/metrics"} {
					f.page.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, http.NoBody))
				}
				pause(ctx, 10*time.Second)
			}
		})
	}
	for n := 0; ctx.Err() == nil; n++ {
		g, err := f.locks.TryAcquire(context.WithoutCancel(ctx), fmt.Sprint("k", n%2), dlock.WithInfo(dlock.Info{Owner: fmt.Sprint("owner-", n)}))
		if err != nil {
			f.Fatal(err)
		}
		pause(ctx, hold)
		if err := g.Unlock(context.WithoutCancel(ctx)); err != nil {
			f.Fatal(err)
		}
	}
	all.Wait()
	return f.store.lists.Load(), f.store.inspects.Load(), f.store.checks.Load()
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// Ten viewers for ten minutes of virtual time ask the backend as often as one.
func TestTenViewersReadAsOften(t *testing.T) {
	const within = 10 * time.Minute
	var asked [2][3]int64
	for i, viewers := range []int{1, 10} {
		synctest.Test(t, func(t *testing.T) {
			asked[i][0], asked[i][1], asked[i][2] = withoutServer(t).watch(viewers, within, 2101*time.Millisecond) // not a multiple of the interval
		})
	}
	t.Logf("lists, inspects and checks with one viewer: %v, with ten: %v", asked[0], asked[1])
	for i, one := range asked[0] { // a lock may, rarely, change hands at the very time of a reading
		if ten := asked[1][i]; ten > one+one/100+1 || ten < one-one/100-1 {
			t.Errorf("with one viewer the backend got %d questions, with ten %d", one, ten)
		}
	}
	if want := int64(within / minInterval); asked[0][0] < want-2 || asked[0][0] > want+2 { // the control does read
		t.Errorf("%d readings, not %d", asked[0][0], want)
	}
}

// What the page keeps does not grow with the time for which it is open.
func TestMemoryIsFlat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withoutServer(t)
		f.watch(10, 2*time.Minute, minInterval) // until the history of each lock is full
		before := heap()
		f.watch(10, 6*time.Minute, minInterval)
		after := heap()
		t.Logf("%d KiB after two minutes, %d KiB after eight", before>>10, after>>10)
		if after > before+before/4+128<<10 {
			t.Error("the page keeps more and more")
		}
	})
}

// heap returns the bytes in use.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools have kept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
