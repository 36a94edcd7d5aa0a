package browser

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

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
	if _, err := s.client().TryAcquire(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	p := openTab(t, light, s.server.URL)
	p.expect("401")
	p.expect("ERR_")
	p.expect("503")
	p.await("the login", `!document.getElementById("login").hidden`)
	p.do(chromedp.KeyEvent(oldToken + kb.Enter))
	p.awaitKeys("k")
	other, err := dashboard.New([]dashboard.Source{{Name: "memory", Client: s.client()}}, dashboard.WithBearerToken(newToken))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	s.handler.Store(other)
	_ = s.page.Close() // the service starts again with another token
	p.await("the login, and no locks", `!document.getElementById("login").hidden && document.getElementById("login-error").textContent.includes("no longer valid") && !document.body.innerText.includes("1 lock")`)
	p.do(chromedp.KeyEvent(newToken + kb.Enter))
	p.awaitKeys("k")
}
