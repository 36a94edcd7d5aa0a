//go:build unix

package fence_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/fence"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// asHolder in the environment makes the test binary run as a holder that can be stopped.
const asHolder = "FENCE_TEST_HOLDER"

const stoppedKey, stoppedTTL = "order:1", time.Second

// hold takes the lock, waits for a line of input, and writes one value with the fence and one without.
func hold(ctx context.Context, addr, file string) error {
	client := redis.NewClient(&redis.Options{Addr: addr})
	locks, err := dlock.New(&dlock.Config{}, dlock.WithBackend(redislock.New(client)))
	if err != nil {
		return err
	}
	guard, err := locks.Acquire(ctx, stoppedKey, dlock.WithTTL(stoppedTTL))
	if err != nil {
		return err
	}
	db, err := sql.Open("sqlite", sqliteSource(file))
	if err != nil {
		return err
	}
	fmt.Println("holds")
	_, err = fmt.Scanln()
	if err != nil {
		return err
	}
	d := &database{sql: fence.SQL{Dialect: fence.SQLite}, db: db}
	fmt.Println("stale:", errors.Is(d.write(ctx, guard.Token(), "first"), fence.ErrStale))
	return errors.Join(d.put(ctx, db, "plain", "first"), db.Close(), locks.Close(), client.Close())
}

func (d *database) write(ctx context.Context, token int64, value string) error {
	return d.sql.Do(ctx, d.db, stoppedKey, token, func(tx *sql.Tx) error { return d.put(ctx, tx, "fenced", value) })
}

// A holder is a process that is stopped for longer than its lease. Its late write with the fence is
// refused; the one without replaces what the next holder has written.
func TestStoppedProcess(t *testing.T) {
	t.Parallel()
	server, file := testenv.Redis(t), filepath.Join(t.TempDir(), "a.db")
	d := &database{sql: fence.SQL{Dialect: fence.SQLite}, open: func(t *testing.T, _ string) *sql.DB { return open(t, "sqlite", sqliteSource(file)) }}
	d.prepare(t)

	fromTest, toHolder, err1 := os.Pipe()
	fromHolder, toTest, err2 := os.Pipe()
	must(t, err1, err2)
	defer toHolder.Close()
	defer fromHolder.Close()
	cmd := exec.Command(os.Args[0], server.Addr(), file)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = append(os.Environ(), asHolder+"=1"), fromTest, toTest, os.Stderr
	child := testenv.Child(t, cmd)
	must(t, fromTest.Close(), toTest.Close())
	out := bufio.NewReader(fromHolder)
	expectLine(t, out, "holds")
	must(t, syscall.Kill(child.Pid(), syscall.SIGSTOP))

	client := server.Client()
	defer client.Close()
	locks, err := dlock.New(&dlock.Config{}, dlock.WithBackend(redislock.New(client)))
	must(t, err)
	defer locks.Close()
	second, err := locks.Acquire(t.Context(), stoppedKey, dlock.WithTTL(time.Minute), dlock.WithWait(stoppedTTL+time.Minute))
	must(t, err, d.write(t.Context(), second.Token(), "second"), d.put(t.Context(), d.db, "plain", "second"))
	_, err = fmt.Fprintln(toHolder)
	must(t, err, syscall.Kill(child.Pid(), syscall.SIGCONT))
	expectLine(t, out, "stale: true")
	must(t, child.Wait())
	for name, want := range map[string]string{"fenced": "second", "plain": "first"} {
		if value, err := d.read(t.Context(), "value", "data", name); value != want || err != nil {
			t.Errorf("%s is %q, %v, want %q", name, value, err, want)
		}
	}
	must(t, second.Unlock(t.Context()))
}

func expectLine(t *testing.T, in *bufio.Reader, want string) {
	t.Helper()
	line, err := in.ReadString('\n')
	if got := strings.TrimSpace(line); got != want || err != nil {
		t.Fatalf("the holder says %q, %v, want %q", got, err, want)
	}
}
