// The etcd example takes a lock in etcd, works, writes the result to the same etcd and
// releases the lock. Start it twice at the same time: the second process waits.
//
//	go run ./examples/etcd & go run ./examples/etcd
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
)

const prefix = "example/"

func main() {
	endpoints := flag.String("endpoints", "localhost:2379", "`host:port` of all members, with commas between")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, strings.Split(*endpoints, ",")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, endpoints []string) (err error) {
	// The connector creates a client and owns it. Nothing is sent yet.
	conn, err := connector.NewEtcd(&connector.EtcdConfig{Endpoints: endpoints})
	if err != nil {
		return err
	}
	defer conn.Close()
	// Connect is optional. It reports problems early that would otherwise show up later.
	if err := conn.Connect(ctx); err != nil {
		return fmt.Errorf("%w\nIs etcd there? Start it with \"etcd\", or name another one with -endpoints", err)
	}
	locks, err := dlock.NewEtcd(conn, &dlock.Config{Prefix: prefix})
	if err != nil {
		return err
	}
	defer locks.Close() // before conn

	fmt.Fprintln(out, "waiting for the lock")
	guard, err := locks.Acquire(ctx, "report", dlock.WithWait(time.Minute)) // ctx limits the wait, not the hold
	if err != nil {
		return err
	}
	defer dlock.UnlockInto(&err, guard) // err says if the lock was lost: another process may then have worked too
	fmt.Fprintln(out, "the lock is ours, with fencing token", guard.Token())
	select {
	case <-time.After(500 * time.Millisecond): // the work
	case <-guard.Done(): // the lock was lost: stop
	}
	err = store(guard.Context(), conn.Client(), guard, "done")
	fmt.Fprintln(out, "finished")
	return err
}

// store writes a result in a transaction that takes effect only while the lock is held,
// so etcd itself refuses a late write.
func store(ctx context.Context, client *clientv3.Client, guard *dlock.Guard, value string) error {
	still, err := etcdlock.IsOwner(ctx, client, prefix+etcdlock.Name(guard.Key()), guard.Token())
	if err != nil {
		return err // ErrNotHeld: the lock is already lost
	}
	resp, err := client.Txn(ctx).If(still).Then(clientv3.OpPut("example-result", value)).Commit()
	if err == nil && !resp.Succeeded {
		err = fmt.Errorf("token %d came too late", guard.Token())
	}
	return err
}
