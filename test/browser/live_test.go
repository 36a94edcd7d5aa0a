package browser

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A fleet is a backend with a page that dlock ui serves.
type fleet struct{ name, backend, url string }

// onServers runs a test on every backend that processes can share.
func onServers(t *testing.T, args []string, test func(t *testing.T, f fleet)) {
	for name, start := range map[string]func(t *testing.T) string{
		"redis": func(t *testing.T) string { return "redis://" + testenv.Redis(t).Addr() },
		"etcd":  func(t *testing.T) string { return "etcd://" + testenv.Etcd(t).Addr() },
		"redlock": func(t *testing.T) string {
			return "redlock://" + testenv.Redis(t).Addr() + "," + testenv.Redis(t).Addr() + "," + testenv.Redis(t).Addr()
		},
		"file": func(t *testing.T) string { return files(t) },
	} {
		t.Run(name, func(t *testing.T) {
			backend := start(t)
			test(t, fleet{name, backend, serve(t, nil, append(args, "--backend", backend)...)})
		})
	}
}

const noLocks = `document.getElementById("count").textContent === "0 locks"`

// A lock that another process takes appears, and its release too, on every backend. The goal is a
// second; the limit is for a busy machine.
func TestLocksAppear(t *testing.T) {
	onServers(t, nil, func(t *testing.T, f fleet) {
		p := openTab(t, light, f.url)
		p.await("an empty list", noLocks)
		ann, token := holds(t, f.backend, "ann", "orders:1")
		began := time.Now()
		p.awaitKeys("orders:1")
		appeared := time.Since(began)
		row := eval[string](p, `document.querySelector("#rows .row").innerText`)
		for _, part := range []string{"ann@", "pid ", fmt.Sprint(token), "exclusive", "sh"} {
			if !strings.Contains(row, part) {
				t.Errorf("no %q in %q", part, row)
			}
		}
		ann.end(t)
		began = time.Now()
		p.await("the release", noLocks)
		t.Logf("%s: a lock appeared after %v, its release after %v (goal: 1s)", f.name, appeared.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	})
}

// The same on memory, where a Client of the same process takes it.
func TestLocksAppearInMemory(t *testing.T) {
	s := inMemory(t)
	p := openTab(t, light, s.server.URL)
	p.await("an empty list", noLocks)
	g, err := s.client().Acquire(t.Context(), "orders:1")
	if err != nil {
		t.Fatal(err)
	}
	p.awaitKeys("orders:1")
	if err := g.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.await("the release", noLocks)
}

// waitersShown are the owners of the queue, from the first to the last.
const waitersShown = `[...document.querySelectorAll("[aria-label=Queue] tbody tr")].map((r) => r.children[1].textContent.split("@")[0]).join()`

// One lock has its queue in order, with its waiting times; a lock that passes on shows the next
// holder, and the picture shows both.
func TestQueueInOrder(t *testing.T) {
	onServers(t, nil, func(t *testing.T, f fleet) {
		p := openTab(t, light, f.url+"#/lock/"+url.QueryEscape(f.backend)+"/deploy")
		p.await("a free lock", `document.querySelector(".answer")?.textContent === "The lock is free."`)
		ann, _ := holds(t, f.backend, "ann", "deploy")
		p.await("the holder", `document.querySelector("[aria-label=Holders] tbody")?.textContent.includes("ann@")`)
		if f.name == "file" { // whose waiters only their own processes know
			p.await("that it does not know", `document.body.innerText.includes("does not know who waits")`)
			ann.end(t)
			p.await("a free lock", `document.querySelector(".answer").textContent === "The lock is free."`)
			return
		}
		for i, user := range []string{"bob", "eve", "joe"} {
			claims(t, f.backend, user, "deploy")
			p.await(user+" waits", fmt.Sprintf(`%s === %q`, waitersShown, strings.Join([]string{"bob", "eve", "joe"}[:i+1], ",")))
		}
		p.await("a waiting time", `/^\d+ s$/.test(document.querySelector("[aria-label=Queue] tbody tr").children[4].textContent)`)
		ann.end(t)
		if f.name == "redlock" { // whose waiters compete
			p.await("that there is no order", `document.body.innerText.includes("this backend serves in no fixed order")`)
			p.await("the next holder", `/(bob|eve|joe)@/.test(document.querySelector(".answer").textContent) && `+waitersShown+`.split(",").length === 2`)
		} else {
			p.await("the next holder", `document.querySelector(".answer").textContent.includes("bob@") && `+waitersShown+` === "eve,joe"`)
		}
		p.await("both in the picture", `document.querySelectorAll("svg.timeline rect").length === 2 && document.querySelectorAll("svg.timeline rect.current").length === 1`)
		p.await("a distribution", `document.querySelectorAll(".distribution .bars").length === 2`)
	})
}

// Several backends are on one page, and one that is not reachable does not hide the others.
func TestSeveralBackends(t *testing.T) {
	redis, etcd := testenv.Redis(t), testenv.Etcd(t)
	a, b := "redis://"+redis.Addr(), "etcd://"+etcd.Addr()
	page := serve(t, nil, "--backend", a, "--backend", b, "--backend", "redis://127.0.0.1:1")
	holds(t, a, "ann", "on-redis")
	holds(t, b, "bob", "on-etcd")
	p := openTab(t, light, page)
	p.await("both locks", `JSON.stringify(`+keys+`.sort()) === '["on-etcd","on-redis"]'`)
	p.await("three sources", `document.querySelectorAll("#sources li").length === 3`)
	p.await("the one that is down", `document.querySelector("#sources li.down")?.innerText.includes("not readable")`)
	p.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`(() => { const e = document.getElementById("source"); e.value = %q; e.dispatchEvent(new Event("change")) })()`, b)))
	p.awaitKeys("on-etcd")
	p.click("#sources a")
	p.await("findings with cures", `document.querySelectorAll("#health-list section").length === 3 && document.querySelector("#health-list .fix")?.textContent.startsWith("Cure: ")`)
}

// Owners that wait for each other are pointed out, with the way to their locks.
func TestDeadlockHint(t *testing.T) {
	s := inMemory(t)
	ann, bob := dlock.Info{Owner: "ann", Host: "h", PID: 1}, dlock.Info{Owner: "bob", Host: "h", PID: 2}
	c := s.client()
	for key, info := range map[string]dlock.Info{"left": ann, "right": bob} {
		if _, err := c.TryAcquire(t.Context(), key, dlock.WithInfo(info)); err != nil {
			t.Fatal(err)
		}
	}
	p := openTab(t, light, s.server.URL)
	p.await("both locks", keys+`.length === 2`)
	if !eval[bool](p, `document.getElementById("rings").hidden`) {
		t.Error("a hint without a reason")
	}
	s.waits("right", ann, 1)
	s.waits("left", bob, 1)
	p.await("the ring", `!document.getElementById("rings").hidden && document.getElementById("rings").innerText.includes("ann@h pid 1 waits for right, held by bob@h pid 2")`)
	p.click("#rings a")
	p.await("the lock", `document.querySelector("#view-lock h2")?.textContent === "right"`)
	p.await("a short hint above it", `document.getElementById("rings").innerText.trim().split(/\n+/).join() === "Possible deadlock,Show the processes"`)
	p.click("#rings .more a")
	p.await("the ring in the list", `location.hash === "#/" && document.getElementById("rings").innerText.includes("held by bob@h pid 2")`)
}

// The page says that its server is gone, and goes on when it is back.
func TestConnectionLost(t *testing.T) {
	s := inMemory(t)
	p := openTab(t, light, s.server.URL)
	p.expect("ERR_")
	p.await("an empty list", noLocks)
	p.do(chromedp.Evaluate[chromedp.Void](`window.lost = false; new MutationObserver(() => { window.lost ||= document.body.classList.contains("stale") }).observe(document.body, { attributes: true })`))
	s.server.CloseClientConnections()
	p.await("the connection is lost", `window.lost`)
	p.await("the connection is back", `document.getElementById("connection").textContent === "" && !document.body.classList.contains("stale")`)
	if _, err := s.client().TryAcquire(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	p.awaitKeys("k")
	_ = s.page.Close()
	p.expect("503")
	p.await("that it is closed", `document.getElementById("connection").textContent !== "" && document.body.classList.contains("stale")`)
}

// press presses a key that the page takes for itself. chromedp.KeyEvent would insert its character
// even so.
func (p *tab) press(key, code string) {
	p.t.Helper()
	for _, kind := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeKeyDown, input.DispatchKeyEventTypeKeyUp} {
		e := input.DispatchKeyEventParams{Type: kind, Key: key, Code: code}
		if kind == input.DispatchKeyEventTypeKeyDown {
			e.Text = key
		}
		must(chromedp.Call(p.ctx, input.DispatchKeyEvent, e))(p.t)
	}
}

// Everything can be done with the keyboard.
func TestKeyboardOnly(t *testing.T) {
	s := inMemory(t)
	c := s.client()
	guards := make([]*dlock.Guard, 60)
	for i := range guards {
		info := dlock.Info{Owner: fmt.Sprint("owner-", i)}
		g, err := c.TryAcquire(t.Context(), fmt.Sprintf("key-%02d", i), dlock.WithInfo(info), dlock.WithTTL(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		guards[i] = g
		s.opener.Advance(time.Second) // the list begins with the longest-held
	}
	p := openTab(t, light, s.server.URL)
	p.await("the locks", keys+`[0] === "key-00"`)
	const focused = `document.activeElement.textContent`
	p.press("/", "Slash")
	p.await("the search", `document.activeElement.id === "search" && document.activeElement.value === ""`)
	p.do(chromedp.KeyEvent("owner-4"))
	p.await("ten and one", `document.getElementById("count").textContent.startsWith("11 of 60")`)
	p.do(chromedp.KeyEvent(kb.Backspace + "5"))
	p.awaitKeys("key-05", "key-50", "key-51", "key-52", "key-53", "key-54", "key-55", "key-56", "key-57", "key-58", "key-59")
	for range 20 { // past the other filters and the heads of the columns
		if eval[bool](p, `document.activeElement.closest("#rows") !== null`) {
			break
		}
		p.do(chromedp.KeyEvent(kb.Tab))
	}
	p.await("the first row", focused+` === "key-05"`)
	p.do(chromedp.KeyEvent(kb.ArrowDown + kb.ArrowDown))
	p.await("the third row", focused+` === "key-51"`)
	p.do(chromedp.KeyEvent(kb.End))
	p.await("the last row", focused+` === "key-59"`)
	p.do(chromedp.KeyEvent(kb.ArrowUp))
	p.await("the row before", focused+` === "key-58"`)
	if outline := eval[string](p, `getComputedStyle(document.activeElement).outlineStyle`); outline == "none" {
		t.Error("the focus cannot be seen")
	}
	p.do(chromedp.KeyEvent(kb.Enter))
	p.await("the lock", `location.hash === "#/lock/memory/key-58" && document.querySelector("#view-lock h2")?.textContent === "key-58" && document.activeElement.tagName === "H2"`)
	p.do(chromedp.KeyEvent(kb.Escape))
	p.await("the list again", `location.hash === "#/" && `+keys+`.length === 11`)
	p.await("the row that was left", focused+` === "key-58"`)
	if err := guards[58].Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.await("the row in its place", keys+`.length === 10 && `+focused+` === "key-59"`)
	p.press("/", "Slash")
	p.await("the search again", `document.activeElement.id === "search"`)
	p.do(chromedp.KeyEvent(kb.ArrowDown))
	p.await("a row again", focused+` === "key-59"`)
	p.do(chromedp.KeyEvent(kb.Enter))
	p.await("another lock", `document.querySelector("#view-lock summary") && document.activeElement.tagName === "H2"`) // which gets the focus last
	p.do(chromedp.Evaluate[chromedp.Void](`(() => { window.picture = document.querySelector("svg.timeline"); document.querySelector("#view-lock summary").focus() })()`))
	p.await("a new picture", `document.querySelector("svg.timeline") !== window.picture`)
	p.await("the focus stays", `document.activeElement.tagName === "SUMMARY"`)
}

// Times count every second by the clock of the browser, between two changes.
func TestTimesCount(t *testing.T) {
	s := inMemory(t)
	p := openTab(t, light, s.server.URL)
	p.await("an empty list", noLocks)
	g, err := s.client().TryAcquire(t.Context(), "k", dlock.WithTTL(time.Hour), dlock.WithoutRenewal())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Unlock(context.Background()) }()
	p.awaitKeys("k")
	held := `parseInt(document.querySelector("#rows .c-held").textContent)`
	before := eval[int](p, held)
	p.await("two more seconds", fmt.Sprintf(`%s >= %d`, held, before+2))
	p.await("a lease that drains", `/^5\dm \d+s$/.test(document.querySelector("#rows .left").textContent) && parseFloat(document.querySelector("#rows .fill").style.width) < 100`)
}
