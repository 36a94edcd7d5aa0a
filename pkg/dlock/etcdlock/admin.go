package etcdlock

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/cursor"
)

// maxPage is how many keys List reads at a time.
const maxPage = 500

// List walks through the names in order. A cursor is the last name returned.
func (d *etcdDriver) List(ctx context.Context, prefix, from string, limit int) ([]string, string, error) {
	last, err := cursor.Key(from)
	if err != nil {
		return nil, "", err
	}
	start := d.prefix + Name(prefix)
	end := clientv3.GetPrefixRangeEnd(start)
	if start == "" {
		start, end = "\x00", "\x00" // everything
	}
	if last != "" {
		start = d.behind(Name(last))
	}
	var keys []string
	for {
		resp, err := d.client.Get(ctx, start, clientv3.WithRange(end), clientv3.WithLimit(maxPage))
		if err != nil {
			return nil, "", classify(err)
		}
		for _, kv := range resp.Kvs {
			start = string(kv.Key) + "\x00"
			key, ok := d.lockOf(kv)
			if !ok || (len(keys) > 0 && keys[len(keys)-1] == key) {
				continue
			}
			if len(keys) == limit {
				return keys, cursor.After(keys[limit-1]), nil
			}
			keys = append(keys, key)
			start = d.behind(Name(key))
		}
		if !resp.More {
			return keys, "", nil
		}
	}
}

// behind returns the first key after all keys of a lock.
func (d *etcdDriver) behind(name string) string { return d.prefix + name + string(rune('/'+1)) }

// lockOf returns the lock that a key is a claim on.
func (d *etcdDriver) lockOf(kv *mvccpb.KeyValue) (string, bool) {
	name, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), d.prefix), "/")
	key, ok := keyOf(name)
	claims, _ := sift(d.prefix+name+"/", []*mvccpb.KeyValue{kv}, true)
	return key, ok && len(claims) == 1
}

// Inspect reads the queue of a lock. Its first claims are the holders.
func (d *etcdDriver) Inspect(ctx context.Context, key string) ([]driver.Claim, error) {
	prefix := d.prefixOf(key)
	stored, err := d.readQueue(ctx, prefix)
	if err != nil {
		return nil, classify(err)
	}
	var claims []driver.Claim
	held := holding(prefix, stored)
	left := map[int64]time.Duration{}
	for _, kv := range stored {
		c := describe(kv, prefix)
		if len(claims) < held {
			c.Phase, c.Token = driver.Held, kv.CreateRevision
		}
		if _, asked := left[kv.Lease]; !asked && len(left) < leasesShown {
			if left[kv.Lease], err = d.timeLeft(ctx, kv.Lease); err != nil {
				return nil, err
			}
		}
		c.Remaining = left[kv.Lease]
		claims = append(claims, c)
	}
	return claims, nil
}

// Look reads the first claims of a queue, and counts the others. It reads all of them if many hold the lock, or if there
// is other data among them. Whether the caller's own claim is among those that were not read, only this process can tell:
// its release may have been executed, and not answered.
func (d *etcdDriver) Look(ctx context.Context, key, except string) (holder driver.Claim, waiting int, err error) {
	prefix := d.prefixOf(key)
	byAge := clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)
	resp, err := d.client.Get(ctx, prefix, clientv3.WithPrefix(), byAge, clientv3.WithLimit(near))
	if err != nil {
		return driver.Claim{}, 0, classify(err)
	}
	claims, _ := sift(prefix, resp.Kvs, true)
	more := int(resp.Count) - len(resp.Kvs)
	if more > 0 && (holding(prefix, claims) == len(claims) || len(claims) < len(resp.Kvs)) { // more may hold the lock, or be other data
		claims, err = d.readQueue(ctx, prefix)
		if err != nil {
			return driver.Claim{}, 0, classify(err)
		}
		more = 0
	}
	held := holding(prefix, claims)
	waiting = more + len(claims) - held
	isOwn := func(kv *mvccpb.KeyValue) bool { return idOf(kv, prefix) == except }
	if slices.ContainsFunc(claims[held:], isOwn) || (more > 0 && !slices.ContainsFunc(claims, isOwn) && d.queued(except, key)) {
		waiting--
	}
	for _, kv := range claims[:held] {
		holder = describe(kv, prefix)
		if holder.ID == except {
			holder = driver.Claim{}
			continue
		}
		holder.Phase, holder.Token = driver.Held, kv.CreateRevision
		holder.Remaining, err = d.timeLeft(ctx, kv.Lease)
		break
	}
	return holder, waiting, err
}

// queued reports whether a claim of this driver waits for key.
func (d *etcdDriver) queued(id, key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.claims[id]
	return c != nil && c.key == key && c.phase == driver.Queued
}

// leasesShown is the number of leases whose remaining time Inspect requests, with one call each.
const leasesShown = 16

// describe reads a claim. It knows no details of a claim that another program stored.
func describe(kv *mvccpb.KeyValue, prefix string) driver.Claim {
	k, _ := cutKind(strings.TrimPrefix(string(kv.Key), prefix))
	c := driver.Claim{ID: idOf(kv, prefix), Phase: driver.Queued, Mode: k.mode, Limit: k.limit}
	if r := recordOf(kv); !r.Created.IsZero() {
		c.Info, c.Age = r.Info, max(time.Since(r.Created), 0)
	}
	return c
}

func recordOf(kv *mvccpb.KeyValue) (r record) {
	if json.Unmarshal(kv.Value, &r) != nil {
		return record{}
	}
	return r
}

func (d *etcdDriver) timeLeft(ctx context.Context, id int64) (time.Duration, error) {
	resp, err := d.client.TimeToLive(ctx, clientv3.LeaseID(id))
	if err != nil {
		return 0, classify(err)
	}
	return max(time.Duration(resp.TTL)*time.Second, 0), nil
}

// Evict deletes a claim if it has not changed since it was read: the holder with this token, or,
// with token 0, a waiter.
func (d *etcdDriver) Evict(ctx context.Context, key, id string, token int64) (driver.State, error) {
	f, err := d.find(ctx, key, id)
	if err != nil {
		return driver.State{}, classify(err)
	}
	gone := driver.State{Phase: driver.Gone}
	if f.kv == nil {
		return gone, nil
	}
	still := []clientv3.Cmp{createdAt(f.kv)}
	held := f.phase() == driver.Held
	if (held && token != f.kv.CreateRevision) || (!held && token != 0) {
		return gone, nil
	}
	for _, kv := range f.before[:min(len(f.before), maxOps-len(still))] { // so it still waits
		still = append(still, createdAt(kv))
	}
	resp, err := d.client.Txn(ctx).If(still...).Then(clientv3.OpDelete(string(f.kv.Key))).Commit()
	if err != nil {
		return driver.State{}, classify(err)
	}
	if !resp.Succeeded {
		return gone, nil
	}
	d.mu.Lock()
	if c := d.claims[id]; c != nil && c.key == key {
		d.lose(c, 0)
	}
	d.mu.Unlock()
	return driver.State{Phase: f.phase()}, nil
}

func createdAt(kv *mvccpb.KeyValue) clientv3.Cmp {
	return created(string(kv.Key), kv.CreateRevision)
}
