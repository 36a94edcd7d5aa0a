package hazardtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/stats"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// WaitersSurviveLostPushes drops all pushes to waiters: a handoff takes a heartbeat, of a
// second at most, and neither a third of the lease nor forever.
func WaitersSurviveLostPushes(t *testing.T, open Open) {
	t.Parallel()
	s, metronome := begin(t, open), testenv.StartMetronome(t)
	s.DropPushes()
	cfg := dlock.Config{DefaultTTL: time.Minute}
	two := []*dlock.Client{s.proxied(cfg), s.proxied(cfg)}
	warm(t, two...)
	ctx, cancel := context.WithTimeout(t.Context(), testenv.UnderStress(180*time.Second, 300*time.Second))
	defer cancel()
	const pairs = 10
	each := max(2, s.rounds(2, 4, 100))
	var wg sync.WaitGroup
	var mu sync.Mutex
	var all []time.Duration
	for i := range pairs {
		rng := rand.New(rand.NewPCG(3, uint64(i)))
		wg.Go(func() {
			took := handOvers(ctx, t, metronome, two, fmt.Sprint("k", i), each, rng)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
		})
	}
	wg.Wait()
	s.PushesDropped(t)
	if len(all) != pairs*each {
		t.Fatalf("%d of %d hand-overs", len(all), pairs*each)
	}
	slices.Sort(all)
	if worst := all[len(all)-1]; worst > s.Traits().Unpushed {
		t.Errorf("a hand-over took %v without stalls", worst)
	}
	t.Logf("%d hand-overs: median %v, worst %v", len(all), stats.Percentile(all, 50), stats.Percentile(all, 100))
}

// handOvers lets two Clients hand a lock to and fro, at any moment of a heartbeat, and returns
// how long each time took from before Unlock, without the stalls of the machine.
func handOvers(ctx context.Context, t *testing.T, m *testenv.Metronome, two []*dlock.Client, key string, n int, rng *rand.Rand) (took []time.Duration) {
	g, err := two[0].Acquire(ctx, key)
	for i := 0; i < n && err == nil; i++ {
		waiter := beginWait(ctx, two[(i+1)%2], key)
		elapse(time.Duration(rng.IntN(300)) * time.Millisecond)
		began := time.Now()
		release(t, g)
		got := <-waiter
		g, err = got.guard, got.err
		took = append(took, got.at.Sub(began)-m.LostBetween(began, got.at))
	}
	if err != nil {
		t.Error(err)
		return took
	}
	release(t, g)
	return took
}

// PushedHandOversAreQuick passes a lock back and forth: pushes make that several times as quick as the control without them, in
// which a waiter asks once a second.
func PushedHandOversAreQuick(t *testing.T, open Open) {
	t.Parallel()
	pushed, control := begin(t, open), begin(t, open)
	control.DropPushes()
	slow, quick := control.handOver(3, 100), pushed.handOver(testenv.UnderStress(11, 300), 50)
	control.PushesDropped(t)
	t.Logf("half of the hand-overs take at most %v, and without pushes up to %v", quick, slow)
	if quick > slow/testenv.UnderStress[time.Duration](4, 20) {
		t.Errorf("half of the hand-overs take up to %v, and without pushes up to %v", quick, slow)
	}
}

// handOver lets two Clients hand a lock to and fro, each time soon after the other one has begun to wait, and returns how
// long so many percent of the hand-overs take at most, without the stalls of the machine.
func (s *scene) handOver(n int, percent float64) time.Duration {
	const key = "k"
	two := []*dlock.Client{s.proxied(dlock.Config{}), s.proxied(dlock.Config{})}
	warm(s.t, two...)
	metronome, took := testenv.StartMetronome(s.t), make([]time.Duration, n)
	g := acquire(s.t, two[0], key, dlock.WithTTL(time.Minute))
	for i := range n {
		ch := s.wait(two[(i+1)%2], key, dlock.WithTTL(time.Minute))
		elapse(150 * time.Millisecond) // it asks once more when it has subscribed
		began := time.Now()
		unlock(s.t, g)
		next := s.granted(ch)
		took[i], g = next.at.Sub(began)-metronome.LostBetween(began, next.at), next.guard
	}
	unlock(s.t, g)
	slices.Sort(took)
	return stats.Percentile(took, percent)
}
