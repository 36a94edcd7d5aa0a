//go:build unix

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// asHolder in the environment makes the test binary run as a holder that can be stopped.
const asHolder = "EXAMPLE_AS_HOLDER"

func TestMain(m *testing.M) {
	if os.Getenv(asHolder) != "" {
		if err := hold(context.Background(), os.Args[1], os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	redis.SetLogger(silent{}) // go-redis would log the faults that the tests cause
	goleak.VerifyTestMain(m)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

const ttl = time.Second

// hold takes the lock, waits for a line of input, and withdraws 70.
func hold(ctx context.Context, addr, file string) error {
	client := redis.NewClient(&redis.Options{Addr: addr})
	locks, err := dlock.New(&dlock.Config{}, dlock.WithBackend(redislock.New(client)))
	if err != nil {
		return err
	}
	guard, err := locks.Acquire(ctx, "account:1", dlock.WithTTL(ttl))
	if err != nil {
		return err
	}
	db, err := open(ctx, file)
	if err != nil {
		return err
	}
	fmt.Println(guard.Token())
	if _, err := fmt.Scanln(); err != nil {
		return err
	}
	fmt.Println(outcome(withdraw(ctx, db, guard.Token(), 70)))
	return errors.Join(db.Close(), locks.Close(), client.Close())
}

func TestStory(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := run(t.Context(), &out, testenv.Redis(t).Addr(), filepath.Join(t.TempDir(), "a.db")); err != nil {
		t.Error(err)
	}
	want := "first:  has the lock, and freezes\n" +
		"second: has the lock, with a greater token: true\n" +
		"second: withdraws 10: done\n" +
		"first:  withdraws 70: refused: a holder with a greater token has written\n" +
		"the balance is 90\n"
	if out.String() != want {
		t.Errorf("output is\n%s", out.String())
	}
}

// The first holder is a process that is stopped for longer than its lease.
func TestStoppedProcess(t *testing.T) {
	t.Parallel()
	server, file := testenv.Redis(t), filepath.Join(t.TempDir(), "a.db")
	first := startHolder(t, server.Addr(), file)
	token := first.read(t)
	first.signal(t, syscall.SIGSTOP)

	client := server.Client()
	defer client.Close()
	locks, err := dlock.New(&dlock.Config{}, dlock.WithBackend(redislock.New(client)))
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	second, err := locks.Acquire(t.Context(), "account:1", dlock.WithWait(ttl+time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	db, err := open(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := withdraw(t.Context(), db, second.Token(), 10); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(first.in, "\n"); err != nil {
		t.Fatal(err)
	}
	first.signal(t, syscall.SIGCONT)
	if got := first.read(t); got != errFenced.Error() {
		t.Errorf("the late write, with token %s after %d: %s", token, second.Token(), got)
	}
	if left, err := balance(t.Context(), db); err != nil || left != 90 {
		t.Errorf("the balance is %d, %v", left, err)
	}
	if err := withdraw(t.Context(), db, second.Token(), 10); err != nil {
		t.Errorf("the second one may write as often as it likes: %v", err)
	}
	if err := second.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNoServer(t *testing.T) {
	t.Parallel()
	if err := run(t.Context(), io.Discard, "localhost:1", filepath.Join(t.TempDir(), "a.db")); err == nil || !strings.Contains(err.Error(), "redis-server") {
		t.Errorf("error is %v", err)
	}
}

// A holder is a process that runs hold.
type holder struct {
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func startHolder(t *testing.T, args ...string) *holder {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env, cmd.Stderr = append(os.Environ(), asHolder+"=1"), os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &holder{cmd, in, bufio.NewReader(out)}
}

func (h *holder) read(t *testing.T) string {
	t.Helper()
	line, err := h.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func (h *holder) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := h.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}
