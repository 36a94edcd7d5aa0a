package redislock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// maxBatchedLocks is how many locks one script acquires or releases: the server does nothing else meanwhile.
const maxBatchedLocks = 128

// CanBatch reports whether one script can have all keys. It cannot if plain clients or replicas need more than that.
func (d *redisDriver) CanBatch(keys []string) bool {
	if len(keys) > maxBatchedLocks || d.settings.gap > 0 || d.settings.replicas > 0 {
		return false
	}
	if !d.bySlot.Load() {
		return true
	}
	for _, key := range keys {
		if slotOf(d.prefix+key) != slotOf(d.prefix+keys[0]) {
			return false
		}
	}
	return true
}

// AcquireBatch submits all claims with one script.
func (d *redisDriver) AcquireBatch(ctx context.Context, rs []driver.Request) ([]driver.State, error) {
	n := len(rs)
	keys, infos := make([]string, 4*n), make([]any, n)
	sameInfo, sameCounter := true, true // then they are sent once
	var ids strings.Builder
	var first names
	for i := range rs {
		r := &rs[i]
		of, err := d.namesOf(r.Key)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			first = of
		}
		keys[i], keys[n+i], keys[2*n+i], keys[3*n+i] = of.lock, of.queue, of.tombstone(r.ID), of.counter
		ids.WriteString(r.ID)
		sameInfo, sameCounter = sameInfo && r.Info == rs[0].Info, sameCounter && of.counter == first.counter
	}
	if sameCounter {
		keys = keys[:3*n+1]
	}
	if sameInfo {
		infos = infos[:1]
	}
	for i := range infos {
		infos[i] = d.channelAndInfo(keys[i], rs[i].Info, false)
	}
	sent := time.Now()
	reply, err := d.call(ctx, acquireBatchScript.Command(ctx, keys, append([]any{ids.String(), millis(rs[0].TTL)}, infos...)...), mayInline)
	if err != nil {
		d.isHiddenCluster(first, err)
		return nil, err
	}
	tokens, err := parseBatch(reply, "held", rs[0].ID, n)
	if err != nil {
		return nil, err
	}
	states := make([]driver.State, n)
	for i := range states {
		states[i].Phase = driver.Gone
		if i < len(tokens) {
			states[i] = driver.State{Phase: driver.Held, Token: tokens[i], Until: sent.Add(rs[i].TTL)}
		}
	}
	d.warnOnce()
	return states, nil
}

// ReleaseBatch releases with one script what no claim waits for. A claim that needs a tombstone is left.
func (d *redisDriver) ReleaseBatch(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	states := make([]driver.State, len(refs))
	keys, args := make([]string, 0, len(refs)), make([]any, 0, len(refs))
	asked := make([]int, 0, len(refs)) // indexes into refs
	for i, r := range refs {
		if !r.Unanswered {
			keys, args, asked = append(keys, d.prefix+r.Key), append(args, r.ID+unmarked), append(asked, i)
		}
	}
	if len(asked) == 0 {
		return states, nil
	}
	reply, err := d.call(ctx, releaseBatchScript.Command(ctx, keys, args...), mayInline)
	if err != nil {
		return nil, err
	}
	released, err := parseBatch(reply, "released", refs[asked[0]].ID, len(asked))
	if err == nil && len(released) != len(asked) {
		err = fmt.Errorf("%w: %d answers to %d releases", ErrUnexpectedReply, len(released), len(asked))
	}
	if err != nil {
		return nil, err
	}
	for j, i := range asked {
		if released[j] == 1 {
			states[i].Phase = driver.Held
			d.forget(refs[i].ID)
		}
	}
	return states, nil
}

// parseBatch reads "<word> <first id>" and up to n numbers.
func parseBatch(reply any, word, id string, n int) ([]int64, error) {
	fields := strings.Fields(redisnode.Text(reply))
	if len(fields) < 2 || len(fields) > n+2 || fields[0] != word || fields[1] != id {
		return nil, fmt.Errorf("%w: it is about other claims", ErrUnexpectedReply)
	}
	numbers := make([]int64, len(fields)-2)
	for i, text := range fields[2:] {
		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: token %q", ErrUnexpectedReply, text)
		}
		numbers[i] = number
	}
	return numbers, nil
}
