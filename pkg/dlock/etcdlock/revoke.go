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

// maxRevokes is how many leases are revoked at a time: each is a write of the cluster.
const maxRevokes = 8

// revokeLater revokes the lease of a single claim, without waiting for it. It runs under
// mu.
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

// revokeQueued revokes until there is nothing left to revoke.
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
		ctx, cancel := context.WithTimeout(d.ctx, bound(l.seconds))
		d.revoke(ctx, l)
		cancel()
	}
}

// revoke gives back a lease. If it cannot, the lease runs out by itself.
func (d *etcdDriver) revoke(ctx context.Context, l *lease) {
	_, err := d.client.Revoke(ctx, l.id)
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		d.log.Debug("a lease was not revoked", "error", err)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.leasesToRevoke, l)
}

// closeBound is how long Close may take to give back leases that nothing uses.
const closeBound = 300 * time.Millisecond

// revokeAll gives back what is left when nothing else runs any more.
func (d *etcdDriver) revokeAll() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), closeBound)
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

// maintainEvery is how often maintain looks for what may be forgotten.
const maintainEvery = 20 * time.Second

// maintain keeps what was left behind from staying for as long as the process.
func (d *etcdDriver) maintain() {
	for sleep(d.ctx, maintainEvery) {
		d.prune(time.Now())
	}
}

// prune forgets claims that nobody asks for any more and whose lease is long over, since
// the engine has given up releasing them; leases that have run out; and what may not
// arrive any more.
func (d *etcdDriver) prune(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.claims {
		last := driver.BarFor(c.lease.ttl)
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
