package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

type syncBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

func (f *fixture) evict(e eviction, headers ...string) (status int, code string) {
	f.Helper()
	body, err := json.Marshal(e)
	if err != nil {
		f.Fatal(err)
	}
	return f.evictBody(string(body), append([]string{"Content-Type", "application/json"}, headers...)...)
}

func (f *fixture) evictBody(body string, headers ...string) (status int, code string) {
	f.Helper()
	answer := f.request(http.MethodPost, "/api/v1/evict", body, headers...)
	var failed failure
	if err := json.NewDecoder(answer.Body).Decode(&failed); err != nil {
		f.Fatal(err)
	}
	return answer.StatusCode, failed.Error
}

func TestEvict(t *testing.T) {
	var log syncBuffer
	f := setUp(t, WithEvict(), WithLogger(clog.New(&clog.Config{Format: "json", Output: &log})),
		WithOperator(func(r *http.Request) string { return r.Header.Get("X-User") }))
	g := f.take("k", dlock.WithInfo(dlock.Info{Owner: "ann", Host: "web-1", PID: 7}))
	token := fmt.Sprint(g.Token())
	for name, c := range map[string]struct {
		eviction
		status int
		code   string
	}{
		"a stale token":       {eviction{"memory", "k", fmt.Sprint(g.Token() + 1), "k"}, 409, "stale_token"},
		"a free key":          {eviction{"memory", "free", "5", "free"}, 409, "stale_token"},
		"no confirmation":     {eviction{"memory", "k", token, ""}, 400, "not_confirmed"},
		"another key":         {eviction{"memory", "k", token, "K"}, 400, "not_confirmed"},
		"no key":              {eviction{"memory", "", token, ""}, 400, "not_confirmed"},
		"no token":            {eviction{"memory", "k", "", "k"}, 400, "bad_token"},
		"a negative token":    {eviction{"memory", "k", "-1", "k"}, 400, "bad_token"},
		"an unknown source":   {eviction{"redis", "k", token, "k"}, 404, "unknown_source"},
		"a key of bad length": {eviction{"memory", strings.Repeat("k", 5000), token, strings.Repeat("k", 5000)}, 422, "cannot_evict"},
	} {
		if status, code := f.evict(c.eviction); status != c.status || code != c.code {
			t.Errorf("%s: %d %s, want %d %s", name, status, code, c.status, c.code)
		}
	}
	right := fmt.Sprintf(`{"source":"memory","key":"k","token":"%s","confirm":"k"}`, token)
	for name, c := range map[string]struct {
		body, kind string
		status     int
	}{
		"a form":            {right, "application/x-www-form-urlencoded", 415},
		"plain text":        {right, "text/plain", 415},
		"no type":           {right, "", 415},
		"no JSON":           {"x", "application/json", 400},
		"an unknown field":  {`{"force":true}`, "application/json", 400},
		"a number as token": {`{"token":5}`, "application/json", 400},
		"a large body":      {`{"key":"` + strings.Repeat("k", maxBody) + `"}`, "application/json", 400},
	} {
		if status, code := f.evictBody(c.body, "Content-Type", c.kind); status != c.status {
			t.Errorf("%s: %d %s, want %d", name, status, code, c.status)
		}
	}
	if g.Err() != nil {
		t.Fatalf("the lock is gone: %v", g.Err())
	}
	if status, code := f.evict(eviction{"memory", "k", token, "k"}, "X-User", "bob"); status != 200 {
		t.Fatalf("%d %s", status, code)
	}
	<-g.Context().Done()
	if status, code := f.evict(eviction{"memory", "k", token, "k"}); status != 409 {
		t.Errorf("again: %d %s", status, code)
	}
	f.audited(log.String())
}

// audited asserts that attempts are logged as the command does.
func (f *fixture) audited(text string) {
	f.Helper()
	results := map[string]int{}
	for line := range strings.Lines(text) {
		var l struct {
			Msg, Result, Backend, Key, Owner, Host, By string
			ByAddr                                     string `json:"by_addr"`
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			f.Fatalf("%v: %s", err, line)
		}
		if l.Msg != "eviction by an operator" {
			continue
		}
		results[l.Result]++
		if l.Backend != "memory" || l.Key == "" || l.ByAddr == "" {
			f.Errorf("%+v", l)
		}
		if l.Result == "evicted" && (l.Owner != "ann" || l.Host != "web-1" || l.By != "bob") {
			f.Errorf("%+v", l)
		}
	}
	if results["evicted"] != 1 || results["refused"] != 4 {
		f.Errorf("%v in %s", results, text)
	}
}

// Without WithEvict nothing can be changed.
func TestReadOnly(t *testing.T) {
	f := setUp(t)
	g := f.take("k")
	if status, code := f.evict(eviction{"memory", "k", fmt.Sprint(g.Token()), "k"}); status != 403 || code != "evict_off" {
		t.Errorf("%d %s", status, code)
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
		for _, path := range []string{"/", "/api/v1/locks", "/api/v1/lock", "/api/v1/health", "/api/v1/stream"} {
			if got := f.request(method, path, "").StatusCode; got != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d", method, path, got)
			}
		}
	}
	if g.Err() != nil {
		t.Error(g.Err())
	}
}

// A file lock ends with its process: the answer says which that is.
func TestFilesCannotBeEvicted(t *testing.T) {
	f := setUp(t)
	files, err := dlock.New(&dlock.Config{}, dlock.WithBackend(filelock.New(t.TempDir())), dlock.WithAdmin())
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	p, err := New([]Source{{Name: "files", Client: files}}, WithEvict())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	g, err := files.TryAcquire(t.Context(), "k", dlock.WithInfo(dlock.Info{Owner: "ann", Host: "web-1", PID: 4711}))
	if err != nil {
		t.Fatal(err)
	}
	f.server.Config.Handler = p
	d := get[detail](f, "/api/v1/lock?source=files&key=k")
	if !strings.Contains(d.CannotEvict, "kill 4711") || d.Waiters != nil || d.Holders[0].Until != 0 {
		t.Errorf("%+v", d)
	}
	if status, code := f.evict(eviction{"files", "k", fmt.Sprint(max(1, g.Token())), "k"}); status != 422 || code != "cannot_evict" {
		t.Errorf("%d %s", status, code)
	}
	if g.Err() != nil {
		t.Error(g.Err())
	}
}

// The operator is asked before anything changes, so that every eviction has a record.
func TestOperatorFails(t *testing.T) {
	f := setUp(t, WithEvict(), WithOperator(func(*http.Request) string { panic(http.ErrAbortHandler) }))
	g := f.take("k")
	body := fmt.Sprintf(`{"source":"memory","key":"k","token":"%d","confirm":"k"}`, g.Token())
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.server.URL+"/api/v1/evict", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := f.http.Do(r)
	if err == nil {
		_ = answer.Body.Close()
		t.Errorf("%d", answer.StatusCode)
	}
	if d := get[detail](f, "/api/v1/lock?source=memory&key=k"); len(d.Holders) != 1 {
		t.Errorf("%+v", d)
	}
	if g.Err() != nil {
		t.Error(g.Err())
	}
}

// A slowBody arrives never: reading it ends at the deadline of the connection only.
type slowBody struct {
	*httptest.ResponseRecorder
	deadline time.Time
}

func (s *slowBody) SetReadDeadline(at time.Time) error {
	s.deadline = at
	return nil
}

func (s *slowBody) Read([]byte) (int, error) {
	end := s.deadline
	if end.IsZero() {
		end = time.Now().Add(time.Hour)
	}
	time.Sleep(time.Until(end))
	return 0, os.ErrDeadlineExceeded
}

// A request whose body does not arrive ends.
func TestEvictWithSlowBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withoutServer(t, WithEvict())
		w := &slowBody{ResponseRecorder: httptest.NewRecorder()}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/api/v1/evict", w)
		r.Header.Set("Content-Type", "application/json")
		began := time.Now()
		f.page.ServeHTTP(w, r)
		if took := time.Since(began); took != bodyTimeout || w.Code != http.StatusBadRequest || !w.deadline.IsZero() {
			t.Errorf("%d after %v, then the deadline is %v", w.Code, took, w.deadline)
		}
	})
}
