package etcdlock

import (
	"context"
	"reflect"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// The client's own calls wait for a connection until their context ends, and then say so
// in place of the cause: that nothing was sent, and why, is lost. What a new claim needs
// is therefore called in gRPC's own way, which fails when no member can be reached.

// failFast is the client's KV with such transactions.
func failFast(client *clientv3.Client) clientv3.KV {
	if client.ActiveConnection() == nil || !sameType(client.KV, clientv3.NewKV(client)) { // inside the server's process, or wrapped
		return client.KV
	}
	return clientv3.NewKVFromKVClient(failFastKV{clientv3.RetryKVClient(client)}, client)
}

type failFastKV struct{ pb.KVClient }

func (k failFastKV) Txn(ctx context.Context, in *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	resp, err := k.KVClient.Txn(ctx, in, append(opts[:len(opts):len(opts)], grpc.WaitForReady(false))...)
	if isUnsent(err) {
		err = &unsentError{err}
	}
	return resp, err
}

// An unsentError keeps the client from replacing the error of a call that was not sent by
// that of its context: it has no status that the client could read.
type unsentError struct{ cause error }

func (u *unsentError) Error() string { return u.cause.Error() }

// requestLease asks for a lease once; Client.Grant repeats itself.
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

// sameType: a client whose parts were replaced, as by clientv3/namespace, is to be asked
// through them.
func sameType(is, plain any) bool { return reflect.TypeOf(is) == reflect.TypeOf(plain) }
