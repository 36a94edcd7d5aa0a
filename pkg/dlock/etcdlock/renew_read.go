package etcdlock

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

const (
	maxOps   = 128  // operations that a server accepts in one transaction
	maxReads = 1024 // claims that are read in one transaction, unless a queue has more
	readers  = 8    // transactions that run at a time
	// Many claims that wait for one lock are read together, unless most of the queue is of other processes.
	queueFrom  = 8
	maxForeign = 4
)

// A reading is the part of a transaction that reads one claim, or the queue in which claims wait.
type reading struct {
	visits []*visit
	ops    []clientv3.Op
	queue  string // the prefix of the queue, if it is read as a whole
}

// readings returns what must be read for the claims.
func (r *renewal) readings(visits []*visit) (all []reading) {
	queues := map[string][]*visit{}
	for _, v := range visits {
		if v.kind.mode == driver.Exclusive && v.was.phase == driver.Queued && v.was.rev != 0 && !v.unsure {
			queues[v.key] = append(queues[v.key], v)
		} else {
			all = append(all, r.alone(v))
		}
	}
	for key, q := range queues {
		last := slices.MaxFunc(q, func(a, b *visit) int { return cmp.Compare(a.was.ahead, b.was.ahead) })
		limit := maxForeign * len(q)
		if len(q) < queueFrom || last.was.ahead > limit {
			for _, v := range q {
				all = append(all, r.alone(v))
			}
			continue
		}
		prefix := r.driver.prefixOf(key)
		read := clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(int64(limit+near)))
		all = append(all, reading{visits: q, ops: []clientv3.Op{read}, queue: prefix})
	}
	return all
}

// alone returns the reads for one claim.
func (r *renewal) alone(v *visit) reading {
	return reading{visits: []*visit{v}, ops: v.ops(r.driver)}
}

// ops returns the reads for a claim.
func (v *visit) ops(d *etcdDriver) []clientv3.Op {
	own := clientv3.OpGet(v.own, clientv3.WithKeysOnly())
	if v.unsure {
		own = clientv3.OpGet(v.own) // with its lease, which keys alone do not come with
	}
	switch {
	case v.was.phase == driver.Held || v.was.rev == 0:
		return []clientv3.Op{own}
	case v.near:
		return append([]clientv3.Op{own}, v.kind.reads(d.prefixOf(v.key), v.was.rev, false)...)
	case v.was.before == "":
		return []clientv3.Op{own}
	}
	return []clientv3.Op{own, clientv3.OpGet(v.was.before, clientv3.WithKeysOnly())}
}

// read reads all claims, many in one transaction. Claims that were denied are read apart from the others, and in the order
// of their keys, in which those that a user may use are neighbors.
func (r *renewal) read(ctx context.Context, visits []*visit) {
	var others, denied []*visit
	for _, v := range visits {
		if v.denied {
			denied = append(denied, v)
		} else {
			others = append(others, v)
		}
	}
	slices.SortFunc(denied, func(a, b *visit) int { return cmp.Compare(a.own, b.own) })
	r.readAll(ctx, append(batchesOf(r.readings(others)), batchesOf(r.readings(denied))...))
}

// batchesOf returns what is read in one transaction each.
func batchesOf(all []reading) (batches [][]reading) {
	for len(all) > 0 {
		n, ops, claims := 0, 0, 0
		for n < len(all) && (n == 0 || (ops+len(all[n].ops) <= maxOps && claims+len(all[n].visits) <= maxReads)) {
			ops += len(all[n].ops)
			claims += len(all[n].visits)
			n++
		}
		batches = append(batches, all[:n])
		all = all[n:]
	}
	return batches
}

// readAll reads batches, and then the parts of those that have to be read in parts.
func (r *renewal) readAll(ctx context.Context, batches [][]reading) {
	turn := make(chan struct{}, readers)
	for len(batches) > 0 {
		var wg sync.WaitGroup
		parts := make([][][]reading, len(batches))
		for i, batch := range batches {
			turn <- struct{}{}
			wg.Go(func() {
				defer func() { <-turn }()
				var err error
				parts[i], err = r.readBatch(ctx, batch)
				for _, read := range batch {
					for _, v := range read.visits {
						v.err = cmp.Or(v.err, err)
					}
				}
			})
		}
		wg.Wait()
		batches = slices.Concat(parts...)
		if r.again.Load() {
			for _, batch := range r.left {
				batches = append(batches, halves(batch)...)
			}
			r.left = nil
		}
	}
}

// readBatch returns what has to be read again in parts, or why no claim of a batch was read. A claim that needs another
// look fails alone.
func (r *renewal) readBatch(ctx context.Context, batch []reading) (parts [][]reading, err error) {
	defer recoverPanic(&err)
	var ops []clientv3.Op
	for _, read := range batch {
		ops = append(ops, read.ops...)
	}
	resp, err := r.driver.client.Txn(ctx).Then(ops...).Commit()
	switch {
	case err == nil:
	case strings.Contains(err.Error(), tooLargeToReceive) && slices.ContainsFunc(batch, func(q reading) bool { return q.queue != "" }):
		return batchesOf(r.apart(batch)), nil
	case isDenied(err):
		if parts := r.split(batch); parts != nil {
			return parts, nil
		}
		return nil, classify(err)
	default:
		return nil, classify(err)
	}
	if batch[0].visits[0].denied {
		r.again.Store(true)
	}
	answers := resp.Responses
	var again []reading
	for _, read := range batch {
		own := answers[:len(read.ops)]
		answers = answers[len(read.ops):]
		r.driver.setDenied(read, false)
		if read.queue != "" {
			if !read.place(own[0].GetResponseRange(), resp.Header.Revision) {
				again = append(again, r.apart([]reading{read})...)
			}
			continue
		}
		v := read.visits[0]
		v.err = r.take(ctx, v, own, resp.Header.Revision)
		v.answered = v.err == nil
	}
	return batchesOf(again), nil
}

// split returns the halves of a batch that was refused because the user may not read one of its keys, or nil if the batch
// stays unread. A claim that was not denied before is read alone in the end: this takes two transactions for each that is
// denied, but only once. Later renewals read those apart, and split them a few times only, unless one can be read: perhaps
// all are still denied.
func (r *renewal) split(batch []reading) [][]reading {
	if len(batch) == 1 {
		r.driver.setDenied(batch[0], true)
		return nil
	}
	if batch[0].visits[0].denied && !r.again.Load() && r.splits.Add(1) > maxSplits {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.left = append(r.left, batch)
		return nil
	}
	return halves(batch)
}

func halves(batch []reading) [][]reading {
	slices.SortFunc(batch, func(a, b reading) int { return cmp.Compare(a.visits[0].own, b.visits[0].own) })
	return [][]reading{batch[:len(batch)/2], batch[len(batch)/2:]}
}

// maxSplits is how often a renewal splits batches of claims that were denied before, if none of them is read.
const maxSplits = 16

// setDenied records whether the user may read the keys of claims.
func (d *etcdDriver) setDenied(read reading, denied bool) {
	if read.visits[0].denied == denied {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, v := range read.visits {
		v.claim.denied = denied
	}
}

// tooLargeToReceive is part of gRPC's error for an answer that exceeds the limit of the client.
const tooLargeToReceive = "received message larger than max"

// apart returns the reads for each claim of a batch.
func (r *renewal) apart(batch []reading) (all []reading) {
	for _, read := range batch {
		for _, v := range read.visits {
			all = append(all, r.alone(v))
		}
	}
	return all
}

// place finds the claims in their queue. It reports false if the answer is not enough: it is not complete, or has keys
// of which keys alone do not show whether they are claims.
func (q reading) place(resp *pb.RangeResponse, rev int64) bool {
	if resp.More {
		return false
	}
	claims, sure := sift(q.queue, resp.Kvs, false)
	if !sure {
		return false
	}
	slices.SortFunc(claims, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) })
	places := make([]position, len(q.visits))
	for k, v := range q.visits {
		i, found := slices.BinarySearchFunc(claims, v.was.rev, func(kv *mvccpb.KeyValue, rev int64) int { return cmp.Compare(kv.CreateRevision, rev) })
		switch {
		case !found:
			places[k] = position{phase: driver.Gone}
		case string(claims[i].Key) != v.own: // another client has stored several claims in one transaction
			return false
		case i == 0:
			places[k] = position{phase: driver.Held, rev: v.was.rev, asOf: rev}
		default:
			places[k] = position{phase: driver.Queued, rev: v.was.rev, before: string(claims[i-1].Key), beforeRev: claims[i-1].CreateRevision, ahead: i, asOf: rev}
		}
	}
	for k, v := range q.visits {
		v.is, v.answered = places[k], true
	}
	return true
}

// take reads the answer for one claim, and looks again if the answer is not enough.
func (r *renewal) take(ctx context.Context, v *visit, answers []*pb.ResponseOp, rev int64) error {
	d := r.driver
	own := answers[0].GetResponseRange().Kvs
	if len(own) == 0 || (v.was.rev != 0 && own[0].CreateRevision != v.was.rev) {
		v.is = position{phase: driver.Gone}
		return nil
	}
	v.attached = own[0].Lease
	since := own[0].CreateRevision
	var err error
	switch {
	case v.was.phase == driver.Held:
		v.is = v.was
		return nil
	case len(answers) == 1 && v.was.phase == driver.Queued && !v.near: // a permit behind another waiter of this driver
		v.is = v.was
		return nil
	case len(answers) == 1:
	case v.near:
		var sure bool
		v.is, sure = v.kind.place(v.own, d.prefixOf(v.key), since, answers[1:], false)
		if sure {
			v.is.asOf = rev
			return nil
		}
	default:
		if b := answers[1].GetResponseRange().Kvs; len(b) > 0 && b[0].CreateRevision == v.was.beforeRev {
			v.is = v.was
			v.is.asOf = rev
			return nil
		}
	}
	v.is, err = d.look(ctx, v.claim, since)
	return err
}
