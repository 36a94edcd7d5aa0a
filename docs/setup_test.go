//go:build unix

package docs_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/docscan"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
	"github.com/ceyewan/genesis/pkg/dlock/once"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// The steps of the page lead to a program that locks. The server is the test's own, and the module is
// this one and not the published one.
func TestGettingStarted(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	const page = "docs/getting-started.md"
	var script strings.Builder
	for _, b := range blocksOf(t, "sh") {
		if b.Page == page {
			script.WriteString(b.Text)
		}
	}
	var main string
	for _, b := range blocksOf(t, "go") {
		if b.Page == page && strings.HasPrefix(b.Text, "package main") {
			main = b.Text
		}
	}
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(main), 0o600); err != nil {
		t.Fatal(err)
	}
	steps := script.String()
	const fetched = "# everything is there\n"
	for _, step := range [][2]string{
		{"redis-server &\n", "export GOFLAGS='-mod=mod -ldflags=-w' GOWORK=off REDIS=" + s.redis + "\n"},
		{"go get " + module + "\n", "go mod edit -require=" + module + "@v0.0.0 -replace=" + module + "=\"$root\"\n" +
			"cp \"$root/go.sum\" . && cp " + file + " .\n"},
		{"go mod tidy && ", "go list -deps . >listed\n" + fetched}, // without what only the tests of other modules need
	} {
		if !strings.Contains(steps, step[0]) {
			t.Errorf("%s has no step %q any more", page, step[0])
		}
		steps = strings.Replace(steps, step[0], step[1], 1)
	}
	fetch, _, _ := strings.Cut(steps, fetched)
	s.fetch(t, fetch)
	cmd := s.command(t, strings.Replace(steps, "export ", "export GOPROXY=off ", 1))
	var logged strings.Builder
	cmd.Stderr = &logged
	out, err := cmd.Output()
	if err != nil || !strings.HasPrefix(string(out), "shipping order 123, with fencing token ") {
		t.Errorf("%v, prints %q\n%s\n%s", err, out, steps, &logged)
	}
}

// fetch runs the steps that may need modules from the network. A proxy that does not answer ends the test.
func (s *shell) fetch(t *testing.T, steps string) {
	t.Helper()
	const most = 5 * time.Minute
	cmd := s.command(t, steps)
	var logged strings.Builder
	cmd.Stdout, cmd.Stderr = &logged, &logged
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := time.AfterFunc(most, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer end.Stop()
	began := time.Now()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("the modules are not there after %v, at most %v: %v\n%s\n%s", time.Since(began), most, err, steps, &logged)
	}
}

// The commands of the page find the processes that have not moved: holders, and waiters for what others hold. They do not find
// records of jobs.
func TestCommandsOfAMove(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	blocks := slices.DeleteFunc(blocksOf(t, "sh"), func(b docscan.Block) bool {
		return b.Page != "docs/migration.md" || !strings.Contains(b.Text, ".both")
	})
	if len(blocks) != 1 {
		t.Fatalf("%d blocks ask for processes that have not moved", len(blocks))
	}
	needTools(t, blocks[0].Text)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	open := func(o driver.Opener) *dlock.Client {
		t.Helper()
		c, err := dlock.New(&dlock.Config{Prefix: "move:"}, dlock.WithBackend(o), dlock.WithAdmin())
		check(err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	conn := redis.NewClient(&redis.Options{Addr: s.redis, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = conn.Close() })
	old := open(redislock.New(conn))
	both, err := dlock.Both(old, open(memlock.New()))
	check(err)
	_, err = old.Acquire(t.Context(), "holds")
	check(err)
	for _, key := range []string{"moved", "waits"} {
		_, err = both.Acquire(t.Context(), key)
		check(err)
	}
	wait, stop := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	waiting.Go(func() { _, _ = old.Acquire(wait, "waits") })
	t.Cleanup(func() {
		stop()
		waiting.Wait()
	})
	job, err := once.New(old, "job", time.Hour, once.WithRetry()) // so that its key is free after a failure
	check(err)
	failed := errors.New("failed")
	if _, err := job.Do(t.Context(), func(context.Context) error { return failed }); !errors.Is(err, failed) {
		t.Fatal(err)
	}
	admin, err := old.Admin()
	check(err)
	testenv.Eventually(t, time.Minute, "the waiter is queued", func() bool {
		claims, err := admin.Inspect(t.Context(), "waits")
		return err == nil && len(claims) == 2
	})
	cmd := s.command(t, blocks[0].Text)
	cmd.Env = append(cmd.Env, "DLOCK_BACKEND=redis://"+s.redis+"?prefix=move:")
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "holds\nwaits\n" {
		t.Errorf("%v, they print %q", err, out)
	}
}

// A user with the rights of the page can lock, and passes the checks of doctor.
func TestRightsOfRedis(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	for _, b := range blocksOf(t, "redis") {
		addrs, scheme, scripts := []string{s.redis}, "redis", "redislock"
		if b.Page == "docs/backends/redlock.md" {
			scheme, scripts = "redlock", "redlock"
			addrs = append(addrs, testenv.Redis(t).Addr(), testenv.Redis(t).Addr())
		}
		mayCall(t, b, scripts)
		for _, addr := range addrs {
			var rule []any
			for _, w := range strings.Fields(b.Text) {
				rule = append(rule, w)
			}
			client := redis.NewClient(&redis.Options{Addr: addr})
			err := client.Do(t.Context(), rule...).Err()
			_ = client.Close()
			if err != nil {
				t.Fatalf("%s: %v", b, err)
			}
		}
		s.allowed(t, b, scheme+"://locks@"+strings.Join(addrs, ",")+"?prefix=p:")
	}
}

var called = regexp.MustCompile(`call\('([A-Z]+)'`)

// mayCall checks that a user may call what the scripts of a backend call: not every script runs here.
func mayCall(t *testing.T, b docscan.Block, backend string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "pkg", "dlock", backend, "lua", "*.lua"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no scripts: %v", backend, err)
	}
	for _, file := range files {
		for _, m := range called.FindAllStringSubmatch(read(t, file), -1) {
			want := "+" + strings.ToLower(m[1])
			if !slices.ContainsFunc(strings.Fields(b.Text), func(w string) bool { return w == want || strings.HasPrefix(w, want+"|") }) {
				t.Errorf("%s does not permit %s, which %s calls", b, m[1], filepath.Base(file))
			}
		}
	}
}

// allowed checks that a user may do everything that doctor tries.
func (s *shell) allowed(t *testing.T, b docscan.Block, backend string) {
	t.Helper()
	cmd := s.command(t, "dlock doctor; dlock bench "+quick)
	cmd.Env = append(cmd.Env, "DLOCK_BACKEND="+backend, "DLOCK_PASSWORD=secret")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "can lock, renew, release, list and inspect") {
		t.Errorf("%s: %v\n%s", b, err, out)
	}
}

// The commands for etcdctl do what their page says: they exclude the command dlock, and give a user
// the rights that it needs.
func TestEtcdctl(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	tool, etcd := testenv.Etcdctl(t), testenv.Etcd(t)
	run := func(line string) {
		t.Helper()
		cmd := s.command(t, `etcdctl() { `+tool+` --endpoints "`+etcd.Endpoint()+`" "$@"; }`+"\n"+line)
		cmd.Env = append(cmd.Env, "DLOCK_BACKEND=etcd://"+etcd.Addr()+"?prefix=p:")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
	values := strings.NewReplacer("<prefix><name>", "p:"+etcdlock.Name("order:1"), "<prefix>", "p:")
	for _, b := range blocksOf(t, "sh") {
		text := values.Replace(b.Text)
		switch {
		case strings.HasPrefix(text, "etcdctl lock "):
			run(text)
		case strings.HasPrefix(text, "etcdctl role grant-permission locks "):
			run("etcdctl role add locks\n" + text + `
				for u in root:root locks:secret; do etcdctl user add $u; done
				etcdctl role add root; etcdctl user grant-role root root; etcdctl user grant-role locks locks
				etcdctl auth enable`)
			s.allowed(t, b, "etcd://locks@"+etcd.Addr()+"?prefix=p:")
		case strings.HasPrefix(text, "etcdctl "):
			t.Errorf("%s: no test runs %s", b, text)
		}
	}
}
