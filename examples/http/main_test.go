package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // go-redis would log the faults that the tests cause
	goleak.VerifyTestMain(m)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

const (
	// lease outlasts any stall of the machine. No test waits for its end.
	lease = time.Minute
	// enough is a wait for a lock that is free; brief is one for a lock that is not.
	enough = time.Minute
	brief  = 10 * time.Second
)

// client returns a lock Client like that of the example, with another lease.
func client(t *testing.T, addr string, ttl time.Duration) *dlock.Client {
	t.Helper()
	conn, err := connector.NewRedis(&connector.RedisConfig{Addr: addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	locks, err := dlock.NewRedis(conn, &dlock.Config{Prefix: "example:", DefaultTTL: ttl}, dlock.WithAdmin())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locks.Close() })
	return locks
}

// serve starts a server whose reports are built by build, and returns its URL.
func serve(t *testing.T, locks *dlock.Client, wait time.Duration, build func(context.Context, string) error) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("POST /reports/{name}", &reports{locks, wait, build})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// post returns the status and the body of the answer.
func post(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Post(url, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if busy := resp.StatusCode == http.StatusConflict || resp.StatusCode == http.StatusServiceUnavailable; busy != (resp.Header.Get("Retry-After") != "") {
		t.Errorf("status %d, Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
	}
	return resp.StatusCode, strings.TrimSpace(string(text))
}

func wants(t *testing.T, url string, status int, text string) {
	t.Helper()
	if gotStatus, got := post(t, url); gotStatus != status || got != text {
		t.Errorf("answer is %d %s", gotStatus, got)
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	addr := testenv.Redis(t).Addr()
	locks, other := client(t, addr, lease), client(t, addr, lease)
	build := func(_ context.Context, name string) error {
		if name == "bad" {
			return errors.New("no data")
		}
		return nil
	}
	url := serve(t, locks, enough, build)
	wants(t, url+"/reports/july", 200, "built july")
	wants(t, url+"/reports/bad", 500, "the report could not be built")
	wants(t, url+"/reports/%01", 400, "no report has such a name")

	if err := other.Lock(t.Context(), "report:july"); err != nil {
		t.Fatal(err)
	}
	wants(t, serve(t, locks, brief, build)+"/reports/july", 409, "this report is being built")
	wants(t, url+"/reports/june", 200, "built june")
	if err := other.Unlock(t.Context(), "report:july"); err != nil {
		t.Fatal(err)
	}
	wants(t, url+"/reports/july", 200, "built july")
}

// An operator evicts the holder, and the context of the work ends.
func TestLoss(t *testing.T) {
	t.Parallel()
	addr := testenv.Redis(t).Addr()
	admin, err := client(t, addr, lease).Admin()
	if err != nil {
		t.Fatal(err)
	}
	// The holder asks three times in a lease.
	url := serve(t, client(t, addr, lease/2), enough, func(ctx context.Context, _ string) error {
		guard, _ := dlock.FromContext(ctx)
		if err := admin.Evict(ctx, guard.Key(), guard.Token()); err != nil {
			t.Error(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Minute):
			t.Error("the context did not end")
		}
		return nil
	})
	wants(t, url+"/reports/july", 503, "the lock was lost, the report may be incomplete")
}

// The HTTP client disconnects: the work ends, and the lock is released.
func TestClientGone(t *testing.T) {
	t.Parallel()
	locks := client(t, testenv.Redis(t).Addr(), lease)
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	url := serve(t, locks, enough, func(ctx context.Context, _ string) error {
		leave()
		select {
		case <-ctx.Done():
			ended <- context.Cause(ctx)
		case <-time.After(time.Minute):
			ended <- errors.New("its context has not ended")
		}
		return ctx.Err()
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/reports/july", nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := http.DefaultClient.Do(req); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v, %v", resp, err) // the work may not have begun
	}
	if cause := <-ended; !errors.Is(cause, context.Canceled) || errors.Is(cause, dlock.ErrOwnershipLost) {
		t.Errorf("the work ended because of %v", cause)
	}
	if err := locks.Lock(t.Context(), "report:july", dlock.WithWait(lease/2)); err != nil {
		t.Errorf("the lock was not released: %v", err)
	}
}

// Redis does not answer, but the HTTP request is still answered.
func TestSilence(t *testing.T) {
	t.Parallel()
	proxy := testenv.Proxy(t, testenv.Redis(t).Addr())
	locks, build := client(t, proxy.Addr(), lease), func(context.Context, string) error { return nil }
	wants(t, serve(t, locks, enough, build)+"/reports/july", 200, "built july")
	proxy.BlackHole(true)
	wants(t, serve(t, locks, brief, build)+"/reports/july", 503, "no lock can be had now")
	proxy.Heal()
}

func TestRun(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	if err := run(ctx, writer(stop), testenv.Redis(t).Addr(), "127.0.0.1:0"); err != nil {
		t.Errorf("stopped with %v", err)
	}
	if err := run(t.Context(), io.Discard, "localhost:1", "127.0.0.1:0"); !errors.Is(err, connector.ErrUnreachable) || !strings.Contains(err.Error(), "redis-server") {
		t.Errorf("error is %v", err)
	}
}

// A writer is called on each write.
type writer func()

func (w writer) Write(p []byte) (int, error) { w(); return len(p), nil }
