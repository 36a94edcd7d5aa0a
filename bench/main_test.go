package main

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/bench/peer"
	"github.com/ceyewan/genesis/bench/report"
	"github.com/ceyewan/genesis/bench/workload"
	"github.com/ceyewan/genesis/internal/testenv"
)

func TestMain(m *testing.M) {
	workload.ServeIfWorker()
	goleak.VerifyTestMain(m)
}

// Every peer locks and unlocks, and a second client of it is excluded meanwhile, unless
// it is a floor without mutual exclusion.
func TestPeers(t *testing.T) {
	env := realServers(t)
	for _, p := range peer.All() {
		info := p.Info()
		t.Run(info.Name, func(t *testing.T) {
			t.Parallel()
			a, b := open(t, p, env), open(t, p, env)
			key := "smoke:" + info.Name
			held := lock(t, a, key)
			if info.Name != "ping" && info.Name != "tcp-echo" {
				excluded(t, b, key)
			}
			if err := held.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := lock(t, b, key).Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func realServers(t *testing.T) *peer.Env {
	t.Helper()
	etcd := testenv.Etcd(t)
	env := &peer.Env{Redis: testenv.Redis(t).Addr(), Etcd: etcd.Addr(), Dir: filepath.Join(t.TempDir(), "locks")}
	for range 5 {
		env.Redlock = append(env.Redlock, testenv.Redis(t).Addr())
	}
	w, err := workload.StartWorker()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	if err := w.Call(t.Context(), 0, "echo", struct{}{}, &env.Echo); err != nil {
		t.Fatal(err)
	}
	return env
}

func open(t *testing.T, p peer.Peer, env *peer.Env) peer.Client {
	t.Helper()
	c, err := p.Open(t.Context(), env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func lock(t *testing.T, c peer.Client, key string) peer.Lock {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := c.Lock(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func excluded(t *testing.T, c peer.Client, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if l, err := c.Lock(ctx, key); err == nil {
		t.Error("locked while another client has it", l.Unlock(t.Context()))
	} else if !errors.Is(err, peer.ErrGaveUp) && ctx.Err() == nil {
		t.Error(err)
	}
}

// A tiny run of everything ends, and its three files are what they should be.
func TestTinyRun(t *testing.T) {
	testenv.Redis(t) // skips or fails where there are no servers
	testenv.Etcd(t)
	t.Setenv("GORACE", "atexit_sleep_ms=0") // workers need not linger
	dir := t.TempDir()
	err := run(t.Context(), []string{
		"-plan", "tiny", "-out", dir, "-peers", "dlock-redis,dlock-redis-batch,blpop-token,raw-goredis",
	}, testLog{t})
	if err != nil {
		t.Fatal(err)
	}
	checkSummary(t, dir)
	markdown := contents(t, dir, report.MarkdownFile)
	for _, w := range workload.All() {
		if !strings.Contains(strings.ToLower(markdown), "## "+w.Title) {
			t.Errorf("the Markdown has no section %q", w.Title)
		}
	}
	checkPage(t, contents(t, dir, report.PageFile))
}

func checkSummary(t *testing.T, dir string) {
	t.Helper()
	var summary struct {
		Figures []struct {
			Name, Goal string
			Value      *float64
			OK         *bool
		}
		Troubles []report.Trouble
		Sections []report.Section
	}
	if err := json.Unmarshal([]byte(contents(t, dir, report.SummaryFile)), &summary); err != nil {
		t.Fatal(err)
	}
	if len(summary.Figures) == 0 || len(summary.Sections) <= len(workload.All()) {
		t.Errorf("%d figures, %d sections", len(summary.Figures), len(summary.Sections))
	}
	for _, f := range summary.Figures {
		if f.Name == "" || f.Goal == "" || f.Value == nil || f.OK == nil {
			t.Errorf("%+v", f)
		}
	}
	for _, s := range summary.Sections {
		if len(s.Cases) == 0 {
			t.Errorf("%s has no cases", s.Name)
		}
	}
	for _, trouble := range summary.Troubles {
		if trouble.Overlaps > 0 {
			t.Errorf("%+v", trouble)
		}
	}
}

// checkPage: it is well-formed, has charts, and loads nothing.
func checkPage(t *testing.T, page string) {
	t.Helper()
	decoder := xml.NewDecoder(strings.NewReader(page))
	decoder.Entity = xml.HTMLEntity
	charts := 0
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		element, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		if element.Name.Local == "svg" {
			charts++
		}
		if element.Name.Local == "script" || element.Name.Local == "link" || element.Name.Local == "img" {
			t.Errorf("it loads something: %v", element)
		}
	}
	if charts < len(workload.All()) {
		t.Errorf("%d charts", charts)
	}
}

func contents(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// testLog writes progress to the log of a test.
type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

func TestBadArguments(t *testing.T) {
	for _, args := range [][]string{{"-plan", "huge"}, {"-peers", "nobody"}, {"-workloads", "none"}, {"-rounds", "-1"}, {"more"}, {"-nothing"}} {
		if err := run(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%v are accepted", args)
		}
	}
}
