package dashboard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

func request(ctx context.Context, path string) *http.Request {
	return httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, http.NoBody)
}

// So many pages can be open at a time, and one more when one of them is closed.
func TestTooManyViewers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withoutServer(t)
		var all sync.WaitGroup
		open := func() (leave func()) {
			ctx, cancel := context.WithCancel(t.Context())
			all.Go(func() { f.page.ServeHTTP(&sink{header: http.Header{}}, request(ctx, "/api/v1/stream")) })
			synctest.Wait()
			return cancel
		}
		leave := open()
		for range maxStreams - 1 {
			defer open()()
		}
		refused := func() string {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w := httptest.NewRecorder()
			all.Go(func() { f.page.ServeHTTP(w, request(ctx, "/api/v1/stream")) })
			synctest.Wait()
			cancel()
			synctest.Wait()
			return w.Body.String()
		}
		if got := refused(); !strings.Contains(got, "too_many_viewers") {
			t.Errorf("one more page: %s", got)
		}
		leave()
		synctest.Wait()
		if got := refused(); !strings.Contains(got, "event: hello") {
			t.Errorf("after one was closed: %s", got)
		}
		_ = f.page.Close()
		all.Wait()
	})
}

// HEAD has no body, so it opens no stream: it would take the slot of a viewer, and never end.
func TestHeadOpensNoStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withoutServer(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r := request(ctx, "/api/v1/stream")
		r.Method = http.MethodHead
		w := httptest.NewRecorder()
		f.page.ServeHTTP(w, r)
		if ctx.Err() != nil || w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != http.MethodGet || f.store.lists.Load() != 0 {
			t.Errorf("%v, %d, %v, %d readings", ctx.Err(), w.Code, w.Header(), f.store.lists.Load())
		}
	})
}

// A stuck writer belongs to a client that does not read: it ends at its deadline only.
type stuck struct {
	sink
	deadline time.Time
}

func (s *stuck) SetWriteDeadline(at time.Time) error {
	s.deadline = at
	return nil
}

func (s *stuck) Write([]byte) (int, error) {
	time.Sleep(time.Until(s.deadline))
	return 0, os.ErrDeadlineExceeded
}

// A viewer that does not read is dropped after its time, and does not delay the others.
func TestViewerThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withoutServer(t)
		began := time.Now()
		dropped := make(chan time.Duration, 1)
		go func() {
			f.page.ServeHTTP(&stuck{sink: sink{header: http.Header{}}}, request(t.Context(), "/api/v1/stream"))
			dropped <- time.Since(began)
		}()
		reads := &sink{header: http.Header{}}
		ctx, leave := context.WithTimeout(t.Context(), 10*time.Second)
		defer leave()
		f.page.ServeHTTP(reads, request(ctx, "/api/v1/stream"))
		if least := int(10 * time.Second / minInterval); reads.events < least {
			t.Errorf("another viewer got %d events, not %d", reads.events, least)
		}
		if took := <-dropped; took > writeTimeout+time.Second {
			t.Errorf("it was dropped after %v", took)
		}
		if n := len(f.page.slots); n != 0 {
			t.Errorf("%d slots are still taken", n)
		}
	})
}

// A key that no lock can have is refused before the backend is asked.
func TestBadKeys(t *testing.T) {
	f := beyond(t)
	get[map[string]any](f, "/api/v1/locks")
	_, before := f.page.sources[0].reader.Calls()
	readings := f.page.sources[0].current().seq
	for _, key := range []string{"", strings.Repeat("k", maxKey+1), strings.Repeat("k", 30<<10)} {
		answer := f.request(http.MethodGet, "/api/v1/lock?source=memory&key="+url.QueryEscape(key), "")
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), `"error":"bad_key"`) {
			t.Errorf("%d bytes: %d, %v, %s", len(key), answer.StatusCode, err, text)
		}
	}
	_, after := f.page.sources[0].reader.Calls()
	if most := int64(f.page.sources[0].current().seq-readings) + 1; after-before > most { // the list has one lock
		t.Errorf("%d questions in %d readings", after-before, most)
	}
	for _, key := range []string{strings.Repeat("k", maxKey), "\x00", "\xff\xfe", "../..", "a\nb"} { // no panic, and no wrong answer
		if got := f.request(http.MethodGet, "/api/v1/lock?source=memory&key="+url.QueryEscape(key), "").StatusCode; got != 200 && got != 400 && got != 502 {
			t.Errorf("%.10q: %d", key, got)
		}
	}
}

// What others write into the store is cut, and of many holders only the first are sent.
func TestForeignTextIsCut(t *testing.T) {
	long := strings.Repeat("é", maxText)
	c := newClaim(&dlock.Claim{Info: dlock.Info{Owner: long, Host: long, Purpose: long}, Trace: long}, time.Now())
	for _, text := range []string{c.Owner, c.Host, c.Purpose, c.Trace} {
		if len(text) > maxText+len("…") || !utf8.ValidString(text) || !strings.HasPrefix(text, "éé") {
			t.Errorf("%d bytes", len(text))
		}
	}
	f := setUp(t)
	for i := range maxClaims + 3 {
		f.take("k", dlock.WithShared(), dlock.WithTTL(time.Hour), dlock.WithoutRenewal(), dlock.WithInfo(dlock.Info{Owner: fmt.Sprint(i)}))
	}
	if d := get[detail](f, "/api/v1/lock?source=memory&key=k"); len(d.Holders) != maxClaims || d.HolderCount != maxClaims+3 {
		t.Errorf("%d of %d holders", len(d.Holders), d.HolderCount)
	}
	type locks struct{ Sources []sourceLocks }
	if r := get[locks](f, "/api/v1/locks").Sources[0].Rows[0]; len(r.Holders) != shownHolders {
		t.Errorf("%d holders in the list", len(r.Holders))
	}
}

// Close does not wait for the answer about a lock that is not in the list.
func TestCloseWhileAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withoutServer(t)
		hang := make(chan struct{})
		f.store.hangInspect.Store(&hang)
		asked := make(chan error, 1)
		go func() {
			_, _, err := f.page.sources[0].asker.ask(t.Context(), "z")
			asked <- err
		}()
		synctest.Wait()
		began := time.Now()
		if err := f.page.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("Close took %v", took)
		}
		if err := <-asked; err == nil {
			t.Error("there is no answer")
		}
	})
}

// The token is kept as a hash and compared in constant time: neither memory nor time tells it.
func TestTokenIsNotKept(t *testing.T) {
	s, err := collect([]Option{WithBearerToken(secret)})
	if err != nil || strings.Contains(fmt.Sprintf("%+v", s), secret) {
		t.Errorf("%v: %+v", err, s)
	}
	text, err := os.ReadFile("security.go")
	if err != nil || !strings.Contains(string(text), "subtle.ConstantTimeCompare(got[:], want[:])") {
		t.Errorf("%v: the hashes are not compared in constant time", err)
	}
	_, err = New([]Source{{Name: "a", Client: mustClient(t)}}, WithBearerToken("se cret-se cret-se"))
	if !errors.Is(err, dlock.ErrInvalidConfig) || strings.Contains(err.Error(), "cret") {
		t.Errorf("%v", err)
	}
}

func mustClient(t *testing.T) *dlock.Client {
	t.Helper()
	c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(memlock.New()), dlock.WithAdmin())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
