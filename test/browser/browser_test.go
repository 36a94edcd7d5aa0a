package browser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/remote"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
)

// limit is how long a test waits for the page. It is long, because a busy machine is slow.
const limit = time.Minute

// A browser is one Chromium for all tests. Each of them has a tab with a session of its own.
type browser struct {
	dir   string
	child *servers.Child
	ctx   context.Context
	stop  []context.CancelFunc
}

var shared struct {
	sync.Once
	*browser
	err error
}

// theBrowser returns the browser of all tests, and starts it the first time.
func theBrowser(t *testing.T) *browser {
	t.Helper()
	path := testenv.Chromium(t)
	shared.Do(func() { shared.browser, shared.err = startBrowser(path) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.browser
}

// startBrowser starts Chromium with a folder of its own for everything that it writes.
func startBrowser(path string) (*browser, error) {
	dir, err := os.MkdirTemp("", "dlock-browser-")
	if err != nil {
		return nil, err
	}
	b := &browser{dir: dir}
	cmd := exec.Command(path, "--headless=new", "--remote-debugging-port=0", "--user-data-dir="+filepath.Join(dir, "profile"),
		"--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--no-default-browser-check",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
		"--disable-features=Translate,MediaRouter,OptimizationHints", "--mute-audio", "--hide-scrollbars",
		"--force-color-profile=srgb", "--disable-background-timer-throttling", "--disable-renderer-backgrounding",
		"--disable-backgrounding-occluded-windows", "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+dir, "TMPDIR="+dir, "XDG_CONFIG_HOME="+dir, "XDG_CACHE_HOME="+dir, "XDG_RUNTIME_DIR="+dir)
	if b.child, err = servers.StartChild(cmd); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	url, err := b.address()
	if err == nil {
		err = b.connect(url)
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// address waits until the browser has written where its driver connects.
func (b *browser) address() (string, error) {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		text, err := os.ReadFile(filepath.Join(b.dir, "profile", "DevToolsActivePort"))
		port, path, ok := strings.Cut(strings.TrimSpace(string(text)), "\n")
		if err == nil && ok {
			return "ws://127.0.0.1:" + port + path, nil
		}
	}
	return "", fmt.Errorf("Chromium was not ready within %v", limit)
}

func (b *browser) connect(url string) error {
	ctx, stop := remote.NewAllocator(context.Background(), url, remote.NoModifyURL)
	b.stop = append(b.stop, stop)
	b.ctx, stop = chromedp.NewContext(ctx)
	b.stop = append(b.stop, stop)
	return chromedp.Do(b.ctx)
}

func (b *browser) close() error {
	for i := len(b.stop) - 1; i >= 0; i-- {
		b.stop[i]()
	}
	b.child.Kill()
	return os.RemoveAll(b.dir)
}

// A tab shows one page. It fails the test if the page writes an error to its console or requests
// anything from another host.
type tab struct {
	t    *testing.T
	ctx  context.Context
	work sync.WaitGroup

	mu       sync.Mutex
	errs     []string
	hosts    map[string]bool
	expected []string // parts of errors that a test provokes
}

// A screen is what a user looks at.
type screen struct {
	width, height int64
	scheme        string
	phone         bool
}

var (
	light = screen{1280, 800, "light", false}
	dark  = screen{1280, 800, "dark", false}
	phone = screen{390, 844, "light", true}
)

// openTab opens the page at url. Its host is the only one that may be asked.
func openTab(t *testing.T, s screen, url string) *tab {
	t.Helper()
	b := theBrowser(t)
	ctx, cancel := chromedp.NewContext(b.ctx, chromedp.WithNewBrowserContext())
	p := &tab{t: t, ctx: ctx, hosts: map[string]bool{}}
	t.Cleanup(func() {
		p.check(url)
		cancel()
		p.work.Wait()
	})
	if err := chromedp.Do(ctx); err != nil { // opens the tab, which lasts as long as this context
		t.Fatal(err)
	}
	p.listen()
	must(chromedp.Call(ctx, network.Enable, network.EnableParams{}))(t)
	must(chromedp.Call(ctx, page.BringToFront, cdp.Empty{}))(t) // a tab in the background draws nothing
	must(chromedp.Call(ctx, runtime.Enable, cdp.Empty{}))(t)
	must(chromedp.Call(ctx, log.Enable, cdp.Empty{}))(t)
	must(chromedp.Call(ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: s.width, Height: s.height, DeviceScaleFactor: 1, Mobile: s.phone,
	}))(t)
	must(chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: s.scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}}))(t)
	p.do(chromedp.Navigate(url))
	return p
}

func must[T any](_ T, err error) func(testing.TB) {
	return func(t testing.TB) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// listen keeps what the browser says about the page.
func (p *tab) listen() {
	hear(p, runtime.ExceptionThrown, func(e runtime.EventExceptionThrown) {
		p.errs = append(p.errs, fmt.Sprintf("%s %+v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception))
	})
	hear(p, runtime.ConsoleAPICalled, func(e runtime.EventConsoleAPICalled) {
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			p.errs = append(p.errs, fmt.Sprintf("console: %s", e.Args[0].Value))
		}
	})
	hear(p, log.EntryAdded, func(e log.EventEntryAdded) {
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			p.errs = append(p.errs, e.Entry.Text+" "+e.Entry.URL)
		}
	})
	hear(p, network.RequestWillBeSent, func(e network.EventRequestWillBeSent) { p.hosts[origin(e.Request.URL)] = true })
}

// hear calls do with each event, until the tab is closed.
func hear[E any](p *tab, event cdp.Event[E], do func(E)) {
	events := chromedp.Events(p.ctx, event)
	p.work.Go(func() {
		for e, err := range events {
			if err != nil {
				return
			}
			p.mu.Lock()
			do(e)
			p.mu.Unlock()
		}
	})
}

func origin(url string) string {
	scheme, rest, _ := strings.Cut(url, "://")
	host, _, _ := strings.Cut(rest, "/")
	return scheme + "://" + host
}

// expect allows an error that the test provokes, by a part of its text.
func (p *tab) expect(part string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = append(p.expected, part)
}

// check is at the end of every test.
func (p *tab) check(url string) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.errs {
		if !containsAny(e, p.expected) {
			p.t.Errorf("the console says: %s", e)
		}
	}
	for host := range p.hosts {
		if host != origin(url) && !strings.HasPrefix(host, "data:") {
			p.t.Errorf("the page asked %s", host)
		}
	}
}

func containsAny(text string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(text, p) {
			return true
		}
	}
	return false
}

// do takes actions in the page.
func (p *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, limit)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.t.Fatalf("%v\nthe page shows:\n%s", err, p.text())
	}
}

// text returns what the page shows.
func (p *tab) text() string {
	ctx, cancel := context.WithTimeout(p.ctx, 10*time.Second)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText`))
	if err != nil {
		return err.Error()
	}
	return text
}

// eval returns the value of an expression in the page.
func eval[T any](p *tab, expression string) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, limit)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// await waits until an expression in the page is true. It asks from here, because the policy of
// the page forbids the driver to compile code in it.
func (p *tab) await(what, expression string) {
	p.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		if eval[bool](p, "Boolean("+expression+")") {
			return
		}
		if time.Now().After(end) {
			p.t.Fatalf("not within %v: %s\nthe page shows:\n%s", limit, what, p.text())
		}
	}
}

// click clicks on the middle of an element. It looks the element up anew each time, because the
// page replaces elements when locks change.
func (p *tab) click(selector string) {
	p.t.Helper()
	p.await(selector+" can be clicked", fmt.Sprintf(`document.querySelector(%q) && !document.querySelector(%[1]q).disabled`, selector))
	at := eval[[]float64](p, fmt.Sprintf(`(() => {
		const e = document.querySelector(%q);
		e.scrollIntoView({ block: "center" });
		const r = e.getBoundingClientRect();
		return [r.x + r.width / 2, r.y + r.height / 2];
	})()`, selector))
	p.do(chromedp.MouseClickXY(at[0], at[1]))
}

// keys are the locks of the list on the screen, from top to bottom.
const keys = `[...document.querySelectorAll("#rows .row")].sort((a, b) => a.ariaRowIndex - b.ariaRowIndex).map((r) => r.querySelector("a").textContent)`

func (p *tab) awaitKeys(want ...string) {
	p.t.Helper()
	p.await(fmt.Sprintf("the list is %q", want), fmt.Sprintf(`JSON.stringify(%s) === JSON.stringify(%s)`, keys, quoted(want)))
}

func quoted(words []string) string {
	all := make([]string, len(words))
	for i, w := range words {
		all[i] = fmt.Sprintf("%q", w)
	}
	return "[" + strings.Join(all, ",") + "]"
}
