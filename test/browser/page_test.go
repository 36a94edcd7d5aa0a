package browser

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/dashboard"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

var built struct {
	sync.Once
	dir string
	err error
}

// program returns the path of the command dlock, built as a user would build it.
func program(t testing.TB) string {
	t.Helper()
	built.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "dlock-cmd-"); built.err != nil {
			return
		}
		out, err := exec.Command("go", "build", "-C", root(t), "-ldflags=-w", "-o", filepath.Join(built.dir, "dlock"), "./cmd/dlock").CombinedOutput()
		if err != nil {
			built.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "dlock")
}

// files is the URL of a fresh directory of locks.
func files(t testing.TB) string { return "file://" + filepath.Join(t.TempDir(), "locks") }

// serve starts dlock ui, and returns the address of its page.
func serve(t testing.TB, env []string, args ...string) string {
	t.Helper()
	_, url := startPage(t, env, args...)
	return url
}

// startPage is serve that also returns the process.
func startPage(t testing.TB, env []string, args ...string) (*servers.Child, string) {
	t.Helper()
	cmd := exec.Command(program(t), append([]string{"ui", "--json", "--listen", "127.0.0.1:0"}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = t.Output()
	child := testenv.Child(t, cmd)
	var said struct{ URL string }
	if err := json.NewDecoder(out).Decode(&said); err != nil {
		t.Fatal(err)
	}
	return child, said.URL
}

// A claimant is another process that holds a lock, or waits for it, until it is told to end.
type claimant struct {
	child *servers.Child
	in    io.Closer
	out   *bufio.Reader
}

// claims starts a claimant under the name of a user.
func claims(t testing.TB, backend, user, key string, args ...string) *claimant {
	t.Helper()
	args = append(append([]string{"run", "--quiet"}, args...), key, "--", "sh", "-c", "echo $DLOCK_TOKEN; exec cat")
	cmd := exec.Command(program(t), args...)
	cmd.Env = append(os.Environ(), "DLOCK_BACKEND="+backend, "USER="+user)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c := &claimant{in: in, out: bufio.NewReader(out)}
	c.child = testenv.Child(t, cmd)
	t.Cleanup(func() { _ = in.Close() })
	return c
}

// token waits until the claimant holds the lock.
func (c *claimant) token(t testing.TB) int64 {
	t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// end releases the lock, and waits for the end of the process.
func (c *claimant) end(t testing.TB) {
	t.Helper()
	_ = c.in.Close()
	_, _ = io.Copy(io.Discard, c.out)
	if err := c.child.Wait(); err != nil {
		t.Error(err)
	}
}

func holds(t testing.TB, backend, user, key string, args ...string) (*claimant, int64) {
	t.Helper()
	c := claims(t, backend, user, key, args...)
	return c, c.token(t)
}

// A store is the memory backend with a page on it.
type store struct {
	t       testing.TB
	opener  *memlock.Store
	holder  *dlock.Client // whose renewals and losses the page shows
	page    *dashboard.Handler
	handler *switchable
	server  *httptest.Server

	deploy    *dlock.Guard         // of nightShift
	deployers []context.CancelFunc // in the order of the queue
}

// A switchable handler lets a test start the page again under the same address.
type switchable struct {
	atomic.Pointer[dashboard.Handler]
}

func (s *switchable) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.Load().ServeHTTP(w, r) }

// inMemory serves the page of a store within this process.
func inMemory(t testing.TB, opts ...dashboard.Option) *store {
	t.Helper()
	s := &store{t: t, opener: memlock.New()}
	s.holder = s.client()
	page, err := dashboard.New([]dashboard.Source{{Name: "memory", Client: s.client(), Holders: []*dlock.Client{s.holder}}}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	s.page, s.handler = page, &switchable{}
	s.handler.Store(page)
	s.server = httptest.NewServer(s.handler)
	t.Cleanup(func() {
		_ = page.Close()
		s.server.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return s
}

// client is a user of the store.
func (s *store) client() *dlock.Client {
	s.t.Helper()
	c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(s.opener), dlock.WithAdmin())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}
