package election_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/election"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// asCandidate in the environment makes the test binary a candidate. Its arguments are a backend, the addresses of the
// servers, the file for its terms, and perhaps "stubborn".
const asCandidate = "ELECTION_TEST_CANDIDATE"

const (
	leaseTTL = 2 * time.Second
	// A candidate that has not run for longer than stall, half of the margin, was paused. Its context is judged again
	// after settle.
	stall  = 50 * time.Millisecond
	settle = time.Second
)

func TestMain(m *testing.M) {
	if os.Getenv(asCandidate) != "" {
		err := beCandidate(os.Args[1], strings.Split(os.Args[2], ","), os.Args[3], len(os.Args) > 4)
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// monotonic is the same clock in all processes of the host. It goes on while a process is stopped.
func monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// beCandidate stands for election until it is killed. Each line of its input makes it resign.
func beCandidate(backend string, addrs []string, file string, stubborn bool) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	store, err := connect(backend, addrs)
	if err != nil {
		return err
	}
	locks, err := dlock.New(&dlock.Config{}, dlock.WithBackend(store))
	if err != nil {
		return err
	}
	terms := 0
	var e *election.Election
	e, err = election.New(locks, "leader", election.Callbacks{OnElected: func(ctx context.Context, number int64) {
		t := term{Number: number, From: monotonic()}
		fmt.Printf("leads %d %d\n", number, t.From)
		t.lead(ctx, e, stubborn, func() { writeTerm(out, terms, t) })
		terms++
	}}, election.WithTTL(leaseTTL), election.WithPoll(20*time.Millisecond))
	if err != nil {
		return err
	}
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			fmt.Printf("resigns %d 0\n", monotonic())
			_ = e.Resign(context.Background())
		}
	}()
	return e.Run(context.Background())
}

func connect(backend string, addrs []string) (driver.Opener, error) {
	if backend == "etcd" {
		c, err := clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
		return etcdlock.New(c), err
	}
	var nodes []redis.UniversalClient
	for _, addr := range addrs {
		nodes = append(nodes, redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true}))
	}
	if backend == "redlock" {
		return redlock.New(nodes), nil
	}
	return redislock.New(nodes[0]), nil
}

// A term is how long a candidate could have acted as the leader. It is written to a file while it lasts, so that it
// survives the process.
type term struct {
	Number int64
	From   time.Duration
	// Valid is the last time at which Term said that the candidate leads.
	Valid time.Duration
	// Context is the last time at which the context had not ended, except just after the process was paused: it needs a
	// moment then to notice.
	Context time.Duration
}

// lead updates a term until its context ends. The time is taken before each check, so that the process led at that time even if it
// is paused after the check.
func (t *term) lead(ctx context.Context, e *election.Election, stubborn bool, write func()) {
	resumed := t.From - settle
	for last := t.From; ; {
		now := monotonic()
		if now-last > stall {
			resumed = now
		}
		last = now
		number, leads := e.Term()
		if stubborn || (leads && number == t.Number) {
			t.Valid = now
		}
		if ctx.Err() != nil && !stubborn {
			return
		}
		if stubborn || now-resumed >= settle || t.Context == 0 {
			t.Context = now
		}
		write()
		time.Sleep(time.Millisecond)
	}
}

var termSize = binary.Size(term{})

func writeTerm(f *os.File, i int, t term) {
	data, _ := binary.Append(nil, binary.LittleEndian, t) // numbers can always be encoded
	_, err := f.WriteAt(data, int64(i*termSize))
	if err != nil {
		panic(err)
	}
}

func readTerms(t *testing.T, file string) (terms []term) {
	t.Helper()
	data, err := os.ReadFile(file)
	check(t, err)
	terms = make([]term, len(data)/termSize)
	_, err = binary.Decode(data, binary.LittleEndian, terms)
	check(t, err)
	return terms
}
