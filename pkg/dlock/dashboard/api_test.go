package dashboard

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A key beyond the limit is asked for, so that a held lock is not shown as free.
func TestLockBeyondTheLimit(t *testing.T) {
	f := setUp(t, WithMaxLocks(3))
	for i := range 5 {
		f.take(fmt.Sprint("k", i))
	}
	if d := get[detail](f, "/api/v1/lock?source=memory&key=k4"); len(d.Holders) != 1 || d.HolderCount != 1 || d.At == 0 {
		t.Errorf("%+v", d)
	}
	if d := get[detail](f, "/api/v1/lock?source=memory&key=none"); len(d.Holders) != 0 || d.At == 0 {
		t.Errorf("%+v", d)
	}
}

// A lock of a source that was never read is not free, but unknown.
func TestLockOfUnreadableSource(t *testing.T) {
	f := setUp(t)
	f.take("k")
	f.store.fails.Store(true)
	answer := f.request(http.MethodGet, "/api/v1/lock?source=memory&key=k", "")
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusBadGateway || !strings.Contains(string(text), `"error":"backend"`) {
		t.Errorf("%d, %v: %s", answer.StatusCode, err, text)
	}
	f.store.fails.Store(false)
	f.eventually("the lock", func() bool {
		return f.request(http.MethodGet, "/api/v1/lock?source=memory&key=k", "").StatusCode == http.StatusOK
	})
}

// While a source cannot be read, a lock is as it was last read, and says so. One that was not there then is not free,
// but unknown.
func TestLockOfSourceThatFailsLater(t *testing.T) {
	f := setUp(t)
	f.take("k")
	if d := get[detail](f, "/api/v1/lock?source=memory&key=k"); d.SourceError != "" {
		t.Errorf("%+v", d)
	}
	f.store.fails.Store(true)
	f.eventually("the failure", func() bool {
		d := get[detail](f, "/api/v1/lock?source=memory&key=k")
		return d.SourceError != "" && d.HolderCount == 1 && d.At < d.Now
	})
	answer := f.request(http.MethodGet, "/api/v1/lock?source=memory&key=other", "")
	if text, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != http.StatusBadGateway || !strings.Contains(string(text), `"error":"backend"`) {
		t.Errorf("%d, %v: %s", answer.StatusCode, err, text)
	}
}

// A smallBuffers listener has connections that block soon if the client does not read.
type smallBuffers struct{ net.Listener }

func (l smallBuffers) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(4096)
	}
	return c, err
}

// Close does not wait for a client that does not read its answer.
func TestCloseWithClientThatDoesNotRead(t *testing.T) {
	f := setUp(t)
	for i := range 2000 {
		f.take(fmt.Sprint(strings.Repeat("k", 1000), i))
	}
	server := httptest.NewUnstartedServer(f.page)
	server.Listener = smallBuffers{server.Listener}
	server.Start()
	c, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		server.Close()
	})
	if err := c.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "GET /api/v1/locks HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 100)); err != nil { // the answer has begun
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- f.page.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(limit):
		t.Error("Close waits for the client")
	}
}

// A source that takes long, or fails, does not keep requests from an answer.
func TestSlowSource(t *testing.T) {
	f := setUp(t)
	f.take("k")
	next, _ := f.follow()
	f.nextUpdate(next)
	hang := make(chan struct{})
	f.store.hang.Store(&hang)
	t.Cleanup(func() { close(hang) })
	lists := f.store.lists.Load()
	f.eventually("a reading that hangs", func() bool { return f.store.lists.Load() > lists })
	f.eventually("an older snapshot", func() bool {
		return time.Since(f.page.sources[0].current().tried) > 3*minInterval
	})
	type locks struct{ Sources []sourceLocks }
	began := time.Now()
	if got := get[locks](f, "/api/v1/locks").Sources[0]; len(got.Rows) != 1 {
		t.Errorf("%+v", got)
	}
	if d := get[detail](f, "/api/v1/lock?source=memory&key=k"); len(d.Holders) != 1 {
		t.Errorf("%+v", d)
	}
	if f.page.sources[0].current().err == "" {
		return
	}
	t.Errorf("the answers came after %v, when the reading had failed", time.Since(began))
}

// Settings are checked once a minute, also if no request lasts as long as a check.
func TestSettingsAreCheckedOncePerMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withoutServer(t)
		slow := make(chan struct{})
		f.store.hangCheck.Store(&slow)
		time.AfterFunc(5*time.Second, func() { close(slow) })
		ask := func(path string) string {
			w := httptest.NewRecorder()
			f.page.ServeHTTP(w, request(t.Context(), path))
			time.Sleep(700 * time.Millisecond)
			return w.Body.String()
		}
		for range 10 {
			ask("/api/v1/locks")
		}
		if n := f.store.checks.Load(); n != 1 {
			t.Errorf("%d checks", n)
		}
		if got := ask("/api/v1/health"); !strings.Contains(got, "persistence") {
			t.Errorf("no findings: %s", got)
		}
		time.Sleep(checkEvery)
		ask("/api/v1/locks")
		if n := f.store.checks.Load(); n != 2 {
			t.Errorf("%d checks after a minute", n)
		}
	})
}

// Without a reading there are no settings to wait for.
func TestHealthOfUnreadableSource(t *testing.T) {
	f := setUp(t)
	f.store.fails.Store(true)
	if got := get[health](f, "/api/v1/health").Sources[0]; got.Error == "" || got.At != 0 {
		t.Errorf("%+v", got)
	}
}
