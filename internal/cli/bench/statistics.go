package bench

import (
	"slices"
	"time"

	"github.com/ceyewan/genesis/internal/stats"
)

// A Round is what one round has measured. Times are seconds.
type Round struct {
	Seconds      float64 `json:"seconds"`
	Acquisitions int     `json:"acquisitions"`
	// OpenWaits are the waits that had not ended when the round did.
	OpenWaits int     `json:"open_waits"`
	Wait      Waits   `json:"wait_seconds"`
	Rate      float64 `json:"acquisitions_per_second"`
	// Fairness is the smallest share of a client to the largest.
	Fairness float64 `json:"fairness"`
	// Commands and CPU are per acquisition; nil if they are not counted, or for want of one.
	Commands *float64 `json:"commands_per_acquisition"`
	CPU      *float64 `json:"cpu_seconds_per_acquisition"`
	// Shares are the acquisitions of each client.
	Shares []int `json:"shares"`
}

// Waits are the waits of one round, those that were open in the end included.
type Waits struct {
	Mean float64 `json:"mean"`
	P70  float64 `json:"p70"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
	// P99ByTime weighs each wait by its length: 99 % of all the time that was waited
	// went into waits that were not longer. It sees a few that starve next to many that
	// go round, where counting waits does not.
	P99ByTime float64 `json:"p99_by_time"`
}

// measured sums a round up when all its workers have ended.
func (r *round) measured(cpu time.Duration, sent int64) Round {
	m := Round{Seconds: r.end.Seconds()}
	var waits []time.Duration
	for _, w := range r.workers {
		waits = append(waits, w.waits...)
		m.Shares = append(m.Shares, w.turns)
		m.Acquisitions += w.turns
		m.OpenWaits += w.open
	}
	m.Wait = waitsOf(waits)
	m.Rate = float64(m.Acquisitions) / m.Seconds
	m.Fairness = stats.Fairness(m.Shares)
	if m.Acquisitions > 0 {
		m.CPU = each(cpu.Seconds(), m.Acquisitions)
		if r.Sent != nil {
			m.Commands = each(float64(sent), m.Acquisitions)
		}
	}
	return m
}

func each(sum float64, n int) *float64 {
	v := sum / float64(n)
	return &v
}

func waitsOf(waits []time.Duration) Waits {
	if len(waits) == 0 {
		return Waits{}
	}
	slices.Sort(waits)
	sum := 0.0
	for _, w := range waits {
		sum += w.Seconds()
	}
	at := func(p float64) float64 { return stats.Percentile(waits, p).Seconds() }
	return Waits{
		Mean: sum / float64(len(waits)), P70: at(70), P90: at(90), P99: at(99), Max: at(100),
		P99ByTime: stats.PercentileByTime(waits, 99).Seconds(),
	}
}

// rangeOf is nil for no values, which is null in JSON.
func rangeOf(values []float64) *stats.Range {
	if len(values) == 0 {
		return nil
	}
	r := stats.RangeOf(values)
	return &r
}
