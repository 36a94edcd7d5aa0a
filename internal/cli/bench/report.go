package bench

import (
	"runtime"
	"time"

	"github.com/ceyewan/genesis/internal/stats"
)

// A Report is everything that a run has found out.
type Report struct {
	Schema  string    `json:"schema"`
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	// Program, Backend and Where are filled in by whoever knows them.
	Program  string  `json:"program"`
	Backend  string  `json:"backend"`
	Where    string  `json:"where"`
	Key      string  `json:"key"`
	Platform string  `json:"platform"`
	CPUs     int     `json:"cpus"`
	Rounds   int     `json:"rounds"` // as planned
	Duration float64 `json:"round_seconds"`
	// Ended says why it ended early; empty if it did not.
	Ended     string    `json:"ended_early,omitempty"`
	Exclusion Exclusion `json:"exclusion"`
	Results   []Result  `json:"results"`
}

// schema names the form of the JSON. It changes when a field goes or changes its
// meaning, not when one is added.
const schema = "dlock-bench/1"

// Exclusion is what was seen of mutual exclusion.
type Exclusion struct {
	Held         bool  `json:"held"`
	Acquisitions int64 `json:"acquisitions"`
	// Overlaps is how often a client entered while another was inside.
	Overlaps int64 `json:"overlaps"`
	// OutOfOrder is how often a fencing token was not above the last.
	OutOfOrder int64 `json:"tokens_out_of_order"`
	// Losses is how often a holder learned that its lock was lost.
	Losses int64 `json:"losses"`
}

// A Result is one experiment: some clients, and how long they hold the key.
type Result struct {
	Clients      int     `json:"clients"`
	Section      float64 `json:"section_seconds"`
	Acquisitions int     `json:"acquisitions"`
	OpenWaits    int     `json:"open_waits"`
	// Shares are the acquisitions of each client in all rounds together.
	Shares   []int        `json:"shares"`
	Mean     *stats.Range `json:"wait_seconds_mean"`
	P70      *stats.Range `json:"wait_seconds_p70"`
	P90      *stats.Range `json:"wait_seconds_p90"`
	P99      *stats.Range `json:"wait_seconds_p99"`
	Max      *stats.Range `json:"wait_seconds_max"`
	P99Time  *stats.Range `json:"wait_seconds_p99_by_time"`
	Rate     *stats.Range `json:"acquisitions_per_second"`
	Fairness *stats.Range `json:"fairness"`
	Commands *stats.Range `json:"commands_per_acquisition"`
	CPU      *stats.Range `json:"cpu_seconds_per_acquisition"`
	Rounds   []Round      `json:"rounds"`
}

func (p *Plan) newReport() *Report {
	r := &Report{
		Schema: schema, Started: time.Now().UTC(), Key: p.Key, CPUs: runtime.NumCPU(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH, Rounds: p.Rounds, Duration: p.Duration.Seconds(),
	}
	for _, section := range p.Sections {
		for _, n := range p.Clients {
			r.Results = append(r.Results, Result{Clients: n, Section: section.Seconds(), Shares: make([]int, n), Rounds: []Round{}})
		}
	}
	return r
}

func (r *Report) finish(w *witness) {
	r.Seconds = time.Since(r.Started).Seconds()
	e := Exclusion{
		Acquisitions: w.turns.Load(), Overlaps: w.overlaps.Load(),
		OutOfOrder: w.disorders.Load(), Losses: w.losses.Load(),
	}
	e.Held = e.Overlaps == 0 && e.OutOfOrder == 0 && e.Losses == 0
	r.Exclusion = e
	for i := range r.Results {
		r.Results[i].finish()
	}
}

func (r *Result) finish() {
	for _, m := range r.Rounds {
		r.Acquisitions += m.Acquisitions
		r.OpenWaits += m.OpenWaits
		for i, n := range m.Shares {
			r.Shares[i] += n
		}
	}
	of := func(figure func(*Round) *float64) *stats.Range {
		var values []float64
		for i := range r.Rounds {
			if v := figure(&r.Rounds[i]); v != nil {
				values = append(values, *v)
			}
		}
		return rangeOf(values)
	}
	r.Mean = of(func(m *Round) *float64 { return &m.Wait.Mean })
	r.P70 = of(func(m *Round) *float64 { return &m.Wait.P70 })
	r.P90 = of(func(m *Round) *float64 { return &m.Wait.P90 })
	r.P99 = of(func(m *Round) *float64 { return &m.Wait.P99 })
	r.Max = of(func(m *Round) *float64 { return &m.Wait.Max })
	r.P99Time = of(func(m *Round) *float64 { return &m.Wait.P99ByTime })
	r.Rate = of(func(m *Round) *float64 { return &m.Rate })
	r.Fairness = of(func(m *Round) *float64 { return &m.Fairness })
	r.Commands = of(func(m *Round) *float64 { return m.Commands })
	r.CPU = of(func(m *Round) *float64 { return m.CPU })
}

// Measured reports whether there is anything to show.
func (r *Report) Measured() bool {
	for i := range r.Results {
		if len(r.Results[i].Rounds) > 0 {
			return true
		}
	}
	return false
}

// sections are the results by section, in the order of the plan.
func (r *Report) sections() [][]Result {
	var groups [][]Result
	for i := range r.Results {
		if n := len(groups); n == 0 || groups[n-1][0].Section != r.Results[i].Section {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], r.Results[i])
	}
	return groups
}
