package redlock

import (
	"context"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

const (
	someID  = "0123456789abcdef0123456789abcdef"
	otherID = "fedcba9876543210fedcba9876543210"
)

// one is a single node.
type one struct {
	*testing.T
	node *node
	n    names
}

func startOne(t *testing.T) *one {
	t.Helper()
	client := testenv.Redis(t).Client()
	t.Cleanup(func() { _ = client.Close() })
	return &one{t, &node{client: client}, (&redDriver{}).namesOf("k")}
}

// call runs a script for a claim, and checks the first and the third element of the reply.
func (o *one) call(s *redisnode.Script, keys []string, id string, args []any, word, number string) {
	o.Helper()
	a := o.node.run(context.Background(), s.Command(context.Background(), keys, append([]any{id}, args...)...), id)
	if a.err != nil {
		o.Fatal(a.err)
	}
	if a.word() != word || (number != "" && redisnode.Text(a.reply[2]) != number) {
		o.Errorf("the answer is %q, want %s %s", a.reply, word, number)
	}
}

func (o *one) acquire(id string, round int, token, word string) {
	o.Helper()
	o.call(acquireScript, []string{o.n.lock, o.n.fence, o.n.tombstone(id), o.n.waiters, o.n.queue, o.n.turn}, id, []any{round, 10_000, token, 0, "{}", 0, "-", 0, 0}, word, "")
}

func (o *one) confirm(id string, round, token int, word, number string) {
	o.Helper()
	o.call(confirmScript, []string{o.n.lock, o.n.fence, o.n.waiters, o.n.queue}, id, []any{round, token, o.n.channel}, word, number)
}

func (o *one) release(id string, tombstone, round int, must, word string) {
	o.Helper()
	o.call(releaseScript, o.n.releaseKeys(id), id, []any{tombstone, round, must, o.n.channel, 0, 1000}, word, "")
}

// A node accepts a token only if it is greater than all that it accepted before: this alone makes
// tokens increase.
func TestNodeRefusesSmallerToken(t *testing.T) {
	o := startOne(t)
	o.acquire(someID, 1, "0", "ours")
	o.confirm(someID, 1, 100, "held", "100")
	o.confirm(someID, 1, 100, "held", "100") // once more, by a repetition
	o.release(someID, 0, -1, "", "held")
	o.acquire(otherID, 1, "0", "ours")
	o.confirm(otherID, 1, 99, "higher", "100")
	o.confirm(otherID, 1, 100, "higher", "100")
	o.confirm(otherID, 1, 101, "held", "101")
}

// A call of an older round neither removes nor changes what a later one has stored.
func TestOldRoundsAreHarmless(t *testing.T) {
	o := startOne(t)
	o.acquire(someID, 2, "0", "ours")
	o.release(someID, 0, 1, "", "gone")
	o.acquire(someID, 1, "0", "stale")
	o.confirm(someID, 1, 100, "lost", "")
	o.confirm(someID, 2, 100, "held", "100")
	o.release(someID, 0, 2, "", "held")
}

// A claim that has a tombstone is not stored, neither by a round nor to fill a node.
func TestBarredClaimIsNotStored(t *testing.T) {
	o := startOne(t)
	o.release(someID, 60_000, -1, "", "gone")
	o.acquire(someID, 1, "0", "tombstoned")
	o.acquire(someID, 1, "100", "tombstoned")
	o.acquire(otherID, 1, "0", "ours")
}

// A late call to fill a node does not shorten a lease that was renewed since.
func TestFillNeverShortens(t *testing.T) {
	o := startOne(t)
	o.acquire(someID, 1, "100", "ours")
	if err := o.node.client.PExpire(t.Context(), o.n.lock, time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	o.acquire(someID, 2, "100", "ours")
	if left := o.node.client.PTTL(t.Context(), o.n.lock).Val(); left < 30*time.Second {
		t.Errorf("%v are left", left)
	}
}

// A release leaves a tombstone of the claim even on a full server, whatever it finds and whatever
// round it names: an attempt that may still arrive must not be stored when there is memory again.
func TestTombstonesAtMaxmemory(t *testing.T) {
	for name, round := range map[string]int{"of any round": -1, "of one round": 5} {
		t.Run(name, func(t *testing.T) {
			o := startOne(t)
			o.acquire(otherID, 1, "0", "ours")
			o.release(otherID, 0, -1, "", "held") // the scripts are known
			o.limit("1")
			o.release(someID, 60_000, round, "", "gone")
			o.limit("0")
			o.acquire(someID, 1, "0", "tombstoned")
			o.acquire(otherID, 2, "0", "ours")
			o.limit("1")
			o.release(otherID, 60_000, round, "", "held")
			o.limit("0")
			o.acquire(otherID, 3, "0", "tombstoned")
		})
	}
}

// A renewal stores on a full server that the claim has won, also if the lease stays as it is.
func TestRenewalAtMaxmemory(t *testing.T) {
	o := startOne(t)
	o.acquire(someID, 1, "0", "ours")
	renew := func(round int, want string) {
		t.Helper()
		a := o.node.run(t.Context(), renewScript.Command(t.Context(), []string{o.n.lock, o.n.fence}, someID, someID, 1000, 100, 0, round), someID)
		if a.err != nil || redisnode.Text(a.reply[1]) != want {
			t.Errorf("the answer is %q, %v, want %s", a.reply, a.err, want)
		}
	}
	o.limit("1")
	renew(2, "100")
	renew(3, "100")
	o.limit("0")
	o.release(someID, 0, 2, "", "gone")
	o.release(someID, 0, 3, "", "held")
}

// limit sets maxmemory.
func (o *one) limit(bytes string) {
	o.Helper()
	if err := o.node.client.ConfigSet(context.Background(), "maxmemory", bytes).Err(); err != nil {
		o.Fatal(err)
	}
}
