package redislock

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// A trip is one round trip: commands that are sent to one server in one pipeline.
type trip struct {
	client redis.UniversalClient
	asking bool  // each command is preceded by ASKING: the slot is moving to this server
	cmds   []int // indexes into the commands of the pipeline
}

// maxTrips limits how often a command that was not executed is sent: to the master, to the
// master that its slot has moved to, and to each of them with the full script.
const maxTrips = 4

// pipeline sends the commands of one master together; each then has its own error. Commands whose
// script the server did not know are sent again. With MinReplicas, commands whose slot has moved
// are sent again too, and the result says for each command why too few replicas have confirmed it.
func (d *redisDriver) pipeline(ctx context.Context, lock string, cmds []*command) (unconfirmed []error) {
	unconfirmed = make([]error, len(cmds))
	client, err := d.pipelineClient(ctx, lock)
	if err != nil {
		for _, c := range cmds {
			c.SetErr(err)
		}
		return unconfirmed
	}
	first := trip{client: client}
	for i := range cmds {
		first.cmds = append(first.cmds, i)
	}
	todo := []trip{first}
	for n := 0; n < maxTrips && len(todo) > 0; n++ {
		var again []trip
		for _, t := range todo {
			err := d.exec(ctx, t, cmds)
			for _, i := range t.cmds {
				unconfirmed[i] = err
			}
			again = append(again, d.retryTrips(ctx, t, cmds)...)
		}
		todo = again
	}
	return unconfirmed
}

// pipelineClient returns the client for the pipeline of a lock. WAIT covers the writes of its own
// connection, so it is sent directly to the master.
func (d *redisDriver) pipelineClient(ctx context.Context, lock string) (redis.UniversalClient, error) {
	switch {
	case d.settings.replicas == 0:
		return d.client, nil
	case d.cluster == nil:
		return d.replicaClient, nil
	}
	master, err := d.cluster.MasterForKey(ctx, lock)
	if err != nil {
		return nil, err
	}
	return d.forReplicas(master), nil
}

// forReplicas returns a client of a master whose timeout allows waiting for its replicas.
func (d *redisDriver) forReplicas(master *redis.Client) redis.UniversalClient {
	return master.WithTimeout(tripTimeout + d.settings.replicaWait)
}

// exec makes one trip. It returns an error if WAIT failed or too few replicas have confirmed.
func (d *redisDriver) exec(ctx context.Context, t trip, cmds []*command) error {
	ctx, cancel := context.WithTimeout(ctx, tripTimeout+d.settings.replicaWait)
	defer cancel()
	pipe := t.client.Pipeline()
	for _, i := range t.cmds {
		if t.asking {
			_ = pipe.Process(ctx, redis.NewCmd(ctx, "asking"))
		}
		_ = pipe.Process(ctx, cmds[i])
	}
	if d.settings.replicas == 0 {
		redisnode.Execute(ctx, pipe)
		return nil
	}
	wait := redis.NewIntCmd(ctx, "wait", d.settings.replicas, millis(d.replicaWait(ctx)))
	_ = pipe.Process(ctx, wait)
	redisnode.Execute(ctx, pipe)
	n, err := wait.Result()
	if err == nil && int(n) < d.settings.replicas {
		err = driver.Classify(ErrTooFewReplicas, driver.Transient)
	}
	return err
}

// replicaWait returns how long the server is to wait for replicas. It answers before the call ends, so that
// the caller learns that there were too few. WAIT with 0 would wait forever.
func (d *redisDriver) replicaWait(ctx context.Context) time.Duration {
	wait := d.settings.replicaWait
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		wait = min(wait, left-min(left/4, tripTimeout))
	}
	return max(wait, time.Millisecond)
}

// retryTrips returns the trips for the commands that were not executed.
func (d *redisDriver) retryTrips(ctx context.Context, t trip, cmds []*command) (trips []trip) {
	unknown := trip{client: t.client, asking: t.asking}
	moved := map[redirect][]int{}
	for _, i := range t.cmds {
		err := cmds[i].Err()
		if redisnode.IsNoScript(err) {
			cmds[i] = cmds[i].Whole(ctx)
			unknown.cmds = append(unknown.cmds, i)
			continue
		}
		to, ok := d.redirected(err)
		if ok {
			moved[to] = append(moved[to], i)
		}
	}
	if len(unknown.cmds) > 0 {
		trips = append(trips, unknown)
	}
	for to, places := range moved {
		node := d.follow(ctx, to, lockOf(cmds[places[0]]))
		if node != nil {
			for _, i := range places {
				cmds[i].Rewind()
			}
			trips = append(trips, trip{client: d.forReplicas(node), asking: to.ask, cmds: places})
		}
	}
	return trips
}

// A redirect names the master to which a server has redirected a command. addr is "" if the server
// is no longer a master and names no other.
type redirect struct {
	addr string
	ask  bool
}

// redirected reads an error that says that another master has the key. Without MinReplicas,
// go-redis follows redirects itself.
func (d *redisDriver) redirected(err error) (to redirect, ok bool) {
	if err == nil || d.cluster == nil || d.settings.replicas == 0 {
		return to, false
	}
	to.addr, ok = redis.IsMovedError(err)
	if ok {
		return to, true
	}
	to.addr, to.ask = redis.IsAskError(err)
	return to, to.ask || redis.IsReadOnlyError(err)
}

// follow reloads the state of the cluster and returns the master that the redirect names, or nil if
// it is not known yet.
func (d *redisDriver) follow(ctx context.Context, to redirect, lock string) *redis.Client {
	ctx, cancel := context.WithTimeout(ctx, tripTimeout)
	defer cancel()
	node := d.masterAt(ctx, to.addr)
	if node != nil || to.addr != "" {
		return node
	}
	node, _ = d.cluster.MasterForKey(ctx, lock)
	return node
}

// replicated is a reply, and an error if too few replicas have confirmed it.
type replicated struct {
	reply       any
	unconfirmed error
}

// callReplicated runs one command and waits for the replicas.
func (d *redisDriver) callReplicated(ctx context.Context, lock string, cmd *command) (replicated, error) {
	err := ctx.Err()
	if err != nil {
		return replicated{}, driver.Classify(err, driver.Transient) // nothing was sent
	}
	cmds := []*command{cmd}
	unconfirmed := d.pipeline(ctx, lock, cmds)
	err = cmds[0].Err()
	if !cmds[0].Answered(err) {
		left := d.cluster != nil && errors.Is(err, redis.ErrClosed)
		if cmds[0].Withdraw() {
			err = d.explain(err)
		}
		err = cmds[0].Classify(err)
		if d.cluster != nil {
			d.cluster.ReloadState(ctx) // otherwise later calls would fail in the same way
		}
		if left { // go-redis closes the client of a master that has left
			err = driver.Classify(err, driver.Transient)
		}
		return replicated{}, err
	}
	return replicated{cmds[0].Val(), unconfirmed[0]}, nil
}
