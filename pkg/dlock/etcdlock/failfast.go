package etcdlock

import (
	"context"
	"fmt"
	"reflect"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
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
// A message is written only to a stream. When a call ends, gRPC sets the peer of the call's last
// stream before it calls OnFinish. An attempt without a stream leaves the peer of an earlier
// attempt in place. If OnFinish was not called, the options did not reach gRPC, or an interceptor
// returned before gRPC did, so the peer may be set later.
type txnCall struct {
	to    peer.Peer
	ended atomic.Bool
}

// nowhere is the initial address, before gRPC sets a peer. A peer that was set may have no address.
type nowhere struct{}

func (nowhere) Network() string { return "" }
func (nowhere) String() string  { return "" }

func (t *txnCall) finish(error) { t.ended.Store(true) }

// judge marks the error of a transaction that reached no server. The text of an error covers only
// the last attempt: an earlier attempt may have been carried out.
func (t *txnCall) judge(ctx context.Context, err error) error {
	ended := t.ended.Load()
	reached := ended && t.to.Addr != nowhere{}
	switch {
	case isUnsent(err) && reached:
		return fmt.Errorf("an earlier attempt was not answered: %s", err.Error())
	case isUnsent(err), ended && !reached && ctx.Err() != nil && saysTimeUp(err):
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
