package schedule_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/ceyewan/genesis/lab/internal/schedule"
)

func TestPlanIsAFunctionOfItsSeed(t *testing.T) {
	for _, topology := range schedule.Topologies {
		for _, mode := range []schedule.Mode{schedule.Inside, schedule.Beyond} {
			one := plan(t, 7, topology, mode)
			if again := plan(t, 7, topology, mode); !reflect.DeepEqual(one, again) {
				t.Errorf("%s %s: the same seed gives %v and %v", topology, mode, one, again)
			}
			if other := plan(t, 8, topology, mode); reflect.DeepEqual(one, other) {
				t.Errorf("%s %s: another seed gives the same plan", topology, mode)
			}
		}
	}
}

const firstOfSeed1 = "  1.290s worker-kill      for 0.000s at 44202"

// A replayed seed must be the schedule that failed, also with a later version of
// the lab: a change of this plan makes stored seeds worthless.
func TestPlanIsStable(t *testing.T) {
	got := plan(t, 1, schedule.Single, schedule.Inside)
	if len(got) == 0 || got[0].String() != firstOfSeed1 {
		t.Errorf("seed 1 begins with %v, want %s", got, firstOfSeed1)
	}
}

func TestFaultsFollowEachOther(t *testing.T) {
	for seed := range uint64(200) {
		end := time.Duration(0)
		for _, f := range plan(t, seed, schedule.Etcd3, schedule.Inside) {
			if f.At <= end || f.At+f.For > time.Minute {
				t.Fatalf("seed %d: %v begins before %v or outlasts the trial", seed, f, end)
			}
			end = f.At + f.For
		}
	}
}

func TestEveryKindIsDealt(t *testing.T) {
	seen := map[schedule.Kind]bool{}
	for _, topology := range schedule.Topologies {
		for seed := range uint64(5) {
			for _, mode := range []schedule.Mode{schedule.Inside, schedule.Beyond} {
				for _, f := range plan(t, seed, topology, mode) {
					seen[f.Kind] = true
				}
			}
		}
	}
	if len(seen) != 29 {
		t.Errorf("%d kinds of faults are dealt: %v", len(seen), seen)
	}
}

// A steady key is at the master that its hands mean it to be.
func TestSteadyKeysAreInTheirShards(t *testing.T) {
	for shard := range schedule.Shards {
		for epoch := range int64(50) {
			key := schedule.SteadyKey("lab:", shard, epoch)
			slot := schedule.Slot("lab:" + key)
			if slot < schedule.FirstSlot(shard) || slot >= schedule.FirstSlot(shard+1) {
				t.Errorf("%s is in slot %d, not in shard %d", key, slot, shard)
			}
		}
	}
	for _, key := range []string{"123456789", "lab:several-{123456789}-0"} {
		if got := schedule.Slot(key); got != 12739 { // from the specification of Redis Cluster
			t.Errorf("slot %d", got)
		}
	}
}

// Every setup is tried on some seed that the nightly run has.
func TestEverySetupIsDealt(t *testing.T) {
	seen := map[string]bool{}
	for _, topology := range schedule.Topologies {
		for seed := uint64(1); seed <= 20; seed++ {
			s := schedule.SetupFor(seed, topology, schedule.Inside)
			for name, has := range map[string]bool{"batch": s.Batch > 0, "reentrant": s.Reentrant, "reopens": s.Reopens} {
				if has {
					seen[topology+" "+name] = true
				}
			}
			seen[topology+" rights "+s.Rights], seen[topology+" routing "+s.Routing] = true, true
		}
	}
	for _, want := range []string{
		"single batch", "single reentrant", "single reopens", "single rights few", "single rights no-channels",
		"replicated rights no-channels", "sentinel rights few", "cluster rights few", "cluster rights no-channels",
		"cluster routing read-only", "cluster routing by-latency", "cluster routing randomly", "redlock-3 rights few",
		"redlock-5 rights no-channels", "etcd-1 rights few", "etcd-3 rights few",
	} {
		if !seen[want] {
			t.Errorf("no seed of twenty has %q", want)
		}
	}
}

func TestUnknownTopology(t *testing.T) {
	if _, err := schedule.Plan(1, "nowhere", schedule.Inside, time.Minute); err == nil {
		t.Error("a plan for a topology that does not exist")
	}
}

func plan(t *testing.T, seed uint64, topology string, mode schedule.Mode) []schedule.Fault {
	t.Helper()
	p, err := schedule.Plan(seed, topology, mode, time.Minute)
	if err != nil || len(p) == 0 {
		t.Fatalf("%s %s: %v, %v", topology, mode, p, err)
	}
	return p
}
