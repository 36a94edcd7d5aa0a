package browser

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/dashboard"
)

// An eviction needs the key, typed, and hands the lock to the next waiter.
func TestEvict(t *testing.T) {
	backend := "redis://" + testenv.Redis(t).Addr()
	page := serve(t, nil, "--evict", "--backend", backend)
	_, token := holds(t, backend, "ann", "deploy", "--on-lost", "warn")
	claims(t, backend, "bob", "deploy")
	p := openTab(t, light, page+"#/lock/"+url.QueryEscape(backend)+"/deploy")
	p.await("the queue", waitersShown+` === "bob"`)
	p.click("[aria-label=Holders] button.danger")
	p.await("the dialog", fmt.Sprintf(`document.getElementById("evict").open && document.getElementById("evict-who").textContent.includes("token %d")`, token))
	if !eval[bool](p, `document.getElementById("evict-do").disabled`) {
		t.Error("it can be done without a confirmation")
	}
	p.do(chromedp.KeyEvent("deplo"))
	p.await("still not", `document.getElementById("evict-confirm").value === "deplo" && document.getElementById("evict-do").disabled`)
	p.do(chromedp.KeyEvent("y" + kb.Enter))
	p.await("the next holder", `!document.getElementById("evict").open && document.querySelector(".answer").textContent.includes("bob@")`)
	p.await("a message", fmt.Sprintf(`document.getElementById("connection").textContent.includes("token %d")`, token))
}

// If the lock has passed on since the dialog was opened, nothing changes.
func TestEvictStale(t *testing.T) {
	backend := "redis://" + testenv.Redis(t).Addr()
	page := serve(t, nil, "--evict", "--backend", backend)
	ann, _ := holds(t, backend, "ann", "deploy")
	bob := claims(t, backend, "bob", "deploy")
	p := openTab(t, light, page+"#/lock/"+url.QueryEscape(backend)+"/deploy")
	p.expect("409")
	p.await("the queue", waitersShown+` === "bob"`)
	p.click("[aria-label=Holders] button.danger")
	p.await("the dialog", `document.getElementById("evict").open`)
	ann.end(t)
	bob.token(t)
	p.do(chromedp.KeyEvent("deploy" + kb.Enter))
	p.await("a refusal", `document.getElementById("evict-error").textContent.includes("passed on")`)
	p.click("#evict-cancel")
	p.await("bob has it", `!document.getElementById("evict").open && document.querySelector(".answer").textContent.includes("bob@")`)
	bob.end(t) // fails if its lock was taken away
}

// Without --evict there is no button.
func TestReadOnly(t *testing.T) {
	s := inMemory(t)
	if _, err := s.client().TryAcquire(t.Context(), "k", dlock.WithInfo(dlock.Info{Owner: "ann"})); err != nil {
		t.Fatal(err)
	}
	p := openTab(t, light, s.server.URL+"/#/lock/memory/k")
	p.await("the holder", `document.querySelector("[aria-label=Holders] tbody")?.textContent.includes("ann")`)
	if eval[int](p, `document.querySelectorAll("#view-lock button").length`) != 0 {
		t.Error("there is a button")
	}
}

// Several holders have one key, so the token says which of them is meant.
func TestEvictOneOfSeveral(t *testing.T) {
	s := inMemory(t, dashboard.WithEvict())
	c := s.client()
	var tokens []int64
	for _, owner := range []string{"ann", "bob"} {
		g, err := c.TryAcquire(t.Context(), "report", dlock.WithShared(), dlock.WithInfo(dlock.Info{Owner: owner}))
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, g.Token())
	}
	p := openTab(t, light, s.server.URL+"/#/lock/memory/report")
	p.click(fmt.Sprintf(`button[aria-label$="token %d"]`, tokens[1]))
	p.await("the dialog", `document.getElementById("evict").open && document.getElementById("evict-label").textContent.includes("several holders")`)
	p.do(chromedp.KeyEvent("report"))
	p.await("the key is not enough", `document.getElementById("evict-confirm").value === "report" && document.getElementById("evict-do").disabled`)
	p.fill("evict-confirm", fmt.Sprint(tokens[1]))
	p.do(chromedp.KeyEvent(kb.Enter))
	p.await("only the other is left", `!document.getElementById("evict").open && document.querySelectorAll("[aria-label=Holders] tbody tr").length === 1 && document.querySelector("[aria-label=Holders] tbody").textContent.includes("ann")`)
}

// While an eviction is sent, typing does not allow to send it again.
func TestEvictIsSentOnce(t *testing.T) {
	s := inMemory(t, dashboard.WithEvict())
	if _, err := s.client().TryAcquire(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	sent, answer := make(chan struct{}, 2), make(chan struct{})
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			sent <- struct{}{}
			<-answer
		}
		s.handler.ServeHTTP(w, r)
	}))
	defer proxy.Close()
	p := openTab(t, light, proxy.URL+"/#/lock/memory/k")
	p.click("[aria-label=Holders] button.danger")
	p.await("the dialog", `document.activeElement.id === "evict-confirm"`)
	p.do(chromedp.KeyEvent("k" + kb.Enter))
	<-sent
	p.do(chromedp.KeyEvent("x" + kb.Backspace + kb.Enter))
	if !eval[bool](p, `document.getElementById("evict-do").disabled && document.getElementById("evict-confirm").value === "k"`) {
		t.Error("it can be sent again")
	}
	close(answer)
	p.await("the end", `!document.getElementById("evict").open`)
	if len(sent) > 0 {
		t.Error("it was sent twice")
	}
	p.expect("503")
	p.expect("ERR_")
	_ = s.page.Close() // or the proxy waits for the stream
}
