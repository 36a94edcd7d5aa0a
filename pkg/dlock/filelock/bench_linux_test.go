package filelock_test

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ceyewan/genesis/internal/measure"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// BenchmarkUncontended compares one fenced acquire and release, by a Client and by its driver
// alone, with the bare system calls: open, flock, close. The figures are ratios: 3 is three times
// the cost.
func BenchmarkUncontended(b *testing.B) {
	dir := b.TempDir()
	client, alone, raw := pairs(b, filepath.Join(dir, "locks")), driverPairs(b, filepath.Join(dir, "locks")), rawPairs(b, dir)
	const d = 100 * time.Millisecond
	for _, pair := range []func(int){client, alone, raw} {
		measure.Pace(1, d, pair)
	}
	var clients, drivers, mine, theirs []float64
	for range measure.Rounds {
		c, a, r := measure.Pace(1, d, client), measure.Pace(1, d, alone), measure.Pace(1, d, raw)
		clients, drivers = append(clients, r/c), append(drivers, r/a)
		mine, theirs = append(mine, 1e9/c), append(theirs, 1e9/r)
	}
	measure.Spread(b, "cost-x-raw", clients)
	measure.Spread(b, "driver-cost-x-raw", drivers)
	measure.Spread(b, "ns/pair", mine)
	measure.Spread(b, "ns/raw", theirs)
	b.ReportMetric(testing.AllocsPerRun(1000, func() { alone(0) }), "driver-allocs")
}

func pairs(b *testing.B, dir string) func(int) {
	b.Helper()
	locks, err := dlock.New(&dlock.Config{}, dlock.WithBackend(filelock.New(dir)))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = locks.Close() })
	return func(int) {
		g, err := locks.Acquire(ctx, "order:123")
		if err == nil {
			err = g.Unlock(ctx)
		}
		if err != nil {
			b.Error(err)
		}
	}
}

func driverPairs(b *testing.B, dir string) func(int) {
	b.Helper()
	d := newDriver(b, dir)
	r := driver.Request{Ref: ref("order:456"), Wait: true, Info: driver.Info{Owner: "api-7", Host: "host", PID: 311, Purpose: "bench"}}
	return func(int) {
		if st, err := d.Acquire(ctx, r); err != nil || st.Phase != driver.Held {
			b.Error(st.Phase, err)
		}
		if _, err := d.Release(ctx, r.Ref); err != nil {
			b.Error(err)
		}
	}
}

func rawPairs(b *testing.B, dir string) func(int) {
	b.Helper()
	path := filepath.Join(dir, "raw")
	return func(int) {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		if err == nil {
			err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		}
		if err == nil {
			err = unix.Close(fd)
		}
		if err != nil {
			b.Error(err)
		}
	}
}

// BenchmarkCrash measures the time from the SIGKILL of a holder to the next holder in another
// process, which was idle, compared with a thread that is blocked in flock(2).
func BenchmarkCrash(b *testing.B) {
	const kills = 5
	dir := filepath.Join(b.TempDir(), "locks")
	d := newDriver(b, dir)
	ours := func(cmd *exec.Cmd) time.Duration { return crash(b, cmd, waiting(b, d)) }
	raw := func(cmd *exec.Cmd) time.Duration {
		return crash(b, cmd, blocked(b, filepath.Join(dir, filelock.Name("crash"))))
	}
	var mine, theirs []float64
	for range measure.Rounds {
		var o, r time.Duration
		for range kills {
			cmd, _ := holder(b, dir, "crash", driver.Exclusive)
			o = max(o, ours(cmd))
			cmd, _ = holder(b, dir, "crash", driver.Exclusive)
			r = max(r, raw(cmd))
		}
		mine, theirs = append(mine, o.Seconds()*1e3), append(theirs, r.Seconds()*1e3)
	}
	measure.Spread(b, "ms/slowest-of-5", mine)
	measure.Spread(b, "ms/slowest-raw", theirs)
}

// crash kills a holder and returns how long it takes until the next one has the lock.
func crash(b *testing.B, cmd *exec.Cmd, got func()) time.Duration {
	b.Helper()
	<-time.After(50 * time.Millisecond) // the waiter is idle then
	began := time.Now()
	if err := cmd.Process.Kill(); err != nil {
		b.Fatal(err)
	}
	got()
	took := time.Since(began)
	_ = cmd.Wait() // it was killed
	return took
}

// waiting waits for the lock with a driver, and releases it.
func waiting(b *testing.B, d driver.Driver) (got func()) {
	b.Helper()
	w := wait("crash")
	file(b, d, w, driver.Queued)
	return func() {
		granted(b, d, w.Ref)
		release(b, d, w.Ref)
	}
}

// blocked waits for the lock in flock(2).
func blocked(b *testing.B, path string) (got func()) {
	b.Helper()
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- unix.Flock(fd, unix.LOCK_EX) }()
	return func() {
		if err := <-done; err != nil {
			b.Error(err)
		}
		_ = unix.Close(fd)
	}
}
