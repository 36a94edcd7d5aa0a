package main

import (
	"errors"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExample(t *testing.T) {
	endpoints := []string{testenv.Etcd(t).Endpoint()}
	conn, err := connector.NewEtcd(&connector.EtcdConfig{Endpoints: endpoints})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := conn.Client()

	// Two runs that start at the same time work one after the other.
	t.Run("turns", func(t *testing.T) {
		var all transcript
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				if err := run(t.Context(), &all, endpoints); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
		turns := regexp.MustCompile(`^the lock is ours, with fencing token \d+\nfinished\nthe lock is ours, with fencing token \d+\nfinished\n$`)
		if got := strings.ReplaceAll(all.text.String(), "waiting for the lock\n", ""); !turns.MatchString(got) {
			t.Errorf("the turns are mixed:\n%s", got)
		}
		resp, err := client.Get(t.Context(), "example-result")
		if err != nil || resp.Count != 1 || string(resp.Kvs[0].Value) != "done" {
			t.Errorf("the result is %v, %v", resp, err)
		}
	})

	// The claim is deleted during the work, so nothing is written.
	t.Run("loss", func(t *testing.T) {
		steal := writer(func(line []byte) {
			if strings.HasPrefix(string(line), "the lock is ours") {
				for _, key := range []string{prefix + "report/", "example-result"} {
					if _, err := client.Delete(t.Context(), key, clientv3.WithPrefix()); err != nil {
						t.Error(err)
					}
				}
			}
		})
		if err := run(t.Context(), steal, endpoints); !errors.Is(err, dlock.ErrOwnershipLost) {
			t.Errorf("error is %v", err)
		}
		if resp, err := client.Get(t.Context(), "example-result"); err != nil || resp.Count != 0 {
			t.Errorf("the result is %v, %v", resp, err)
		}
	})
}

func TestNoServer(t *testing.T) {
	err := run(t.Context(), io.Discard, []string{"localhost:1"})
	if !errors.Is(err, connector.ErrUnreachable) || !strings.Contains(err.Error(), "-endpoints") {
		t.Errorf("error is %v", err)
	}
}

type writer func(line []byte)

func (w writer) Write(line []byte) (int, error) { w(line); return len(line), nil }

// A transcript collects what several goroutines write, in order.
type transcript struct {
	mu   sync.Mutex
	text strings.Builder
}

func (t *transcript) Write(line []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(line)
}
