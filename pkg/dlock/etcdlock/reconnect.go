package etcdlock

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// gRPC waits longer and longer before it connects again, by default up to two minutes:
// locks would be lost although the server is back. While somebody needs the server, it is
// made to try sooner: every reconnectEvery at first, reconnectSoon times, and then each
// time after twice as long, up to reconnectMost. Nobody else's attempts are hastened, and
// no two processes come at the same time.
const (
	reconnectEvery = 600 * time.Millisecond
	reconnectSoon  = 12
	reconnectMost  = time.Minute
)

// reconnect runs until the driver is closed.
func (d *etcdDriver) reconnect(conn *grpc.ClientConn) {
	for d.ctx.Err() == nil {
		state := conn.GetState()
		if state == connectivity.TransientFailure {
			d.hasten(conn)
		} else {
			conn.WaitForStateChange(d.ctx, state)
		}
	}
}

// hasten makes a connection that has failed try again, until it does not fail any more.
func (d *etcdDriver) hasten(conn *grpc.ClientConn) {
	for attempts := 0; ; {
		ctx, cancel := context.WithTimeout(d.ctx, reconnectPause(attempts))
		changed := conn.WaitForStateChange(ctx, connectivity.TransientFailure)
		cancel()
		if changed || d.ctx.Err() != nil {
			return
		}
		if d.needsServer() {
			conn.ResetConnectBackoff()
			attempts++
		}
	}
}

// reconnectPause is up to a quarter more or less.
func reconnectPause(attempts int) time.Duration {
	pause := min(reconnectEvery<<min(max(attempts+1-reconnectSoon, 0), 16), reconnectMost)
	return pause*3/4 + rand.N(pause/2)
}

// callStays is how long after a call its caller may still want something: it repeats what
// was not answered.
const callStays = 3 * time.Second

// needsServer reports whether a lock is held or waited for that would be lost without a
// server, or a caller asks for one.
func (d *etcdDriver) needsServer() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if d.calls > 0 || now.Sub(d.lastCall) < callStays {
		return true
	}
	for _, c := range d.claims {
		if !c.fixed && !c.lease.over(now) {
			return true
		}
	}
	return false
}

// call notes that a call is under way until the function is called that it returns.
func (d *etcdDriver) call() (done func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.calls--
		d.lastCall = time.Now()
	}
}
