package browser

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/dashboard"
)

// Another site in the same browser can neither show the page in a frame, nor read from it, nor evict with it.
func TestOtherSites(t *testing.T) {
	s := inMemory(t, dashboard.WithEvict())
	g, err := s.client().TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprint(w, "<!doctype html><title>another site</title>")
	}))
	defer evil.Close()
	p := openTab(t, light, evil.URL)
	for _, refusal := range []string{"403", "CORS", "ERR_", "frame", "Failed to load"} {
		p.expect(refusal)
	}
	get := `fetch(%q).then((r) => r.text(), () => "refused")`
	for _, path := range []string{"/api/v1/locks", "/metrics", "/"} {
		if got := eval[string](p, fmt.Sprintf(get, s.server.URL+path)); got != "refused" {
			t.Errorf("%s: another site reads %.80s", path, got)
		}
	}
	body := fmt.Sprintf(`{"source":"memory","key":"k","token":"%d","confirm":"k"}`, g.Token())
	for _, options := range []string{
		`{ method: "POST", mode: "no-cors", body: %q, headers: { "Content-Type": "text/plain" } }`,
		`{ method: "POST", credentials: "include", body: %q, headers: { "Content-Type": "application/json" } }`,
	} {
		eval[string](p, fmt.Sprintf(`fetch(%q, `+options+`).then(() => "sent", () => "refused")`, s.server.URL+"/api/v1/evict", body))
	}
	if err := g.Err(); err != nil {
		t.Errorf("another site has evicted the holder: %v", err)
	}
	shown := eval[string](p, fmt.Sprintf(`new Promise((resolve) => {
		const frame = document.createElement("iframe");
		frame.onload = () => { try { resolve(String(frame.contentWindow.length) + frame.contentDocument) } catch (e) { resolve(e.name) } };
		frame.src = %q;
		document.body.append(frame);
	})`, s.server.URL+"/"))
	testenv.Eventually(t, limit, "the frame is refused, not "+shown, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return slices.ContainsFunc(p.errs, func(e string) bool { return containsAny(e, []string{"frame-ancestors", "X-Frame-Options"}) })
	})
	p.mu.Lock()
	delete(p.hosts, origin(s.server.URL)) // which this test asks on purpose
	p.mu.Unlock()
	admin, err := s.client().Admin()
	if err != nil {
		t.Fatal(err)
	}
	claims, err := admin.Inspect(t.Context(), "k")
	if err != nil || len(claims) != 1 || claims[0].Phase != dlock.PhaseHeld || claims[0].Token != g.Token() {
		t.Errorf("%v: %+v", err, claims)
	}
}
