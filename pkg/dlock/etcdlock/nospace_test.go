package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
)

// The transactions with which a server reaches its quota are carried out and still refused. A
// refused claim is not stored when the call returns.
func TestRefusedForSpaceIsNotStored(t *testing.T) {
	t.Parallel()
	refused := 0
	for range testenv.UnderStress(2, 8) {
		server := testenv.Etcd(t, "--quota-backend-bytes", "3000000")
		direct := dial(t, server.Endpoint())
		names := lockUntilFull(t, clientAt(t, server.Endpoint(), dlock.Config{}), direct)
		refused += len(names)
		for _, name := range names {
			if len(storedClaims(t, direct, name)) > 0 {
				t.Errorf("%s was refused, and is stored", name)
			}
		}
	}
	if refused == 0 {
		t.Error("nothing was refused: the fault did not happen")
	}
}

// lockUntilFull locks new names, up to three at a time, until the server has no more space, and returns
// the names that were refused.
func lockUntilFull(t *testing.T, c *dlock.Client, direct *clientv3.Client) (refused []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	stall := sharedStall{writes: &etcdlock.Writes{}} // the server has a lot to do
	value := strings.Repeat("x", 20_000)
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				err := stall.writes.Record(func() error {
					_, err := direct.Put(ctx, fmt.Sprint("fill", w, " ", i), value)
					return err
				})
				if err != nil {
					return
				}
			}
		})
	}
	for w := range 32 {
		wg.Go(func() {
			for i := 0; ; i++ {
				names := []string{fmt.Sprintf("k%d-%d", w, i), fmt.Sprintf("l%d-%d", w, i), fmt.Sprintf("m%d-%d", w, i)}[:1+w%3]
				began := time.Now()
				all, err := c.AcquireAll(ctx, names, dlock.WithWait(0))
				if err == nil {
					_ = all.Unlock(context.Background())
					continue
				}
				if !errors.Is(err, dlock.ErrUnknownOutcome) { // then nothing of it may be stored
					mu.Lock()
					refused = append(refused, names...)
					mu.Unlock()
				}
				if errors.Is(err, etcdlock.ErrNoSpace) {
					return
				}
				if !isUnanswered(err) || !stall.excuses(t, began, giveUpAfter) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return refused
}

// fill makes a server refuse to store anything until the alarm is cleared.
func fill(t *testing.T, direct *clientv3.Client) {
	t.Helper()
	_, err := pb.NewMaintenanceClient(direct.ActiveConnection()).Alarm(t.Context(), &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NOSPACE})
	check(t, err)
}

// A release without space for its tombstone still deletes the claim. If the next attempt does not
// find the claim, that is not a loss.
func TestUnlockWithoutSpaceIsNoLoss(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct, p := dial(t, server.Endpoint()), testenv.Proxy(t, server.Addr())
	c := locksOn(t, dial(t, urlOf(p)), dlock.Config{})
	warm(t, c)
	p.DropGRPC(txnPath, 1) // so that the release needs a tombstone
	g := acquire(t, c, "k", dlock.WithTTL(time.Hour))
	fill(t, direct)
	done := make(chan error, 1)
	go func() { done <- g.Unlock(t.Context()) }()
	testenv.Eventually(t, time.Minute, "the claim is deleted", func() bool { return len(storedClaims(t, direct, "k")) == 0 })
	_, err := direct.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	check(t, err)
	if err := <-done; errors.Is(err, dlock.ErrOwnershipLost) {
		t.Errorf("a lock that was held until it was unlocked: %v", err)
	}
}

// A deleter is a client whose delete-only transactions arrive when they are let go. Their callers
// get no answer until the end of their context or, if it is deaf, until the transactions are let
// go.
type deleter struct {
	*clientv3.Client
	letGo         func()
	held, arrived chan struct{}
}

func dialDeleter(t *testing.T, endpoint string, deaf bool) deleter {
	t.Helper()
	gate := make(chan struct{})
	d := deleter{letGo: sync.OnceFunc(func() { close(gate) }), held: make(chan struct{}, 64), arrived: make(chan struct{}, 64)}
	hold := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		txn, ok := req.(*pb.TxnRequest)
		if ok && len(txn.Success) == 1 && txn.Success[0].GetRequestTxn() != nil {
			txn = txn.Success[0].GetRequestTxn()
		}
		if !ok || len(txn.Success) != 1 || txn.Success[0].GetRequestDeleteRange() == nil {
			return call(ctx, method, req, reply, cc, opts...)
		}
		go func() {
			<-gate
			_ = call(context.WithoutCancel(ctx), method, req, &pb.TxnResponse{}, cc) // the options write to the caller's variables
			d.arrived <- struct{}{}
		}()
		d.held <- struct{}{}
		if deaf {
			<-gate
			return status.Error(codes.Unavailable, "let go")
		}
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(hold)},
	})
	check(t, err)
	t.Cleanup(func() { _ = client.Close() })
	d.Client = client
	return d
}

// awaitDelete waits until a delete is held, or has arrived.
func awaitDelete(t *testing.T, deletes <-chan struct{}) {
	t.Helper()
	select {
	case <-deletes:
	case <-time.After(patience):
		t.Fatalf("no delete within %v", patience)
	}
}

// A call whose claim is taken back returns when its context ends, without waiting for the delete.
func TestTakingBackHeedsTheContext(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	client := dialDeleter(t, server.Endpoint(), true)
	defer client.letGo()
	d := openDriver(t, client.Client)
	submit(t, d, refOf("warm", 9)) // which makes the lease
	fill(t, direct)
	ctx, cancel := context.WithCancel(t.Context())
	returned := make(chan error, 1)
	go func() {
		_, err := d.Acquire(ctx, driver.Request{Ref: refOf("k", 1)})
		returned <- err
	}()
	awaitDelete(t, client.held)
	cancel()
	select {
	case err := <-returned:
		if err == nil {
			t.Error("a server without room has stored a claim")
		}
	case <-time.After(time.Minute):
		t.Error("the call goes on after its context has ended")
	}
	_, err := direct.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	check(t, err)
}

// The delete of a claim that would not wait arrives late, after the same claim was submitted once
// more: it takes no lock away.
func TestLateDeleteSparesTheNextGrant(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	client := dialDeleter(t, server.Endpoint(), false)
	defer client.letGo()
	d, other := openDriver(t, client.Client), openDriver(t, dial(t, server.Endpoint()))
	ref := refOf("k", 1)
	holder := newMutex(t, server.Endpoint(), "k", 60) // its key alone does not show whether it is a claim
	check(t, holder.Lock(t.Context()))
	short, cancel := context.WithTimeout(t.Context(), patience) // for a driver that sends no delete
	defer cancel()
	go func() {
		select {
		case <-client.held:
		case <-short.Done():
		}
		cancel()
	}()
	if st, err := d.Acquire(short, driver.Request{Ref: ref}); err == nil || driver.ClassOf(err) != driver.Ambiguous {
		t.Fatalf("the delete was held up, and Acquire has %v, %v", st, err)
	}
	if errors.Is(short.Err(), context.DeadlineExceeded) {
		t.Fatal("no delete was sent")
	}
	check(t, holder.Unlock(t.Context()))
	again, err := d.Acquire(t.Context(), driver.Request{Ref: ref})
	check(t, err)
	client.letGo()
	awaitDelete(t, client.arrived)
	next, err := other.Acquire(t.Context(), driver.Request{Ref: refOf("k", 3)})
	check(t, err)
	if again.Phase == driver.Held && next.Phase == driver.Held {
		t.Errorf("two hold the lock, with tokens %d and %d", again.Token, next.Token)
	}
}
