package dashboard

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// Every answer has the headers that keep foreign sites and foreign text out.
func TestHeaders(t *testing.T) {
	f := setUp(t)
	for _, path := range []string{"/", "/app.js", "/style.css", "/none", "/healthz", "/openapi.json", "/metrics", "/api/v1/locks", "/api/v1/none"} {
		h := f.request(http.MethodGet, path, "").Header
		for name, want := range map[string]string{
			"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
			"Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			if got := h.Get(name); got != want {
				t.Errorf("%s: %s is %q", path, name, got)
			}
		}
		if h.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: other sites may read it", path)
		}
	}
	for _, part := range []string{"default-src 'none'", "script-src 'self';", "style-src 'self';", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} {
		if !strings.Contains(policy, part) {
			t.Errorf("no %s in the policy", part)
		}
	}
}

// The page itself has nothing that its policy forbids.
func TestPageObeysItsPolicy(t *testing.T) {
	for _, name := range []string{"index.html"} {
		text, err := assets.ReadFile("web/" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, forbidden := range []string{" style=", " onclick=", "<style", "http://", "https://", "javascript:"} {
			if strings.Contains(string(text), forbidden) {
				t.Errorf("%s has %s", name, forbidden)
			}
		}
	}
	entries, err := assets.ReadDir("web")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".js") {
			continue
		}
		text, err := assets.ReadFile("web/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, forbidden := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser", "localStorage"} {
			if strings.Contains(string(text), forbidden) {
				t.Errorf("%s has %s: text must not become HTML", e.Name(), forbidden)
			}
		}
	}
}

func TestHosts(t *testing.T) {
	f := setUp(t, WithAllowedHosts("Ops.example.com", "proxy:8443", "tls.example.com:443", "[2001:DB8::1]", "2001:db8:0::2", "[2001:db8::3]:7077"))
	for host, want := range map[string]int{
		"localhost:7077": 200, "LOCALHOST": 200, "127.0.0.1": 200, "127.9.9.9:1": 200, "[::1]:80": 200, "::1": 200,
		"ops.example.com": 200, "OPS.example.com:443": 200, "proxy:8443": 200,
		"tls.example.com": 200, "tls.example.com:443": 200, "tls.example.com:8443": 421, "TLS.example.com.": 200,
		"[2001:db8::1]": 200, "[2001:db8::1]:7077": 200, "[2001:db8::2]:7077": 200, "[2001:db8::3]:7077": 200, "[2001:db8::3]": 421, "[2001:db8::4]": 421,
		"proxy": 421, "proxy:8444": 421, "evil.example": 421, "localhost.evil.example": 421, "127.0.0.1.evil.example": 421,
		"10.1.2.3": 421, "ops.example.com.evil.example": 421, "0.0.0.0:7077": 421,
	} {
		if got := f.request(http.MethodGet, "/api/v1/locks", "", "Host", host).StatusCode; got != want {
			t.Errorf("Host %s: %d, want %d", host, got, want)
		}
	}
	for _, path := range []string{"/", "/metrics", "/openapi.json", "/api/v1/stream"} {
		if got := f.request(http.MethodGet, path, "", "Host", "evil.example").StatusCode; got != 421 {
			t.Errorf("%s: %d", path, got)
		}
	}
	if got := f.request(http.MethodGet, "/healthz", "", "Host", "10.1.2.3").StatusCode; got != 200 {
		t.Errorf("/healthz, which a probe asks by any name: %d", got)
	}
}

// The address of the connection is allowed, because no DNS leads to it.
func TestHostIsLocalAddress(t *testing.T) {
	f := setUp(t)
	at := func(local string) int {
		r := httptest.NewRequest(http.MethodGet, "http://10.1.2.3:7077/", http.NoBody)
		addr, err := net.ResolveTCPAddr("tcp", local)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		f.page.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, addr)))
		return w.Code
	}
	if got := at("10.1.2.3:7077"); got != 200 {
		t.Errorf("%d", got)
	}
	if got := at("10.9.9.9:7077"); got != 421 {
		t.Errorf("another address: %d", got)
	}
}

const secret = "correct-horse-battery"

func TestBearerToken(t *testing.T) {
	f := setUp(t, WithBearerToken(secret), WithEvict())
	for header, want := range map[string]int{
		"Bearer " + secret: 200, "bearer " + secret: 200, "": 401, "Bearer": 401, "Basic " + secret: 401,
		secret: 401, "Bearer " + secret + "x": 401, "Bearer " + secret[1:]: 401,
	} {
		answer := f.request(http.MethodGet, "/api/v1/locks", "", "Authorization", header)
		if answer.StatusCode != want {
			t.Errorf("%q: %d, want %d", header, answer.StatusCode, want)
		}
		if want == 401 && answer.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("%q: no WWW-Authenticate", header)
		}
	}
	for _, path := range []string{"/api/v1/lock?source=memory&key=k", "/api/v1/leaders", "/api/v1/jobs", "/api/v1/health", "/api/v1/stream", "/metrics"} {
		if got := f.request(http.MethodGet, path, "").StatusCode; got != 401 {
			t.Errorf("%s: %d", path, got)
		}
	}
	if got := f.request(http.MethodPost, "/api/v1/evict", "{}", "Content-Type", "application/json").StatusCode; got != 401 {
		t.Errorf("evict: %d", got)
	}
	for _, path := range []string{"/", "/app.js", "/healthz", "/openapi.json"} { // which have no data
		if got := f.request(http.MethodGet, path, "").StatusCode; got != 200 {
			t.Errorf("%s: %d", path, got)
		}
	}
}

// A foreign site cannot make a browser ask, with or without a form.
func TestCrossOrigin(t *testing.T) {
	f := setUp(t, WithEvict())
	own := f.server.URL
	for name, c := range map[string]struct {
		headers  []string
		get, put int
	}{
		"the page":         {[]string{"Origin", own, "Sec-Fetch-Site", "same-origin"}, 200, 404},
		"no browser":       {nil, 200, 404},
		"behind a proxy":   {[]string{"Origin", "https://ops.example.com", "Sec-Fetch-Site", "same-origin"}, 200, 404},
		"typed":            {[]string{"Sec-Fetch-Site", "none"}, 200, 403},
		"another site":     {[]string{"Origin", "http://evil.example", "Sec-Fetch-Site", "cross-site"}, 403, 403},
		"an older browser": {[]string{"Origin", "http://evil.example"}, 403, 403},
		"a sibling":        {[]string{"Origin", "http://localhost:1", "Sec-Fetch-Site", "same-site"}, 403, 403},
		"a sandbox":        {[]string{"Origin", "null"}, 403, 403},
	} {
		if got := f.request(http.MethodGet, "/api/v1/locks", "", c.headers...).StatusCode; got != c.get {
			t.Errorf("%s: GET %d, want %d", name, got, c.get)
		}
		headers := append([]string{"Content-Type", "application/json"}, c.headers...)
		body := `{"source":"none","key":"k","token":"1","confirm":"k"}`
		if got := f.request(http.MethodPost, "/api/v1/evict", body, headers...).StatusCode; got != c.put {
			t.Errorf("%s: POST %d, want %d", name, got, c.put)
		}
	}
}

func TestInvalidSettings(t *testing.T) {
	locks, err := dlock.New(&dlock.Config{}, dlock.WithBackend(memlock.New()), dlock.WithAdmin())
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	plain, err := dlock.New(&dlock.Config{}, dlock.WithBackend(memlock.New()))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	one := []Source{{Name: "a", Client: locks}}
	for name, c := range map[string]struct {
		sources []Source
		opts    []Option
		want    error
	}{
		"no source":           {nil, nil, dlock.ErrInvalidConfig},
		"no name":             {[]Source{{Name: "", Client: locks}}, nil, dlock.ErrInvalidConfig},
		"a long name":         {[]Source{{Name: strings.Repeat("a", 1001), Client: locks}}, nil, dlock.ErrInvalidConfig},
		"one name twice":      {[]Source{{Name: "a", Client: locks}, {Name: "a", Client: locks}}, nil, dlock.ErrInvalidConfig},
		"no client":           {[]Source{{Name: "a", Client: nil}}, nil, dlock.ErrInvalidConfig},
		"a nil holder":        {[]Source{{Name: "a", Client: locks, Holders: []*dlock.Client{plain, nil}}}, nil, dlock.ErrInvalidConfig},
		"without WithAdmin":   {[]Source{{Name: "a", Client: plain}}, nil, dlock.ErrUnsupported},
		"a nil option":        {one, []Option{nil}, dlock.ErrInvalidConfig},
		"a short token":       {one, []Option{WithBearerToken("short")}, dlock.ErrInvalidConfig},
		"a token of spaces":   {one, []Option{WithBearerToken(strings.Repeat(" ", 20))}, dlock.ErrInvalidConfig},
		"a fast interval":     {one, []Option{WithInterval(minInterval - 1)}, dlock.ErrInvalidConfig},
		"a slow interval":     {one, []Option{WithInterval(maxInterval + 1)}, dlock.ErrInvalidConfig},
		"no locks":            {one, []Option{WithMaxLocks(0)}, dlock.ErrInvalidConfig},
		"any host":            {one, []Option{WithAllowedHosts("*")}, dlock.ErrInvalidConfig},
		"a host with no port": {one, []Option{WithAllowedHosts("a:")}, dlock.ErrInvalidConfig},
		"a port that is none": {one, []Option{WithAllowedHosts("a:https")}, dlock.ErrInvalidConfig},
		"half an address":     {one, []Option{WithAllowedHosts("[2001:db8::1")}, dlock.ErrInvalidConfig},
		"a URL as host":       {one, []Option{WithAllowedHosts("http://a/")}, dlock.ErrInvalidConfig},
		"a nil operator":      {one, []Option{WithOperator(nil)}, dlock.ErrInvalidConfig},
	} {
		h, err := New(c.sources, c.opts...)
		if !errors.Is(err, c.want) || h != nil {
			t.Errorf("%s: %v, %v", name, h, err)
		}
	}
}
