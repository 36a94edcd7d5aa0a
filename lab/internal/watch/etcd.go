package watch

import (
	"context"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/lab/internal/worker"
)

// etcd follows all deletions. A claim is one key, and its revision of creation is
// its token.
func (w *Watcher) etcd(ctx context.Context, b worker.Backend) {
	clients, err := worker.Connect(b)
	if err != nil {
		return
	}
	defer clients.Close()
	for ctx.Err() == nil { // what happens between two watches is not judged
		stream := clients.Etcd.Watch(ctx, worker.Prefix, clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithFilterPut())
		for answer := range stream {
			for _, e := range answer.Events {
				if key, _, ok := strings.Cut(string(e.Kv.Key), "/"); ok && e.PrevKv != nil {
					w.add(key, e.PrevKv.CreateRevision, "deleted")
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}
