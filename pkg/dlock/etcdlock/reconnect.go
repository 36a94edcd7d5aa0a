package etcdlock

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// gRPC waits longer and longer before it reconnects, by default up to two minutes: locks would be
// lost although the server is back. While a lock or a caller needs the server, the driver makes
// gRPC try sooner: every reconnectEvery for the first reconnectSoon attempts, and then after a
// pause that doubles each time, up to maxReconnectPause. The driver does not affect other users of
// the client, and the pauses are random so that processes do not reconnect at the same time.
const (
	reconnectEvery    = 600 * time.Millisecond
	reconnectSoon     = 12
	maxReconnectPause = time.Minute
)

// reconnect runs until the driver is closed.
func (d *etcdDriver) reconnect(conn *grpc.ClientConn) {
	for d.ctx.Err() == nil {
		state := conn.GetState()
		if state == connectivity.TransientFailure {
			d.reconnectNow(conn)
		} else {
			conn.WaitForStateChange(d.ctx, state)
		}
	}
}

// reconnectNow makes a failed connection retry until it no longer fails.
func (d *etcdDriver) reconnectNow(conn *grpc.ClientConn) {
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

// reconnectPause returns the pause before an attempt, varied randomly by up to a quarter.
func reconnectPause(attempts int) time.Duration {
	pause := min(reconnectEvery<<min(max(attempts+1-reconnectSoon, 0), 16), maxReconnectPause)
	return pause*3/4 + rand.N(pause/2)
}

// callStays is how long after a call its caller may still need the server, because it repeats calls
// that were not answered.
const callStays = 3 * time.Second

// needsServer reports whether a lock is held or waited for that would be lost without a server, or
// whether a call is in progress.
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

// call records that a call is in progress until the returned function is called.
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
