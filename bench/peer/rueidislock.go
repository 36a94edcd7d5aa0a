package peer

import (
	"context"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

const rueidisModule = "github.com/redis/rueidis"

type rueidislockPeer struct{}

func (rueidislockPeer) Info() Info {
	return Info{
		Name: "rueidislock", Title: "rueidislock", Backend: "redis", Version: version(rueidisModule),
		Setup: "KeyMajority 1 and NoLoopTracking, as its README has for one server: validity 5 s, extended every 2.5 s",
		Waits: true, Renews: true,
	}
}

func (rueidislockPeer) Open(_ context.Context, env *Env) (Client, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{env.Redis}},
		KeyMajority:  1, NoLoopTracking: true, KeyValidity: env.TTL,
	})
	if err != nil {
		return nil, err
	}
	return rueidislockClient{l}, nil
}

type rueidislockClient struct{ locker rueidislock.Locker }

// Lock keeps the caller's context away from the hold, which rueidislock would end with
// it: only the wait is bounded.
func (c rueidislockClient) Lock(ctx context.Context, key string) (Lock, error) {
	wait, endWait := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, endWait)
	held, cancel, err := c.locker.WithContext(wait, key)
	if !stop() && err == nil { // both at once
		cancel()
		err = ctx.Err()
	}
	if err != nil {
		endWait()
		return nil, err
	}
	return &rueidislockLock{held, cancel, endWait}, nil
}

func (c rueidislockClient) Close() error {
	c.locker.Close()
	return nil
}

type rueidislockLock struct {
	held    context.Context
	cancel  context.CancelFunc
	endWait context.CancelFunc
}

// Unlock returns when the key is deleted.
func (l *rueidislockLock) Unlock(context.Context) error {
	lost := l.held.Err()
	l.cancel()
	l.endWait()
	return lost
}

// Done is closed when the lock is lost.
func (l *rueidislockLock) Done() <-chan struct{} { return l.held.Done() }
