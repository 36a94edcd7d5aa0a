package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/connector"
)

// asJob in the environment makes the test binary run as the program itself.
const asJob = "EXAMPLE_AS_JOB"

func TestMain(m *testing.M) {
	if os.Getenv(asJob) != "" {
		main()
		os.Exit(0)
	}
	redis.SetLogger(silent{}) // go-redis would log the faults that the tests cause
	goleak.VerifyTestMain(m)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// Several hosts start at once, and one starts late. Only one of them runs the job.
func TestOneRuns(t *testing.T) {
	t.Parallel()
	addr := testenv.Redis(t).Addr()
	hosts := make([]*exec.Cmd, 4)
	outs := make([]strings.Builder, len(hosts))
	for i := range hosts {
		hosts[i] = exec.Command(os.Args[0], "-addr", addr, "-every", "1m")
		hosts[i].Env = append(os.Environ(), asJob+"=1")
		hosts[i].Stdout, hosts[i].Stderr = &outs[i], os.Stderr
		if err := hosts[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	ran := 0
	for i := range hosts {
		if err := hosts[i].Wait(); err != nil {
			t.Error(err)
		}
		switch outs[i].String() {
		case "this host does it\n":
			ran++
		case "another host does it\n":
		default:
			t.Errorf("output is %q", outs[i].String())
		}
	}
	if ran != 1 {
		t.Errorf("%d of %d ran", ran, len(hosts))
	}
	if got := once(t, addr, time.Minute); got != "another host does it\n" {
		t.Errorf("all have ended, and a late one says %q", got)
	}
}

// The lock is free again when the job is due next.
func TestNextTime(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	client := server.Client()
	defer client.Close()
	every := testenv.UnderStress(12*time.Second, 3*time.Second) // half of it is the lease
	for range 2 {
		began := time.Now()
		if got := once(t, server.Addr(), every); got != "this host does it\n" {
			t.Fatalf("output is %q", got)
		}
		testenv.Eventually(t, time.Minute, "the lock comes free", func() bool {
			return client.Exists(t.Context(), "example:report").Val() == 0
		})
		if kept := time.Since(began); kept < every/2 {
			t.Errorf("the lock was kept for %v", kept)
		}
	}
}

func TestNoServer(t *testing.T) {
	t.Parallel()
	if err := run(t.Context(), io.Discard, "localhost:1", time.Minute); !errors.Is(err, connector.ErrUnreachable) || !strings.Contains(err.Error(), "redis-server") {
		t.Errorf("error is %v", err)
	}
}

func once(t *testing.T, addr string, every time.Duration) string {
	t.Helper()
	var out strings.Builder
	if err := run(t.Context(), &out, addr, every); err != nil {
		t.Error(err)
	}
	return out.String()
}
