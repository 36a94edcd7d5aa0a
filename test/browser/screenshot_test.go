package browser

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/draw"
	"image/png"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/dashboard"
)

// screenshotsEnv set to 1 makes the test write the pictures of docs/img anew.
const screenshotsEnv = "DLOCK_SCREENSHOTS"

// maxPicture is how large a picture of the documentation may be.
const maxPicture = 120 << 10

// The pictures of docs/dashboard.md: a store with a culprit, as an operator finds it at night.
func TestScreenshots(t *testing.T) {
	s := inMemory(t, dashboard.WithEvict(), dashboard.WithInterval(250*time.Millisecond))
	s.nightShift()
	for _, p := range []struct {
		name string
		screen
		hash, ready string
	}{
		{"dashboard-light", light, "#/", `document.querySelectorAll("#rows .row").length > 10 && document.querySelector("#waited a")?.textContent === "billing:close-month"`},
		{"dashboard-dark", dark, "#/", `document.querySelectorAll("#rows .row").length > 10 && document.querySelector("#waited a")?.textContent === "billing:close-month"`},
		{"dashboard-phone", phone, "#/", `document.querySelectorAll("#rows .row").length > 5 && document.querySelector("#waited a")?.textContent === "billing:close-month"`},
		{"dashboard-jobs", light, "#/jobs", `document.querySelectorAll("[aria-label=Jobs] tbody tr").length === 4 && document.querySelectorAll("[aria-label=Leaders] tbody tr").length === 2`},
		{"dashboard-lock", light, "#/lock/memory/deploy%3Aweb", `document.querySelectorAll("svg.timeline rect").length >= 6 && document.querySelectorAll("[aria-label=Queue] tbody tr").length === 3`},
		{"dashboard-health", light, "#/health", `document.querySelectorAll(".lost tbody tr").length === 2 && document.querySelector(".findings")`},
	} {
		t.Run(p.name, func(t *testing.T) {
			if p.name == "dashboard-health" {
				s.losses()
			}
			tab := openTab(t, p.screen, s.server.URL+"/"+p.hash)
			if p.name == "dashboard-lock" {
				tab.await("the lock is there", `document.querySelector("svg.timeline")`)
				s.handOver(tab)
			}
			tab.await("the locks are there", p.ready)
			picture := tab.picture()
			if len(picture) < 10<<10 {
				t.Errorf("%d bytes: there is hardly anything to see", len(picture))
			}
			if os.Getenv(screenshotsEnv) != "1" {
				return
			}
			if picture = smaller(t, picture); len(picture) > maxPicture {
				t.Errorf("%d bytes", len(picture))
			}
			if err := os.WriteFile(filepath.Join(root(t), "docs", "img", p.name+".png"), picture, 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func (p *tab) picture() []byte {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, limit)
	defer cancel()
	picture, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		p.t.Fatal(err)
	}
	return picture
}

// smaller returns a picture with fewer colours.
func smaller(t *testing.T, picture []byte) []byte {
	t.Helper()
	from, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		t.Fatal(err)
	}
	to := image.NewRGBA(from.Bounds())
	draw.Draw(to, to.Bounds(), from, image.Point{}, draw.Src)
	for i, v := range to.Pix {
		to.Pix[i] = byte(min(255, (int(v)+4)/8*8)) // 32 steps
	}
	var small bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, to); err != nil {
		t.Fatal(err)
	}
	return small.Bytes()
}

// nightShift fills the store: one lock is held for hours, and others wait for it.
func (s *store) nightShift() {
	s.t.Helper()
	long := []dlock.LockOption{dlock.WithTTL(20 * time.Hour), dlock.WithoutRenewal()}
	c := s.client()
	take := func(key, owner, host string, pid int, purpose string, opts ...dlock.LockOption) *dlock.Guard {
		s.t.Helper()
		info := dlock.Info{Owner: owner, Host: host, PID: pid, Purpose: purpose}
		g, err := c.TryAcquire(s.t.Context(), key, append(append([]dlock.LockOption{dlock.WithInfo(info)}, long...), opts...)...)
		if err != nil {
			s.t.Fatal(err)
		}
		return g
	}
	ran := func(key, owner, host string, pid int, result string, hold time.Duration) { // as package once stores it
		s.t.Helper()
		take(key, owner, host, pid, "", dlock.WithTTL(hold))
		take(key+":runs", owner, host, pid, result, dlock.WithShared())
	}
	ran("cron:rollup", "metrics", "web-3", 6120, "ok in 41.2s", 29*time.Minute)
	ran("cron:thumbnails", "images", "web-4", 7031, "ok in 3m12s", 9*time.Minute)
	take("billing:close-month", "billing", "db-2", 20117, "close-month --retry")
	s.opener.Advance(94 * time.Minute)
	take("backup:nightly", "pg_dump", "db-1", 11473, "nightly backup")
	ran("cron:rotate-logs", "root", "db-1", 11502, "ok in 2.4s", 6*time.Hour)
	s.opener.Advance(12*time.Minute + 40*time.Second)
	ran("cron:sync-ldap", "sync", "web-2", 5120, "failed in 3s: dial tcp 10.0.4.9:636: connection refused", 59*time.Minute)
	take("cron:thumbnails", "images", "web-1", 7402, "")
	for name, value := range map[string]string{"billing:leader": "10.0.4.12:8443", "scheduler:leader": "10.0.4.31:9000"} {
		leader := take(name, "leaderd", "db-2", 20101, "leader election")
		take(name+":value", "leaderd", "db-2", 20101, fmt.Sprint(leader.Token(), " ", value))
	}
	for i := range 3 {
		take("report:daily", "reports", fmt.Sprintf("web-%d", i+1), 800+i, "render", dlock.WithPermits(5))
	}
	take("search:reindex", "indexer", "search-1", 77, "read", dlock.WithShared())
	take("search:reindex", "indexer", "search-2", 78, "read", dlock.WithShared())
	s.opener.Advance(40 * time.Second)
	s.deploy = take("deploy:web", "ann", "ci-4", 911, "make deploy")
	for i := range 24 {
		take(fmt.Sprintf("order:%d", 48211+37*i), "checkout", fmt.Sprintf("web-%d", i%4+1), 4000+i, "charge", dlock.WithTTL(time.Hour))
	}
	for i, host := range []string{"web-1", "web-3", "web-2", "web-4", "db-1"} {
		s.waits("billing:close-month", dlock.Info{Owner: "invoices", Host: host, PID: 3100 + i, Purpose: "monthly invoices"}, i+1)
	}
	s.deploysNext("bob")
}

// deploysNext adds a waiter to the queue of the lock that handOver shows.
func (s *store) deploysNext(owner string) {
	s.t.Helper()
	n := len(s.deployers)
	info := dlock.Info{Owner: owner, Host: fmt.Sprint("ci-", n%3+1), PID: 1204 + n, Purpose: "make deploy"}
	s.deployers = append(s.deployers, s.waits("deploy:web", info, n+1))
}

// handOver lets deployments follow each other while the page looks on.
func (s *store) handOver(p *tab) {
	s.t.Helper()
	for _, owner := range []string{"eve", "joe", "kim", "lea", "max", "sue", "tom"} {
		s.deploysNext(owner)
	}
	if err := s.deploy.Unlock(context.Background()); err != nil {
		s.t.Fatal(err)
	}
	for i, stop := range s.deployers[:4] {
		p.await("the next deployment", fmt.Sprintf(`document.querySelectorAll("svg.timeline rect").length === %d`, i+2))
		stop()
	}
	p.await("the last deployment", `document.querySelectorAll("svg.timeline rect").length === 6`)
}

// waits starts a waiter, and returns when it is in its place of the queue.
func (s *store) waits(key string, info dlock.Info, place int) context.CancelFunc {
	s.t.Helper()
	c := s.client()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if g, err := c.Acquire(ctx, key, dlock.WithInfo(info)); err == nil {
			<-ctx.Done()
			_ = g.Unlock(context.Background())
		}
	}()
	stop := func() {
		cancel()
		<-done
	}
	s.t.Cleanup(stop)
	admin, err := c.Admin()
	if err != nil {
		s.t.Fatal(err)
	}
	testenv.Eventually(s.t, limit, info.Owner+" waits", func() bool {
		claims, err := admin.Inspect(s.t.Context(), key)
		waiting := 0
		for i := range claims {
			if claims[i].Phase == dlock.PhaseQueued {
				waiting++
			}
		}
		return err == nil && waiting == place
	})
	return stop
}
