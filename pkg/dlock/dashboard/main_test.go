package dashboard

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

const limit = time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A fixture is a page on a store in memory.
type fixture struct {
	*testing.T
	store  *countingStore
	locks  *dlock.Client
	page   *Handler
	server *httptest.Server
	http   *http.Client
}

func setUp(t *testing.T, opts ...Option) *fixture {
	t.Helper()
	f := &fixture{T: t, store: &countingStore{Store: memlock.New()}, http: &http.Client{Transport: &http.Transport{}}}
	f.locks = f.client()
	var err error
	f.page, err = New([]Source{{Name: "memory", Client: f.locks}}, append([]Option{WithInterval(minInterval)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	f.server = httptest.NewServer(f.page)
	t.Cleanup(func() {
		if err := f.page.Close(); err != nil {
			t.Error(err)
		}
		f.http.CloseIdleConnections()
		f.server.Close()
	})
	return f
}

func (f *fixture) client() *dlock.Client {
	f.Helper()
	c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(f.store), dlock.WithAdmin())
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = c.Close() })
	return c
}

// take locks a key.
func (f *fixture) take(key string, opts ...dlock.LockOption) *dlock.Guard {
	f.Helper()
	g, err := f.locks.TryAcquire(f.Context(), key, opts...)
	if err != nil {
		f.Fatal(err)
	}
	return g
}

// queue starts a waiter, and returns what ends it.
func (f *fixture) queue(key string, opts ...dlock.LockOption) (stop func()) {
	f.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	before := f.waiters(key)
	go func() {
		defer close(done)
		if g, err := f.locks.Acquire(ctx, key, opts...); err == nil {
			<-ctx.Done()
			_ = g.Unlock(context.Background())
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	f.Cleanup(stop)
	f.eventually("a waiter for "+key, func() bool { return f.waiters(key) > before })
	return stop
}

func (f *fixture) waiters(key string) (n int) {
	f.Helper()
	admin, err := f.locks.Admin()
	if err != nil {
		f.Fatal(err)
	}
	for _, err := range admin.Waiters(f.Context(), key) {
		if err != nil {
			f.Fatal(err)
		}
		n++
	}
	return n
}

func (f *fixture) eventually(what string, cond func() bool) {
	f.Helper()
	testenv.Eventually(f, limit, what, cond)
}

// request sends a request with headers, given as name and value in turn.
func (f *fixture) request(method, path, body string, headers ...string) *http.Response {
	f.Helper()
	r, err := http.NewRequestWithContext(f.Context(), method, f.server.URL+path, strings.NewReader(body))
	if err != nil {
		f.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	answer, err := f.http.Do(r)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = answer.Body.Close() })
	return answer
}

// get reads an answer with status 200 as JSON.
func get[T any](f *fixture, path string, headers ...string) (v T) {
	f.Helper()
	answer := f.request(http.MethodGet, path, "", headers...)
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		f.Fatalf("%s: %d, %v, %s", path, answer.StatusCode, err, text)
	}
	if err := json.Unmarshal(text, &v); err != nil {
		f.Fatalf("%v: %s", err, text)
	}
	return v
}

// An event is one of a stream.
type event struct {
	name string
	data string
}

// follow opens a stream. The returned functions read the next event and end the stream.
func (f *fixture) follow() (next func() event, leave func()) {
	f.Helper()
	ctx, cancel := context.WithCancel(f.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, f.server.URL+"/api/v1/stream", http.NoBody)
	if err != nil {
		f.Fatal(err)
	}
	answer, err := f.http.Do(r)
	if err != nil || answer.StatusCode != http.StatusOK {
		f.Fatalf("%v, %+v", err, answer)
	}
	leave = func() {
		cancel()
		_ = answer.Body.Close()
	}
	f.Cleanup(leave)
	lines := bufio.NewReader(answer.Body)
	return func() (e event) {
		f.Helper()
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				f.Fatal(err)
			}
			switch line = strings.TrimSuffix(line, "\n"); {
			case strings.HasPrefix(line, "event: "):
				e.name = line[7:]
			case strings.HasPrefix(line, "data: "):
				e.data = line[6:]
			case line == "":
				return e
			}
		}
	}, leave
}

// nextUpdate returns the next event update that has a change.
func (f *fixture) nextUpdate(next func() event) (u update) {
	f.Helper()
	for {
		e := next()
		if e.name != "update" {
			continue
		}
		u = update{}
		if err := json.Unmarshal([]byte(e.data), &u); err != nil {
			f.Fatal(err)
		}
		if u.Full || len(u.Changed)+len(u.Removed) > 0 {
			return u
		}
	}
}

// A countingStore counts how often locks are listed and inspected, and can fail.
type countingStore struct {
	*memlock.Store
	lists, inspects, checks      atomic.Int64
	fails, failsInspect          atomic.Bool
	hang, hangInspect, hangCheck atomic.Pointer[chan struct{}]                   // until it is closed
	onInspect                    atomic.Pointer[func(key string, answered bool)] // is called before and after
}

func (s *countingStore) Open(o driver.Options) (driver.Driver, error) {
	d, err := s.Store.Open(o)
	if err != nil {
		return nil, err
	}
	return &countingDriver{d, d.(driver.Admin), s}, nil
}

type countingDriver struct {
	driver.Driver
	admin driver.Admin
	store *countingStore
}

func (d *countingDriver) List(ctx context.Context, prefix, cursor string, limit int) ([]string, string, error) {
	d.store.lists.Add(1)
	if d.store.fails.Load() {
		return nil, "", driver.Classify(driver.ErrUnavailable, driver.Fatal)
	}
	if err := await(ctx, d.store.hang.Load()); err != nil {
		return nil, "", err
	}
	return d.admin.List(ctx, prefix, cursor, limit)
}

func (d *countingDriver) Inspect(ctx context.Context, key string) ([]driver.Claim, error) {
	d.store.inspects.Add(1)
	if d.store.failsInspect.Load() {
		return nil, driver.ErrUnavailable
	}
	if err := await(ctx, d.store.hangInspect.Load()); err != nil {
		return nil, err
	}
	if do := d.store.onInspect.Load(); do != nil {
		(*do)(key, false)
		defer (*do)(key, true)
	}
	return d.admin.Inspect(ctx, key)
}

func (d *countingDriver) Evict(ctx context.Context, key, id string, token int64) (driver.State, error) {
	return d.admin.Evict(ctx, key, id, token)
}

func (d *countingDriver) Check(ctx context.Context) ([]driver.Finding, error) {
	d.store.checks.Add(1)
	if err := await(ctx, d.store.hangCheck.Load()); err != nil {
		return nil, err
	}
	return []driver.Finding{{Level: driver.Warning, Name: "persistence", Detail: "nothing is kept", Fix: "use a server"}}, nil
}

// await waits until hang is closed, if there is one.
func await(ctx context.Context, hang *chan struct{}) error {
	if hang == nil {
		return nil
	}
	select {
	case <-*hang:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
