package etcdlock

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// maxRevokes is how many leases are revoked at a time: each one is a write in the cluster.
const maxRevokes = 8

// revokeLater revokes the lease of a single claim in the background. The caller holds mu.
func (d *etcdDriver) revokeLater(l *lease) {
	if l.dead {
		return
	}
	l.dead = true
	if !time.Now().Before(l.end()) {
		return // it runs out by itself about now
	}
	d.leasesToRevoke[l] = true
	d.revokeQueue = append(d.revokeQueue, l)
	if d.revoking < maxRevokes {
		d.revoking++
		d.work.Go(d.revokeQueued)
	}
}

// revokeQueued revokes until the queue is empty.
func (d *etcdDriver) revokeQueued() {
	for {
		d.mu.Lock()
		if len(d.revokeQueue) == 0 || d.ctx.Err() != nil {
			d.revoking--
			d.mu.Unlock()
			return
		}
		l := d.revokeQueue[0]
		d.revokeQueue = d.revokeQueue[1:]
		d.mu.Unlock()
		ctx, cancel := context.WithTimeout(d.ctx, timeout(l.seconds))
		d.revoke(ctx, l)
		cancel()
	}
}

// revoke revokes a lease. If that fails, the lease expires by itself.
func (d *etcdDriver) revoke(ctx context.Context, l *lease) {
	err := d.sendRevoke(ctx, l)
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		d.log.Debug("a lease was not revoked", "error", err)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.leasesToRevoke, l)
}

func (d *etcdDriver) sendRevoke(ctx context.Context, l *lease) (err error) {
	defer recoverPanic(&err) // an interceptor of the user may panic
	_, err = d.client.Revoke(ctx, l.id)
	return err
}

// closeTimeout is how long Close may take to revoke unused leases.
const closeTimeout = 300 * time.Millisecond

// revokeAll revokes the remaining unused leases after all other work has ended.
func (d *etcdDriver) revokeAll() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), closeTimeout)
	defer cancel()
	for _, l := range d.leases {
		if len(l.claims) == 0 && !l.over(time.Now()) {
			d.leasesToRevoke[l] = true
		}
	}
	queue := make(chan *lease, len(d.leasesToRevoke))
	for _, l := range slices.Collect(maps.Keys(d.leasesToRevoke)) {
		queue <- l
	}
	close(queue)
	var wg sync.WaitGroup
	for range min(maxRevokes, len(queue)) {
		wg.Go(func() {
			for l := range queue {
				if ctx.Err() != nil {
					return
				}
				d.revoke(ctx, l)
			}
		})
	}
	wg.Wait()
}

// maintainEvery is how often maintain calls prune.
const maintainEvery = 20 * time.Second

// maintain drops abandoned state, so that it does not stay as long as the process.
func (d *etcdDriver) maintain() {
	for sleep(d.ctx, maintainEvery) {
		d.prune(time.Now())
	}
}

// prune forgets claims that the engine no longer asks for and whose lease ended long ago, because
// the engine has given up releasing them; leases that have expired; and numbers whose delete can no
// longer arrive.
func (d *etcdDriver) prune(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.claims {
		last := driver.TombstoneTTL(c.lease.ttl)
		if now.Sub(c.seen) > last && now.Sub(c.lease.end()) > last {
			c.lease.dead = true // nothing has kept it alive for so long
			d.forget(c)
		}
	}
	for l := range d.leasesToRevoke {
		if !now.Before(l.end()) {
			delete(d.leasesToRevoke, l)
		}
	}
	for secs, l := range d.leases {
		if l.over(now) && len(l.claims) == 0 {
			delete(d.leases, secs)
		}
	}
	d.findNumbers(now)
}
