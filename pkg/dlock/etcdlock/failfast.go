package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// The client's own calls wait for a connection until their context ends and then return the
// context's error instead of the cause, so it is lost that nothing was sent, and why. The calls for
// a new claim therefore use gRPC's default behavior, which fails if no member can be reached.

// failFast returns the client's KV with such transactions.
func failFast(client *clientv3.Client) clientv3.KV {
	if client.ActiveConnection() == nil || !sameType(client.KV, clientv3.NewKV(client)) { // inside the server's process, or wrapped
		return client.KV
	}
	return clientv3.NewKVFromKVClient(failFastKV{clientv3.RetryKVClient(client)}, client)
}

type failFastKV struct{ pb.KVClient }

func (k failFastKV) Txn(ctx context.Context, in *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	t := txnCall{to: peer.Peer{Addr: nowhere{}}}
	resp, err := k.KVClient.Txn(ctx, in, append(opts[:len(opts):len(opts)], grpc.WaitForReady(false), grpc.Peer(&t.to), grpc.OnFinish(t.finish))...)
	return resp, t.judge(ctx, err)
}

// A txnCall records what gRPC reports about a transaction, however often the client repeats it.
//
// A message is written only to a stream. When an attempt ends, gRPC sets the peer of its last stream before it calls OnFinish,
// and an attempt without a stream sets none. If OnFinish was not called, the options did not reach gRPC, or an interceptor
// returned before gRPC did, so more may follow.
type txnCall struct {
	to       peer.Peer // of the attempt in progress
	attempts atomic.Int32
	reached  atomic.Int32 // attempts that had a stream
	last     atomic.Bool  // the last attempt had one
	result   atomic.Pointer[status.Status]
}

// nowhere is the initial address, before gRPC sets a peer. A peer that was set may have no address.
type nowhere struct{}

func (nowhere) Network() string { return "" }
func (nowhere) String() string  { return "" }

func (t *txnCall) finish(err error) {
	had := t.to.Addr != nowhere{}
	t.to.Addr = nowhere{}
	if refusesToken(err) {
		return
	}
	t.result.Store(status.Convert(err))
	if had {
		t.reached.Add(1)
	}
	t.last.Store(had)
	t.attempts.Add(1)
}

// refusesToken reports whether a server has refused an attempt because of the token of its user: the client gets another one and
// repeats it, so that such an attempt says nothing about the transaction.
func refusesToken(err error) bool {
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision) || errors.Is(err, rpctypes.ErrUserEmpty)
}

// judge marks the error of a transaction that reached no server. The error covers only the last attempt, and an interceptor may have
// made another one of it: an earlier attempt may have been carried out.
func (t *txnCall) judge(ctx context.Context, err error) error {
	ended, reached := t.attempts.Load() > 0, t.reached.Load()
	if r := t.result.Load(); t.last.Load() && r.Message() == status.Convert(err).Message() {
		reached--
	}
	switch {
	case err == nil:
		return nil
	case reached > 0:
		return fmt.Errorf("an earlier attempt was not answered: %s", err.Error())
	case isUnsent(err), ended && !t.last.Load() && ctx.Err() != nil && saysTimeUp(err):
		return &unsentError{err}
	}
	return err
}

// An unsentError keeps the client from replacing the error of a call that was not sent with the
// error of its context: it has no status that the client could read.
type unsentError struct{ cause error }

func (u *unsentError) Error() string { return u.cause.Error() }

// requestLease asks for a lease once. Client.Grant would retry.
func (d *etcdDriver) requestLease(ctx context.Context, secs int64) (*clientv3.LeaseGrantResponse, error) {
	conn := d.client.ActiveConnection()
	if conn == nil {
		return d.client.Grant(ctx, secs)
	}
	resp, err := pb.NewLeaseClient(conn).LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: secs})
	if err != nil {
		return nil, err
	}
	return &clientv3.LeaseGrantResponse{ResponseHeader: resp.GetHeader(), ID: clientv3.LeaseID(resp.ID), TTL: resp.TTL, Error: resp.Error}, nil
}

// sameType detects a client whose parts were replaced, for example by clientv3/namespace. Such a
// client must be called through those parts.
func sameType(is, plain any) bool { return reflect.TypeOf(is) == reflect.TypeOf(plain) }
