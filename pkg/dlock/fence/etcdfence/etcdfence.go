// Package etcdfence fences writes to etcd: one transaction compares the fencing token of the writer
// with the greatest token that a key has seen, and writes only if it is not smaller.
//
// It is for data in another cluster than the locks, or for locks that are not in etcd. If the locks
// are in the same cluster, etcdlock.IsOwner is better: the transaction then checks that the lock is
// still held, and no token has to be stored.
package etcdfence

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/fence"
)

// width is that of the greatest token in decimal. All values have it, so that their order as bytes,
// by which etcd compares, is that of the numbers.
const width = 19

// least is the smallest value that may be a token. Smaller ones are damaged.
var least = strings.Repeat("0", width)

var format = regexp.MustCompile(`^[0-9]{19}$`)

// Commit runs the operations in one transaction on behalf of the holder with this token, and
// records the token in the fence key. If the fence key holds a greater token, nothing is written
// and the error is a *fence.StaleError. Without operations, Commit only raises the fence, which is
// the first step of a holder that reads before it writes.
//
// The answer has the responses to the operations, in their order. An operation can itself be a
// transaction with comparisons (clientv3.OpTxn). No operation may write the fence key, also not by a
// prefix or a range: etcd refuses that. The fence counts as two operations for the limit of etcd
// (--max-txn-ops).
//
// A fence key that holds no token is refused with fence.ErrDamaged, as far as etcd can tell: it
// compares bytes, so a value between nineteen zeros and the token is taken for a smaller token.
func Commit(ctx context.Context, kv clientv3.KV, fenceKey string, token int64, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	err := validate(kv, fenceKey, token)
	if err != nil {
		return nil, err
	}
	// A comparison with the value of a missing key is false. So the other branch is the one for a
	// first token as well as for one that is great enough.
	text := fmt.Sprintf("%0*d", width, token)
	value, get := clientv3.Value(fenceKey), []clientv3.Op{clientv3.OpGet(fenceKey)}
	accepted := append([]clientv3.Op{clientv3.OpPut(fenceKey, text)}, ops...)
	resp, err := kv.Txn(ctx).
		If(clientv3.Compare(value, ">", text)).
		Then(get...).
		Else(clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(value, "<", least)}, get, accepted)).
		Commit()
	if err != nil {
		return nil, fmt.Errorf("fence %q: %w", fenceKey, err)
	}
	if resp.Succeeded {
		return nil, refusal(fenceKey, token, resp.Responses)
	}
	inner := resp.Responses[0].GetResponseTxn()
	if inner.Succeeded {
		return nil, refusal(fenceKey, token, inner.Responses)
	}
	resp.Succeeded = true // of the caller's operations
	resp.Responses = inner.Responses[1:]
	return resp, nil
}

func validate(kv clientv3.KV, fenceKey string, token int64) error {
	if kv == nil {
		return &fence.InputError{Argument: "kv", Reason: "is nil"}
	}
	if fenceKey == "" {
		return &fence.InputError{Argument: "fence key", Reason: "is empty"}
	}
	return fence.ValidateToken(token)
}

// refusal returns why a transaction was refused.
func refusal(fenceKey string, token int64, responses []*etcdserverpb.ResponseOp) error {
	kvs := responses[0].GetResponseRange().GetKvs()
	if len(kvs) != 1 || !format.Match(kvs[0].Value) {
		return fmt.Errorf("fence %q: %w of %d digits", fenceKey, fence.ErrDamaged, width)
	}
	seen, err := strconv.ParseInt(string(kvs[0].Value), 10, 64)
	if err != nil {
		return fmt.Errorf("fence %q: %w: %w", fenceKey, fence.ErrDamaged, err)
	}
	return &fence.StaleError{Resource: fenceKey, Token: token, Seen: seen}
}
