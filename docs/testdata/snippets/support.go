// Package main runs the snippets of the documentation. The test adds a file with one function for
// each of them, and the programs as packages.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// What the snippets find around them.
var (
	ctx       = context.Background()
	redisAddr = os.Getenv("REDIS")
	endpoints = strings.Split(os.Getenv("ETCD"), ",")
	servers   = strings.Split(os.Getenv("REDLOCK"), ",")
	folder    = filepath.Join(os.Getenv("FOLDER"), "locks")
	prefix    = "p:"
	key       = "order:1"
	caps      driver.Caps
)

func main() {
	for _, name := range os.Args[1:] {
		http.DefaultServeMux = http.NewServeMux() // several snippets serve /metrics
		if run := programs[name]; run != nil {
			run()
			continue
		}
		err := fragments[name]()
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
			os.Exit(1)
		}
		fmt.Println("ran", name)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// finish uses what a snippet has made.
func finish(made ...any) error {
	for _, v := range made {
		var err error
		switch v := v.(type) {
		case *dlock.Client:
			err = v.Do(ctx, "finish", ship)
		case func(context.Context) error:
			err = v(ctx)
		case func(context.Context, *dlock.Client) error:
			err = v(ctx, memory())
		case error:
			err = v
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func ship(ctx context.Context) error { return ctx.Err() }

// texts is a Store.
type texts map[string]string

func (t texts) Get(_ context.Context, key string) (string, bool, error) {
	text, found := t[key]
	return text, found, nil
}

func (t texts) Set(_ context.Context, key, text string) error {
	t[key] = text
	return nil
}

func makeReport(ctx context.Context) error { return ctx.Err() }

func serve(ctx context.Context, term int64) {
	_ = write(ctx, term)
	<-ctx.Done()
}

func write(ctx context.Context, token int64) error {
	if token == 0 {
		return fmt.Errorf("no token")
	}
	return ctx.Err()
}

func memory() *dlock.Client {
	return must(dlock.New(&dlock.Config{}, dlock.WithBackend(memlock.New())))
}

func withAdmin() *dlock.Client {
	return must(dlock.New(&dlock.Config{}, dlock.WithBackend(memlock.New()), dlock.WithAdmin()))
}

func newAdmin() *dlock.Admin {
	locks := withAdmin()
	must(locks.Acquire(ctx, "order:1"))
	return must(locks.Admin())
}

var acquired int

// acquire takes a lock that no other snippet has.
func acquire(locks *dlock.Client, opts ...dlock.LockOption) *dlock.Guard {
	acquired++
	return must(locks.Acquire(ctx, fmt.Sprint("stock", acquired), opts...))
}

func redisClient(i int) redis.UniversalClient {
	return redis.NewClient(&redis.Options{Addr: servers[i], ContextTimeoutEnabled: true})
}

func redisConnector() *connector.Redis {
	return must(connector.NewRedis(&connector.RedisConfig{Addr: redisAddr}))
}

func etcdClient() *clientv3.Client {
	return must(clientv3.New(clientv3.Config{Endpoints: endpoints}))
}

func etcdSession() *concurrency.Session { return must(concurrency.NewSession(etcdClient())) }

func etcdLocks() *dlock.Client {
	return must(dlock.New(&dlock.Config{Prefix: prefix}, dlock.WithBackend(etcdlock.New(etcdClient()))))
}

func etcdGuard() *dlock.Guard { return acquire(etcdLocks(), dlock.WithOwnLease()) }

var files = filelock.New(folder)

func fileGuard() *dlock.Guard {
	return acquire(must(dlock.New(&dlock.Config{}, dlock.WithBackend(files))))
}
