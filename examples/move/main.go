// The move example is a service whose locks move from Redis to etcd while it works. Start several processes, and restart
// them one by one: first with -locks both, and when all of them have that, with -locks new:
//
//	go run ./examples/move -locks old
//	go run ./examples/move -locks both
//	go run ./examples/move -locks new
//
// They count in a file, which would lose numbers if two of them worked at the same time. It needs Redis and etcd.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

func main() {
	var s service
	flag.StringVar(&s.redis, "redis", "localhost:6379", "`address` of Redis, the old backend")
	flag.StringVar(&s.etcd, "etcd", "localhost:2379", "`address` of etcd, the new backend")
	flag.StringVar(&s.locks, "locks", "old", "where to lock: old, both or new")
	flag.StringVar(&s.counter, "counter", filepath.Join(os.TempDir(), "move-counter"), "`file` to count in")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := s.run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type service struct{ redis, etcd, locks, counter string }

// A locker is what the service needs. A Client and a Pair have it.
type locker interface {
	Do(ctx context.Context, key string, fn func(context.Context) error, opts ...dlock.LockOption) error
}

// run counts until ctx ends.
func (s *service) run(ctx context.Context, out io.Writer) error {
	redisClient := redis.NewClient(&redis.Options{Addr: s.redis})
	defer redisClient.Close()
	etcdClient, err := clientv3.New(clientv3.Config{Endpoints: []string{s.etcd}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer etcdClient.Close()
	onRedis, err := dlock.New(&dlock.Config{}, dlock.WithBackend(redislock.New(redisClient)), dlock.WithAdmin())
	if err != nil {
		return err
	}
	defer onRedis.Close()
	onEtcd, err := dlock.New(&dlock.Config{}, dlock.WithBackend(etcdlock.New(etcdClient)))
	if err != nil {
		return err
	}
	defer onEtcd.Close()

	locks, err := s.choose(onRedis, onEtcd)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "locks", s.locks)
	for counted := 0; ctx.Err() == nil; {
		err := locks.Do(ctx, "counter", func(context.Context) error {
			if err := count(s.counter); err != nil {
				return err
			}
			counted++
			fmt.Fprintln(out, "counted", counted)
			return nil
		})
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	if both, ok := locks.(*dlock.Pair); ok {
		return report(context.WithoutCancel(ctx), out, both)
	}
	return nil
}

// choose returns the locks of this step of the move.
func (s *service) choose(onRedis, onEtcd *dlock.Client) (locker, error) {
	switch s.locks {
	case "old":
		return onRedis, nil
	case "both":
		return dlock.Both(onRedis, onEtcd)
	case "new":
		return onEtcd, nil
	}
	return nil, fmt.Errorf("-locks %q is not old, both or new", s.locks)
}

// report prints who has not moved yet, as far as the backend shows it now.
func report(ctx context.Context, out io.Writer, both *dlock.Pair) error {
	for c, err := range both.OldOnly(ctx, "") {
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s is locked on old only, by %s@%s pid %d\n", c.Key, c.Claim.Info.Owner, c.Claim.Info.Host, c.Claim.Info.PID)
	}
	return nil
}

// count adds one to the number in a file. Two processes that do so at the same time lose one.
func count(path string) error {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	n := 0
	if len(text) > 0 {
		if n, err = strconv.Atoi(string(text)); err != nil {
			return err
		}
	}
	time.Sleep(time.Millisecond)
	return os.WriteFile(path, []byte(strconv.Itoa(n+1)), 0o600)
}
