package browser

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/dashboard"
)

const (
	oldToken = "the-old-token-of-16"
	newToken = "the-new-token-of-16"
)

// The page asks for the token, refuses a wrong one, keeps the right one in its tab, and asks again
// when it is no longer valid.
func TestLogin(t *testing.T) {
	backend := files(t)
	page := serve(t, []string{"DLOCK_UI_TOKEN=" + oldToken}, "--backend", backend)
	holds(t, backend, "ann", "k")
	p := openTab(t, light, page)
	p.expect("401")
	const asks = `!document.getElementById("login").hidden && document.activeElement.id === "login-token"`
	p.await("the login", asks)
	if text := p.text(); strings.Contains(text, "ann") {
		t.Errorf("locks without a token: %s", text)
	}
	p.fill("login-token", "“pasted-with-quotes”")
	p.do(chromedp.KeyEvent(kb.Enter))
	p.await("a refusal of what no header can carry", asks+` && document.getElementById("login-error").textContent.includes("wrong")`)
	p.do(chromedp.KeyEvent("wrong-wrong-wrong" + kb.Enter))
	p.await("a refusal", asks+` && document.getElementById("login-error").textContent.includes("wrong")`)
	p.do(chromedp.KeyEvent(oldToken + kb.Enter))
	p.awaitKeys("k")
	if eval[bool](p, `location.href.includes("token") || document.cookie !== "" || localStorage.length > 0`) {
		t.Error("the token is kept in the wrong place")
	}
	p.do(chromedp.Reload())
	p.awaitKeys("k")
}

func TestLoginExpires(t *testing.T) {
	s := inMemory(t, dashboard.WithBearerToken(oldToken))
	if _, err := s.client().TryAcquire(t.Context(), "secret-lock:1", dlock.WithInfo(dlock.Info{Owner: "secret-owner"})); err != nil {
		t.Fatal(err)
	}
	p := openTab(t, light, s.server.URL)
	p.expect("401")
	p.expect("ERR_")
	p.expect("503")
	p.await("the login", `!document.getElementById("login").hidden`)
	p.do(chromedp.KeyEvent(oldToken + kb.Enter))
	p.awaitKeys("secret-lock:1")
	p.click("#sources a")
	p.await("the health", `document.querySelector(".findings")`)
	p.do(chromedp.Evaluate[chromedp.Void](`location.hash = "#/lock/memory/secret-lock%3A1"`))
	p.await("the lock", `document.querySelector(".answer")?.textContent.startsWith("Held by secret-owner")`)
	other, err := dashboard.New([]dashboard.Source{{Name: "memory", Client: s.client()}}, dashboard.WithBearerToken(newToken))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	s.handler.Store(other)
	_ = s.page.Close() // the service starts again with another token
	p.await("the login, and no locks", `!document.getElementById("login").hidden && document.getElementById("login-error").textContent.includes("no longer valid") && !document.body.innerText.includes("1 lock")`)
	p.await("nothing of the locks in hidden parts", `!document.documentElement.innerHTML.includes("secret-lock") && !document.documentElement.innerHTML.includes("secret-owner")`)
	p.do(chromedp.Evaluate[chromedp.Void](`history.replaceState(null, "", "#/")`), chromedp.KeyEvent(newToken+kb.Enter))
	p.awaitKeys("secret-lock:1")
}

// A proxy that refuses a request has its own login: the page does not ask for a token that there is not.
func TestLoginOfProxy(t *testing.T) {
	s := inMemory(t)
	var refuses atomic.Bool
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refuses.Load() && strings.HasPrefix(r.URL.Path, "/api/") {
			http.Error(w, "log in at the proxy", http.StatusUnauthorized)
			return
		}
		s.handler.ServeHTTP(w, r)
	}))
	defer proxy.Close()
	refuses.Store(true)
	p := openTab(t, light, proxy.URL)
	p.expect("401")
	p.await("the refusal", `document.getElementById("connection").textContent.includes("401") && document.getElementById("login").hidden`)
	refuses.Store(false)
	p.await("an empty list", noLocks)
	_ = s.page.Close() // or the proxy waits for the stream
	p.expect("503")
	p.expect("ERR_")
}
