package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/ceyewan/genesis/bench/workload"
	"github.com/ceyewan/genesis/internal/stats"
)

// A Figure is one that has a goal. Value is the median; a goal that is missed is
// published as missed.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Goal  string  `json:"goal"`
	OK    bool    `json:"ok"`
	Min   float64 `json:"min"`
	Max   float64 `json:"max"`
}

type goal struct {
	name  string
	most  bool // the bound is the largest allowed, else the smallest
	bound float64
	value stats.Range
}

func atLeast(bound float64, value stats.Range, name string, args ...any) goal {
	return goal{fmt.Sprintf(name, args...), false, bound, value}
}

func atMost(bound float64, value stats.Range, name string, args ...any) goal {
	return goal{fmt.Sprintf(name, args...), true, bound, value}
}

// goals holds the run against what we have promised ourselves.
func (r *Report) goals() (figures []Figure, missing []string) {
	for _, g := range slices.Concat(r.redisPairs(), r.hotGoals(), r.etcdGoals(), r.batchGoals(), r.heldGoals()) {
		if g.value.N == 0 {
			missing = append(missing, g.name)
			continue
		}
		f := Figure{Name: g.name, Value: rounded(g.value.Median), Min: rounded(g.value.Min), Max: rounded(g.value.Max)}
		sign := ">="
		f.OK = g.value.Median >= g.bound
		if g.most {
			sign, f.OK = "<=", g.value.Median <= g.bound
		}
		f.Goal = sign + " " + strconv.FormatFloat(g.bound, 'g', -1, 64)
		figures = append(figures, f)
	}
	return figures, missing
}

// rounded leaves four figures: more of them mean nothing.
func rounded(v float64) float64 {
	text := strconv.FormatFloat(v, 'g', 4, 64)
	short, _ := strconv.ParseFloat(text, 64) // we have just written it
	return short
}

// libraries are those that others would take instead of ours on Redis.
var libraries = []string{workload.Redsync, workload.Redislock, workload.Rueidislock}

func (r *Report) redisPairs() []goal {
	one, many := workload.PairCase(1), workload.PairCase(64)
	goals := []goal{
		atLeast(0.85, r.ratio("pair", one, workload.Pairs, workload.Strict, workload.RawRedis),
			"Redis, uncontended fenced pair, 1 goroutine: pairs/s to raw go-redis"),
	}
	for _, library := range libraries {
		goals = append(goals, atLeast(1, r.ratio("pair", one, workload.Pairs, workload.Strict, library),
			"Redis, uncontended fenced pair, 1 goroutine: pairs/s to %s", library))
	}
	goals = append(goals, atLeast(1.2, r.ratio("pair", many, workload.Pairs, workload.Strict, workload.RawRedis),
		"Redis, uncontended fenced pair, 64 goroutines on 64 keys: pairs/s to raw go-redis"))
	for _, library := range libraries {
		goals = append(goals, atLeast(1, r.ratio("pair", many, workload.Pairs, workload.Strict, library),
			"Redis, uncontended fenced pair, 64 goroutines on 64 keys: pairs/s to %s", library))
	}
	return append(goals, r.newKeyGoals()...)
}

// newKeyGoals are for keys that are used once.
func (r *Report) newKeyGoals() []goal {
	const w, text = "pair-new", "Redis, a new key each time, "
	one, many := workload.PairCase(1), workload.PairCase(64)
	to := func(peer, of, value string) stats.Range { return r.ratio(w, of, value, workload.Strict, peer) }
	return []goal{
		atLeast(0.8, to(workload.RawRedis, one, workload.Pairs), text+"1 goroutine: pairs/s to raw go-redis"),
		atLeast(1, to(workload.Redislock, one, workload.Pairs), text+"1 goroutine: pairs/s to redislock"),
		atLeast(1.3, to(workload.RawRedis, many, workload.Pairs), text+"64 goroutines: pairs/s to raw go-redis"),
		atLeast(1, to(workload.Rueidislock, many, workload.Pairs), text+"64 goroutines: pairs/s to rueidislock"),
		atLeast(1.4, r.ratio(w, one, workload.Pairs, workload.Async, workload.RawRedis), text+"1 goroutine, WithAsyncUnlock: pairs/s to raw go-redis"),
		atMost(1.25, to(workload.RawRedis, one, workload.ClientCPU), text+"1 goroutine: client CPU of a pair to raw go-redis"),
	}
}

func (r *Report) hotGoals() []goal {
	var goals []goal
	for _, section := range []time.Duration{0, time.Millisecond} {
		rate, p99 := 0.6, 1.8
		if section > 0 {
			rate, p99 = 0.8, 1.3
		}
		for _, clients := range []int{64, 256} {
			c := workload.HotCase(clients, section)
			goals = append(
				goals,
				atLeast(rate, r.ratio("hot", c, workload.Rate, workload.Strict, workload.Token), "Redis, hot key, %s: acquisitions/s to a bare BLPOP token", c),
				atMost(p99, r.ratio("hot", c, workload.WaitP99, workload.Strict, workload.Token), "Redis, hot key, %s: wait p99 to a bare BLPOP token", c),
				atLeast(0.9, r.evenness("hot", c, workload.Strict), "Redis, hot key, %s: smallest to largest share", c),
				atMost(2.1, r.of("hot", c, workload.Requests, workload.Strict), "Redis, hot key, %s: requests per acquisition", c),
				atLeast(5, r.bestLibrary(c), "Redis, hot key, %s: wait p99 of the best other library to ours", c),
			)
		}
	}
	return append(goals, atMost(1.2, r.ratio("handoff", workload.HandOffCase(), workload.HandOffP50, workload.Strict, workload.Token),
		"Redis, handoff p50 to a bare BLPOP token"))
}

// of is a figure of one peer over all rounds.
func (r *Report) of(name, of, metric, peer string) stats.Range {
	var values []float64
	for _, v := range r.values(name, of, metric, peer) {
		values = append(values, v)
	}
	return stats.RangeOf(values)
}

// evenness is of all rounds together, with the range of single rounds.
func (r *Report) evenness(name, of, peer string) stats.Range {
	if row := r.find(name, of, peer); row != nil {
		return row.Values[workload.Fairness]
	}
	return stats.Range{}
}

func (r *Report) find(name, of, peer string) *Row {
	c := r.caseOf(name, of)
	for i := 0; c != nil && i < len(c.Rows); i++ {
		if c.Rows[i].Peer == peer {
			return &c.Rows[i]
		}
	}
	return nil
}

// bestLibrary is the p99 of the library that has the smallest, to ours.
func (r *Report) bestLibrary(of string) stats.Range {
	best := stats.Range{Median: math.Inf(1)}
	for _, library := range libraries {
		if to := r.ratio("hot", of, workload.WaitP99, library, workload.Strict); to.N > 0 && to.Median < best.Median {
			best = to
		}
	}
	return best
}

func (r *Report) etcdGoals() []goal {
	two, many := workload.HotCase(2, 0), workload.HotCase(64, 0)
	return []goal{
		atLeast(15, r.ratio("hot", two, workload.Rate, workload.OurEtcd, workload.EtcdMutex), "etcd, hot key, 2 clients: acquisitions/s to concurrency.Mutex"),
		atLeast(1.5, r.ratio("hot", many, workload.Rate, workload.OurEtcd, workload.EtcdMutex), "etcd, hot key, 64 clients: acquisitions/s to concurrency.Mutex"),
		atMost(0.2, r.ratio("hot", two, workload.HandOffP99, workload.OurEtcd, workload.EtcdMutex), "etcd, hot key, 2 clients: handoff p99 to concurrency.Mutex"),
		atLeast(0.9, r.ratio("pair", workload.PairCase(1), workload.Pairs, workload.OurEtcd, workload.RawEtcd), "etcd, uncontended fenced pair, 1 goroutine: pairs/s to raw txn + delete"),
	}
}

func (r *Report) batchGoals() []goal {
	spread := stats.Range{}
	if row := r.find("batch", workload.BatchFour, workload.Batch); row != nil {
		spread = row.Values[workload.Spread]
	}
	return []goal{
		atLeast(20, r.ratio("batch", workload.BatchOne, workload.Rate, workload.Batch, workload.Strict), "LocalBatch 64, 64 goroutines of one process: acquisitions/s to strict"),
		atMost(5, spread, "LocalBatch 64, 4 processes of 16 goroutines: spread of their shares, %%"),
	}
}

func (r *Report) heldGoals() []goal {
	few, many := workload.HeldCase(10_000), workload.HeldCase(100_000)
	more := stats.Range{}
	before, after := r.of("held", few, workload.Goroutines, workload.Strict), r.of("held", many, workload.Goroutines, workload.Strict)
	if before.N > 0 && after.N > 0 {
		more = stats.RangeOf([]float64{after.Median - before.Median})
	}
	return []goal{
		atMost(512, r.of("held", many, workload.Bytes, workload.Strict), "Redis, 100,000 held locks: bytes each"),
		atMost(8, more, "Redis, 100,000 held locks: goroutines more than for 10,000"),
		atMost(3, r.of("held", many, workload.CPUShare, workload.Strict), "Redis, 100,000 held locks: client CPU, %% of a core"),
		atMost(1.5, r.growth(), "Redis, 100 to 10,000 waiting at one key: growth of the cost of an acquisition"),
	}
}

// growth compares the cost with many and with few waiters, round by round.
func (r *Report) growth() stats.Range {
	few := r.values("growth", workload.GrowthCase(100), workload.TotalCPU, workload.Strict)
	var ratios []float64
	for round, v := range r.values("growth", workload.GrowthCase(10_000), workload.TotalCPU, workload.Strict) {
		if few[round] > 0 {
			ratios = append(ratios, v/few[round])
		}
	}
	return stats.RangeOf(ratios)
}
