package etcdlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A keepAliver keeps leases alive over one long-lived stream. A client with a user authenticates
// for every stream that it opens, which costs the server a bcrypt and a write: one stream per
// renewal overloads the server even with a small fleet.
//
// A lease counts from the time at which the answered request was sent. etcd answers the requests of
// a stream in order, so an answer belongs to the oldest unanswered request of its lease.
type keepAliver struct {
	driver *etcdDriver
	lessor pb.LeaseClient // nil: the client has no connection of its own

	mu        sync.Mutex
	stream    *keepAliveStream // nil: none is open
	notOpened int              // attempts to open one in a row that failed
	opening   chan struct{}    // closed when the attempt to open one has ended; nil: there is none
	err       error            // of the last attempt, or of the stream that it opened
	refused   error            // why the last attempts reached no server; nil after one that did
	backOff   backOff
}

// A keepAliveStream is one stream, until it breaks or an answer is overdue.
type keepAliveStream struct {
	pb.Lease_LeaseKeepAliveClient
	cancel context.CancelFunc
	done   chan struct{} // closed when it has ended, for the reason err
	err    error

	sending sync.Mutex
	mu      sync.Mutex
	pending map[int64][]*keepAliveRequest // by lease: not answered, the oldest first
}

type keepAliveRequest struct {
	sent    time.Time
	overdue *time.Timer
	ttl     chan int64 // buffered by one: the answer
	refused bool       // set before the stream is done
}

// errKeepAliveDenied: the stream has ended, because the server refused to keep another lease alive.
var errKeepAliveDenied = errors.New("the keep-alive of another lease was refused")

// errKeepAliveOverdue: the stream is replaced, because another member may answer.
var errKeepAliveOverdue = errors.New("no answer to a keep-alive in time")

// ask keeps a lease alive once. It returns the TTL that the server granted, 0 if the server does
// not know the lease, and when the request was sent. An answer that takes longer than within is
// overdue.
func (k *keepAliver) ask(ctx context.Context, id clientv3.LeaseID, within time.Duration) (sent time.Time, ttl int64, err error) {
	s, err := k.connected(ctx, within)
	if err != nil {
		return time.Time{}, 0, err
	}
	// The caller does not stop this timer: a stream that does not answer is replaced in any case.
	overdue := time.AfterFunc(within, func() { k.end(s, errKeepAliveOverdue) })
	r, err := s.send(int64(id), overdue)
	if err != nil {
		k.end(s, err)
		<-s.done
		return time.Time{}, 0, s.errOf(r) // it has ended for that reason
	}
	select {
	case ttl := <-r.ttl:
		return r.sent, ttl, nil
	case <-s.done:
		return time.Time{}, 0, s.errOf(r)
	case <-ctx.Done():
		return time.Time{}, 0, ctx.Err()
	}
}

// send sends a request. Its time is taken just before, and in the order of sending.
func (s *keepAliveStream) send(id int64, overdue *time.Timer) (*keepAliveRequest, error) {
	s.sending.Lock()
	defer s.sending.Unlock()
	r := &keepAliveRequest{sent: time.Now(), overdue: overdue, ttl: make(chan int64, 1)}
	s.mu.Lock()
	s.pending[id] = append(s.pending[id], r)
	s.mu.Unlock()
	return r, s.Send(&pb.LeaseKeepAliveRequest{ID: id})
}

// connected returns the stream, and waits while one is being opened. It returns the error of an
// attempt that failed meanwhile. The pause after a failure is a fraction of within, so that no
// lease expires because of it. It is longer for a client that authenticates.
func (k *keepAliver) connected(ctx context.Context, within time.Duration) (*keepAliveStream, error) {
	pause := within / 6
	if k.driver.client.Username != "" {
		pause = within / 2
	}
	k.mu.Lock()
	k.backOff.most = min(k.backOff.most, pause)
	if s := k.stream; s != nil {
		k.mu.Unlock()
		return s, nil
	}
	opened := k.startOpening()
	k.mu.Unlock()
	select {
	case <-opened:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stream == nil {
		return nil, k.err
	}
	return k.stream, nil
}

// startOpening opens a stream, unless one is being opened. The caller holds mu.
func (k *keepAliver) startOpening() (opened <-chan struct{}) {
	if k.opening == nil {
		k.opening = make(chan struct{})
		k.driver.work.Go(k.open)
	}
	return k.opening
}

// opened waits while a stream is being opened, but only for a short time.
func (k *keepAliver) opened(ctx context.Context) {
	k.mu.Lock()
	opening := k.opening
	k.mu.Unlock()
	if opening == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, maxOpenTimeout)
	defer cancel()
	select {
	case <-opening:
	case <-ctx.Done():
	}
}

// openTimeout is how long an attempt to open a stream may take: other members may answer if one
// hangs. A client with a user authenticates meanwhile, which takes a busy server some time; giving
// up sooner would waste that work. The timeout doubles with each failure.
const (
	openTimeout     = time.Second
	openUserTimeout = 3 * time.Second
	maxOpenTimeout  = 4 * time.Second
)

func (d *etcdDriver) openTimeout(failures int) time.Duration {
	first := openTimeout
	if d.client.Username != "" {
		first = openUserTimeout
	}
	return min(first<<min(failures, 4), maxOpenTimeout)
}

// open makes one attempt. It does not depend on a caller's context, so the end of that context
// wastes no authentication.
func (k *keepAliver) open() {
	d := k.driver
	k.mu.Lock()
	wait, timeout := k.backOff.wait(), d.openTimeout(k.notOpened)
	k.mu.Unlock()
	var s *keepAliveStream
	var err error
	if sleep(d.ctx, wait) {
		s, err = k.openStream(timeout)
	} else {
		err = d.ctx.Err()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stream, k.err = s, err
	if err == nil || isUnsent(err) {
		k.refused = err
	}
	if s == nil {
		k.backOff.failed()
		k.notOpened++
	} else {
		k.notOpened = 0
		d.work.Go(func() { k.receive(s) })
	}
	close(k.opening)
	k.opening = nil
}

func (k *keepAliver) openStream(timeout time.Duration) (*keepAliveStream, error) {
	ctx, cancel := context.WithCancel(k.driver.ctx)
	late := time.AfterFunc(timeout, cancel)
	stream, err := k.call(ctx)
	if !late.Stop() && err == nil {
		err = errKeepAliveOverdue
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return &keepAliveStream{
		Lease_LeaseKeepAliveClient: stream, cancel: cancel,
		done: make(chan struct{}), pending: map[int64][]*keepAliveRequest{},
	}, nil
}

// call opens a stream. An interceptor of the user may panic, here and in next.
func (k *keepAliver) call(ctx context.Context) (stream pb.Lease_LeaseKeepAliveClient, err error) {
	defer recoverPanic(&err)
	return k.lessor.LeaseKeepAlive(ctx)
}

func (s *keepAliveStream) next() (answer *pb.LeaseKeepAliveResponse, err error) {
	defer recoverPanic(&err)
	return s.Recv()
}

// receive delivers the answers of a stream until it ends. If leases are in use, it opens another
// stream at once: authentication may take longer than the time left when the next keep-alive is
// due.
func (k *keepAliver) receive(s *keepAliveStream) {
	for {
		resp, err := s.next()
		if err != nil {
			if isDenied(err) {
				s.refuseOldest()
			}
			k.end(s, err)
			if k.driver.ctx.Err() == nil && k.driver.needsServer() {
				k.mu.Lock()
				defer k.mu.Unlock()
				if k.stream == nil {
					k.startOpening()
				}
			}
			return
		}
		k.mu.Lock()
		k.backOff.succeeded()
		k.mu.Unlock()
		s.answer(resp)
	}
}

// answer assigns an answer to the oldest unanswered request of its lease.
func (s *keepAliveStream) answer(resp *pb.LeaseKeepAliveResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := s.pending[resp.ID]
	if len(waiting) == 0 {
		return
	}
	waiting[0].overdue.Stop()
	waiting[0].ttl <- resp.TTL
	waiting = waiting[1:]
	if len(waiting) == 0 {
		delete(s.pending, resp.ID)
		return
	}
	s.pending[resp.ID] = waiting
}

// errOf returns why a request was not answered. The stream is done.
func (s *keepAliveStream) errOf(r *keepAliveRequest) error {
	if isDenied(s.err) && !r.refused {
		return errKeepAliveDenied
	}
	return s.err
}

// refuseOldest records which request a server has refused: a refusal ends the stream, and requests are answered in order.
func (s *keepAliveStream) refuseOldest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var oldest *keepAliveRequest
	for _, waiting := range s.pending {
		if oldest == nil || waiting[0].sent.Before(oldest.sent) {
			oldest = waiting[0]
		}
	}
	if oldest != nil {
		oldest.refused = true
	}
}

// unconnected returns why no stream could be opened since the last one, if no server was reached.
func (k *keepAliver) unconnected() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.refused
}

// end closes a stream. The next request opens another one, possibly to another member.
func (k *keepAliver) end(s *keepAliveStream, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-s.done:
		return
	default:
	}
	if k.stream == s {
		k.stream, k.err = nil, err // for the callers that have waited for it
		if isDenied(err) {
			k.err = errKeepAliveDenied // theirs were not sent
		}
		k.backOff.failed()
	}
	s.err = err
	close(s.done)
	s.cancel()
}

// A backOff spaces out failing attempts: each waits about twice as long as the one before.
type backOff struct {
	base, most time.Duration
	failures   int
	retryAt    time.Time
}

func (b *backOff) succeeded() { b.failures = 0 }

func (b *backOff) failed() {
	pause := min(b.base<<min(b.failures, 16), b.most)
	b.failures++
	b.retryAt = time.Now().Add(jitter(pause))
}

// wait returns how long the next attempt must wait.
func (b *backOff) wait() time.Duration { return time.Until(b.retryAt) }

// jitter returns a random time between half of d and one and a half times d, so that processes that
// fail together do not retry together.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }
