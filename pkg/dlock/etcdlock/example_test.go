package etcdlock_test

import (
	"context"
	"errors"
	"log"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
)

// The client stays yours: Close of the Client does not close it.
func Example() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"localhost:2379"}})
	if err != nil {
		log.Print(err)
		return
	}
	defer client.Close()
	locks, err := dlock.New(&dlock.Config{Prefix: "shop/"}, dlock.WithBackend(etcdlock.New(client)))
	if err != nil {
		log.Print(err)
		return
	}
	defer locks.Close()
	err = locks.Do(context.Background(), "order:123", func(ctx context.Context) error {
		return ctx.Err() // the work, which stops when ctx ends
	})
	if err != nil {
		log.Print(err)
	}
}

// A write that etcd itself refuses if the lock is not held any more.
func ExampleIsOwner() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"localhost:2379"}})
	if err != nil {
		log.Print(err)
		return
	}
	defer client.Close()
	locks, err := dlock.New(&dlock.Config{}, dlock.WithBackend(etcdlock.New(client)))
	if err != nil {
		log.Print(err)
		return
	}
	defer locks.Close()
	err = locks.Do(context.Background(), "report", func(ctx context.Context) error {
		guard, _ := dlock.FromContext(ctx)
		owned, err := etcdlock.IsOwner(ctx, client, "report", guard.Token())
		if err != nil {
			return err
		}
		resp, err := client.Txn(ctx).If(owned).Then(clientv3.OpPut("result", "done")).Commit()
		if err == nil && !resp.Succeeded {
			err = errors.New("the lock was lost: nothing was written")
		}
		return err
	})
	if err != nil {
		log.Print(err)
	}
}
