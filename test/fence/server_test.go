package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
)

// A startup that takes longer than this is stuck: it takes a second or two on an idle machine.
const startTimeout = 3 * time.Minute

// unprivileged is a user without rights: PostgreSQL refuses to run as root.
const unprivileged = 65534

// uid is that of the servers, or 0 where this process is not root and cannot choose.
func uid() uint32 {
	if os.Geteuid() == 0 {
		return unprivileged
	}
	return 0
}

// findServer returns the path of a program. Debian, Fedora and Alpine keep servers outside of PATH.
func findServer(t *testing.T, advice string, patterns ...string) string {
	t.Helper()
	for _, pattern := range patterns {
		if path, err := exec.LookPath(pattern); err == nil {
			return path
		}
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) > 0 {
			return slices.Max(found)
		}
	}
	testenv.Missing(t, advice)
	return ""
}

// serverDir returns a directory that the server's user can use, which those of t.TempDir are not.
// Its name is short, because the path of a Unix socket is.
func serverDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "db-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if uid() != 0 {
		err = os.Chown(dir, unprivileged, unprivileged)
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// runToEnd runs a program that prepares the data of a server.
func runToEnd(t *testing.T, dir, path string, args ...string) {
	t.Helper()
	p, err := servers.StartProcess(servers.ProcessOptions{Path: path, Args: args, Dir: dir, UID: uid(), Abrupt: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	select {
	case <-p.Done():
	case <-time.After(startTimeout):
		t.Fatalf("%s takes too long:\n%s", path, p.Log())
	}
	if code := p.ExitCode(); code != 0 {
		t.Fatalf("%s: exit status %d\n%s", path, code, p.Log())
	}
}

// startServer starts a server that ends with the test, and returns when it answers.
func startServer(t *testing.T, dir, path, driver, source string, args ...string) {
	t.Helper()
	p, err := servers.StartProcess(servers.ProcessOptions{Path: path, Args: args, Dir: dir, UID: uid(), StopWithin: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	db := open(t, driver, source)
	testenv.Eventually(t, startTimeout, path+" answers", func() bool {
		if !p.Running() {
			t.Fatalf("%s ended:\n%s", path, p.Log())
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return db.PingContext(ctx) == nil
	})
}

// open returns a database that is closed when the test ends.
func open(t *testing.T, driver, source string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, source)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxIdleConns(20)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
