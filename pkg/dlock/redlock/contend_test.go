package redlock_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

const contenders = 16

// 16 Clients want one lock: each of them gets a share.
func TestContendersMakeProgress(t *testing.T) {
	s := start(t, 3).straight(t)
	var r room
	counts := make([]atomic.Int64, contenders)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := int64(testenv.UnderStress(160, 10_000))
	var served atomic.Int64 // entries
	var wg sync.WaitGroup
	for i := range contenders {
		c := locksOn(t, s.clients, dlock.Config{})
		wg.Go(func() {
			for ctx.Err() == nil && (r.entries.Load() < n || served.Load() < contenders) {
				g, err := c.Acquire(ctx, "k")
				if err != nil {
					t.Errorf("contender %d: %v", i, err)
					return
				}
				r.stay(g, time.Millisecond)
				if counts[i].Add(1) == 1 {
					served.Add(1)
				}
				unlock(t, g)
			}
		})
	}
	begun := time.Now()
	wg.Wait()
	total, least := r.entries.Load(), n
	for i := range counts {
		least = min(least, counts[i].Load())
	}
	t.Logf("%d entries in %v, the least share is %d of %d", total, time.Since(begun).Round(time.Millisecond), least, total/contenders)
	if r.overlaps.Load() > 0 || total < n || least < total/contenders/int64(testenv.UnderStress(8, 3)) {
		t.Errorf("%d overlaps in %d entries, the least share is %d", r.overlaps.Load(), total, least)
	}
}

const (
	childOracle = "REDLOCK_TEST_ORACLE"
	childRuns   = 4 // Clients in each process
)

// The same with processes, which count the holders inside on a separate server.
func TestProcessesExclude(t *testing.T) {
	s := start(t, 3).straight(t)
	oracle := testenv.Redis(t)
	var outs []*bufio.Reader
	var cmds []*exec.Cmd
	for range contenders / childRuns {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		var addrs []string
		for _, server := range s.servers {
			addrs = append(addrs, server.Addr())
		}
		cmd.Env = append(os.Environ(), childAddrs+"="+strings.Join(addrs, ","), childOracle+"="+oracle.Addr())
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		check(t, err)
		check(t, cmd.Start())
		outs, cmds = append(outs, bufio.NewReader(out)), append(cmds, cmd)
	}
	for i, out := range outs {
		line, err := out.ReadString('\n')
		check(t, err)
		var entries, least, overlaps int
		_, err = fmt.Sscan(line, &entries, &least, &overlaps)
		check(t, err)
		check(t, cmds[i].Wait())
		t.Logf("process %d: %d entries, %d by the least of its Clients", i, entries, least)
		if overlaps > 0 || least == 0 {
			t.Errorf("process %d: %d overlaps in %d entries, %d by the least of its Clients", i, overlaps, entries, least)
		}
	}
}

// contend is the main function of one of the processes. It prints how many entries it made, the
// lowest number of entries of its Clients, and how many overlaps it saw.
func contend(clients []redis.UniversalClient) {
	// A command that is sent again would count twice.
	oracle := redis.NewClient(&redis.Options{Addr: os.Getenv(childOracle), MaxRetries: -1, ReadTimeout: patience, WriteTimeout: patience, DialTimeout: patience})
	end := time.Now().Add(time.Duration(testenv.UnderStress(3, 60)) * time.Second)
	ctx, cancel := context.WithDeadline(context.Background(), end.Add(2*time.Minute)) // it is a fault to need that
	defer cancel()
	counts := make([]int, childRuns)
	var overlaps, served atomic.Int64
	var wg sync.WaitGroup
	for i := range childRuns {
		c, err := dlock.New(&dlock.Config{DefaultTTL: testenv.Lease}, dlock.WithBackend(redlock.New(clients)))
		if err != nil {
			panic(err)
		}
		wg.Go(func() {
			for time.Now().Before(end) || served.Load() < childRuns {
				g, err := c.Acquire(ctx, "k")
				if err != nil {
					break
				}
				inside, err := oracle.Incr(context.Background(), "inside").Result()
				if err != nil {
					panic(err)
				}
				if inside != 1 {
					overlaps.Add(1)
				}
				counts[i]++
				if counts[i] == 1 {
					served.Add(1)
				}
				err = oracle.Decr(context.Background(), "inside").Err()
				if err != nil {
					panic(err)
				}
				_ = g.Unlock(context.Background())
			}
			_ = c.Close()
		})
	}
	wg.Wait()
	total, least := 0, counts[0]
	for _, n := range counts {
		total, least = total+n, min(least, n)
	}
	fmt.Println(total, least, overlaps.Load())
}
