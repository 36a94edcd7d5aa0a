package fence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/fencetest"
	"github.com/ceyewan/genesis/pkg/dlock/fence"
)

// serve starts a server with a handler behind the fence, and returns a client that sends tokens.
func serve(t *testing.T, next http.HandlerFunc, checker fence.Checker, opts ...fence.HandlerOption) (*http.Client, string) {
	t.Helper()
	handler, err := fence.NewHandler(next, checker, opts...)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	base := &http.Transport{}
	t.Cleanup(func() {
		base.CloseIdleConnections()
		server.Close()
	})
	return &http.Client{Transport: &fence.Transport{Base: base}}, server.URL
}

// send sends a request as a holder, and returns the status and the body.
func send(t *testing.T, client *http.Client, method, url string, h *fence.Holder, body string) (int, string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // for a handler that waits for what does not come
	defer cancel()
	if h != nil {
		ctx = fence.NewContext(ctx, *h)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// A store is data of a service in memory. It compares and writes under one mutex, as NewHandler
// recommends.
type store struct {
	memory fence.Memory
	mu     sync.Mutex
	values map[string]string
}

func (s *store) put(w http.ResponseWriter, r *http.Request) {
	value, err := io.ReadAll(r.Body)
	if err != nil {
		fence.Refuse(w, err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	holder, ok := fence.FromContext(r.Context())
	if ok {
		err = s.memory.Check(r.Context(), holder.Resource, holder.Token)
	}
	if err != nil {
		fence.Refuse(w, err)
		return
	}
	s.values[r.URL.Path] = string(value)
}

func TestHTTPRefusesLateWrites(t *testing.T) {
	t.Parallel()
	s := &store{values: map[string]string{}}
	client, url := serve(t, s.put, &fence.Memory{}, fence.WithUnfenced(func(*http.Request) bool { return true }))
	write := func(name, value string, h *fence.Holder) error {
		status, text, err := send(t, client, http.MethodPut, url+"/"+name, h, value)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d: %s", status, text)
		}
		return err
	}
	fencetest.Run(t, fencetest.Resource{
		Fenced: func(_ context.Context, name string, token int64, value string) error {
			return write(name, value, &fence.Holder{Resource: name, Token: token})
		},
		Plain: func(_ context.Context, name, value string) error { return write(name, value, nil) },
		Read: func(_ context.Context, name string) (string, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.values["/"+name], nil
		},
	})
}

// A check before the write leaves a window: a request that is delayed after it writes late. Where the
// write checks again, it is refused.
func TestWindowBetweenCheckAndWrite(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		entered, leave := make(chan struct{}), make(chan struct{})
		var memory fence.Memory
		var last atomic.Int64
		client, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			holder, _ := fence.FromContext(r.Context())
			if holder.Token == 1 {
				close(entered)
				<-leave
			}
			if again {
				if err := memory.Check(r.Context(), holder.Resource, holder.Token); err != nil {
					fence.Refuse(w, err)
					return
				}
			}
			last.Store(holder.Token)
		}, &memory)
		done := make(chan error, 1)
		go func() {
			_, _, err := send(t, client, http.MethodPut, url, &fence.Holder{Resource: "r", Token: 1}, "")
			done <- err
		}()
		select {
		case <-entered:
		case err := <-done:
			close(leave)
			t.Fatalf("the request did not come to the handler: %v", err)
		}
		_, _, err := send(t, client, http.MethodPut, url, &fence.Holder{Resource: "r", Token: 2}, "")
		close(leave)
		late := <-done
		if err != nil {
			t.Fatal(err)
		}
		if again && (!errors.Is(late, fence.ErrStale) || last.Load() != 2) {
			t.Errorf("with a second check: %v, token %d wrote last", late, last.Load())
		}
		if !again && (late != nil || last.Load() != 1) {
			t.Errorf("without a second check: %v, token %d wrote last", late, last.Load())
		}
	}
}

func TestTransport(t *testing.T) {
	t.Parallel()
	client, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		holder, _ := fence.FromContext(r.Context())
		fmt.Fprint(w, holder.Resource, holder.Token)
	}, &fence.Memory{}, fence.WithUnfenced(func(r *http.Request) bool { return r.Method == http.MethodGet }))
	name := "库 /%?#"
	status, text, err := send(t, client, http.MethodPut, url, &fence.Holder{Resource: name, Token: 5}, "")
	if status != 200 || text != name+"5" || err != nil {
		t.Errorf("%d %q, %v", status, text, err)
	}
	_, _, err = send(t, client, http.MethodPut, url, &fence.Holder{Resource: name, Token: 4}, "")
	var stale *fence.StaleError
	if !errors.As(err, &stale) || *stale != (fence.StaleError{Resource: name, Token: 4, Seen: 5}) || !errors.Is(err, fence.ErrStale) {
		t.Errorf("stale: %v", err)
	}
	if status, _, err = send(t, client, http.MethodGet, url, nil, ""); status != 200 || err != nil {
		t.Errorf("a reader: %d, %v", status, err)
	}
	if status, _, err = send(t, client, http.MethodPut, url, nil, ""); status != http.StatusPreconditionRequired || err != nil {
		t.Errorf("without a token: %d, %v", status, err)
	}
	for _, h := range []fence.Holder{{Resource: "", Token: 1}, {Resource: "a", Token: 0}, {Resource: "a\n", Token: 1}} {
		if _, _, err = send(t, client, http.MethodPut, url, &h, ""); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%v: %v", h, err)
		}
	}
}

// A 412 that is not about the fence stays an answer.
func TestOtherPreconditionStays(t *testing.T) {
	t.Parallel()
	client, url := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "If-Match", http.StatusPreconditionFailed) }, &fence.Memory{})
	status, _, err := send(t, client, http.MethodPut, url, &fence.Holder{Resource: "r", Token: 1}, "")
	if status != http.StatusPreconditionFailed || err != nil {
		t.Errorf("%d, %v", status, err)
	}
}

func TestTransportWithOwnHolder(t *testing.T) {
	t.Parallel()
	client, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		holder, _ := fence.FromContext(r.Context())
		fmt.Fprint(w, holder.Token)
	}, &fence.Memory{})
	client.Transport.(*fence.Transport).Holder = func(r *http.Request) (fence.Holder, bool) {
		token, err := strconv.ParseInt(r.URL.Query().Get("token"), 10, 64)
		return fence.Holder{Resource: "r", Token: token}, err == nil
	}
	status, text, err := send(t, client, http.MethodPut, url+"?token=3", nil, "")
	if status != 200 || text != "3" || err != nil {
		t.Errorf("%d %q, %v", status, text, err)
	}
}

func TestResourceOfRequest(t *testing.T) {
	t.Parallel()
	client, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		holder, _ := fence.FromContext(r.Context())
		fmt.Fprint(w, holder.Resource)
	}, &fence.Memory{}, fence.WithResource(func(r *http.Request) string { return r.URL.Path }))
	status, text, err := send(t, client, http.MethodPut, url+"/a", &fence.Holder{Resource: "/a", Token: 1}, "")
	if status != 200 || text != "/a" || err != nil {
		t.Errorf("%d %q, %v", status, text, err)
	}
	if status, _, err = send(t, client, http.MethodPut, url+"/a", &fence.Holder{Resource: "/b", Token: 1}, ""); status != 400 || err != nil {
		t.Errorf("another resource: %d, %v", status, err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url+"/c", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(fence.HeaderToken, "1")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != 200 || string(body) != "/c" || err != nil {
		t.Errorf("only a token: %d %q, %v", resp.StatusCode, body, err)
	}
}

func TestHandlerRefusesBadInput(t *testing.T) {
	t.Parallel()
	next := http.NotFoundHandler()
	_, err1 := fence.NewHandler(nil, &fence.Memory{})
	_, err2 := fence.NewHandler(next, nil)
	_, err3 := fence.NewHandler(next, &fence.Memory{}, nil)
	_, err4 := fence.NewHandler(next, &fence.Memory{}, fence.WithResource(nil))
	_, err5 := fence.NewHandler(next, &fence.Memory{}, fence.WithUnfenced(nil))
	for i, err := range []error{err1, err2, err3, err4, err5} {
		if !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// A handler answers with the errors of its own writes. What is not of the request is not described.
func TestRefuse(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for name, c := range map[string]struct {
		err    error
		status int
	}{
		"no database":    {fence.SQL{Dialect: fence.SQLite}.Do(ctx, nil, "r", 1, nil), 503},
		"no dialect":     {fence.SQL{}.Do(ctx, nil, "r", 1, nil), 503},
		"bad table":      {fence.SQL{Dialect: fence.SQLite, Table: "a b"}.Do(ctx, nil, "r", 1, nil), 503},
		"unknown commit": {fmt.Errorf("commit: %w", io.ErrUnexpectedEOF), 503},
		"token":          {fence.SQL{Dialect: fence.SQLite}.Do(ctx, nil, "r", 0, nil), 400},
		"resource":       {fmt.Errorf("outer: %w", fence.SQL{Dialect: fence.SQLite}.Do(ctx, nil, "", 1, nil)), 400},
	} {
		w := httptest.NewRecorder()
		fence.Refuse(w, c.err)
		if w.Code != c.status || (c.status == 503 && w.Body.String() != "the request could not be completed\n") {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
}

// A handler that calls another service does not forward the token of its client, unless it says so.
func TestTokenIsNotForwarded(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var tokens []string
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		tokens = append(tokens, r.Header.Get(fence.HeaderToken))
	}))
	defer other.Close()
	base := &http.Transport{}
	outbound := &http.Client{Transport: &fence.Transport{Base: base}}
	client, url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		holder, _ := fence.FromContext(r.Context())
		for _, ctx := range []context.Context{r.Context(), fence.NewContext(r.Context(), holder)} {
			req, err := http.NewRequestWithContext(ctx, http.MethodPut, other.URL, nil)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := outbound.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
		}
	}, &fence.Memory{})
	_, _, err := send(t, client, http.MethodPut, url, &fence.Holder{Resource: "r", Token: 7}, "")
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"", "7"}; !slices.Equal(tokens, want) {
		t.Errorf("the tokens %q were sent, want %q", tokens, want)
	}
	outbound.CloseIdleConnections()
	client.CloseIdleConnections()
}

// idleBase counts how often its idle connections are closed.
type idleBase struct {
	http.RoundTripper
	closed int
}

func (b *idleBase) CloseIdleConnections() { b.closed++ }

func TestTransportClosesIdleConnections(t *testing.T) {
	t.Parallel()
	base := &idleBase{}
	(&http.Client{Transport: &fence.Transport{Base: base}}).CloseIdleConnections()
	if base.closed != 1 {
		t.Errorf("closed %d times", base.closed)
	}
}

// A RoundTripper may get a request that has no headers yet.
func TestTransportWithoutHeader(t *testing.T) {
	t.Parallel()
	client, address := serve(t, func(http.ResponseWriter, *http.Request) {}, &fence.Memory{})
	req, err := http.NewRequestWithContext(fence.NewContext(t.Context(), fence.Holder{Resource: "r", Token: 1}), http.MethodPut, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = nil
	resp, err := client.Transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK || req.Header != nil {
		t.Errorf("%s, %v", resp.Status, req.Header)
	}
}
