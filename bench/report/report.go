// Package report presents what was measured: as figures with goals, as Markdown, and as a
// page with charts.
package report

import (
	"runtime"
	"slices"
	"time"

	"github.com/ceyewan/genesis/bench/peer"
	"github.com/ceyewan/genesis/bench/workload"
	"github.com/ceyewan/genesis/internal/stats"
)

// A Report is all of a run.
type Report struct {
	Started  time.Time         `json:"started"`
	Seconds  float64           `json:"seconds"`
	Plan     string            `json:"plan"`
	Rounds   int               `json:"rounds"`
	Platform string            `json:"platform"`
	CPUs     int               `json:"cpus"`
	Servers  map[string]string `json:"servers"`
	Ended    string            `json:"ended,omitempty"` // why, if early
	Load     string            `json:"load"`            // of the machine when it began, if known
	Figures  []Figure          `json:"figures"`
	Missing  []string          `json:"missing,omitempty"` // goals that this run did not measure
	Troubles []Trouble         `json:"troubles"`
	Peers    []peer.Info       `json:"peers"`
	Sections []Section         `json:"sections"`

	samples []workload.Sample
}

// A Trouble is a peer that overlapped, starved a client or failed.
type Trouble struct {
	Peer     string `json:"peer"`
	Workload string `json:"workload"`
	Case     string `json:"case"`
	workload.Trouble
}

// A Section is a workload.
type Section struct {
	Name   string   `json:"name"`
	Title  string   `json:"title"`
	About  string   `json:"about"`
	Charts []string `json:"charts"`
	Cases  []Case   `json:"cases"`
}

// A Case has a row for each peer.
type Case struct {
	Name string `json:"name"`
	Rows []Row  `json:"rows"`
}

// A Row is what a peer did in all rounds.
type Row struct {
	Peer    string                 `json:"peer"`
	Values  map[string]stats.Range `json:"values"`
	ToFloor *stats.Range           `json:"to_floor,omitempty"`      // of the first chart's metric
	Seconds float64                `json:"round_seconds,omitempty"` // how long the shortest round was; 0 if no wait was cut off
	Trouble workload.Trouble       `json:"trouble"`
}

// New sums up a run that has ended.
func New(r *workload.Run, started time.Time, servers map[string]string) *Report {
	rep := &Report{
		Started: started.UTC().Truncate(time.Second), Seconds: time.Since(started).Seconds(), Plan: r.Plan.Name, Rounds: r.Plan.Rounds,
		Platform: runtime.GOOS + "/" + runtime.GOARCH + ", " + runtime.Version(), CPUs: runtime.NumCPU(),
		Servers: servers, samples: r.Samples,
	}
	for _, p := range r.Peers {
		rep.Peers = append(rep.Peers, p.Info())
	}
	for i := range r.Workloads {
		rep.Sections = append(rep.Sections, rep.section(&r.Workloads[i], rep.samples))
		if r.Workloads[i].Name == "hot" {
			rep.Sections = append(rep.Sections, rep.pollOrWatch(&r.Workloads[i]))
		}
	}
	rep.Figures, rep.Missing = rep.goals()
	return rep
}

func (r *Report) section(w *workload.Workload, samples []workload.Sample) Section {
	s := Section{Name: w.Name, Title: w.Title, About: w.About, Charts: w.Charts}
	for _, name := range casesOf(w.Name, samples) {
		c := Case{Name: name}
		for i := range r.Peers {
			if row, ok := r.row(w, name, &r.Peers[i], samples); ok {
				c.Rows = append(c.Rows, row)
			}
		}
		s.Cases = append(s.Cases, c)
	}
	return s
}

// casesOf are the cases of a workload in which something was measured, in their order.
func casesOf(name string, samples []workload.Sample) []string {
	var cases []string
	for i := range samples {
		s := &samples[i]
		if s.Workload == name && len(s.Values) > 0 && !slices.Contains(cases, s.Case) {
			cases = append(cases, s.Case)
		}
	}
	return cases
}

func (r *Report) row(w *workload.Workload, name string, p *peer.Info, samples []workload.Sample) (Row, bool) {
	row := Row{Peer: p.Name, Values: map[string]stats.Range{}}
	values := map[string][]float64{}
	var shares [][]int
	for i := range samples {
		s := &samples[i]
		if s.Workload != w.Name || s.Peer != p.Name || (s.Case != name && len(s.Values) > 0) {
			continue
		}
		for key, v := range s.Values {
			values[key] = append(values[key], v)
		}
		if s.Shares != nil {
			shares = append(shares, s.Shares)
		}
		if s.Seconds > 0 && (row.Seconds == 0 || s.Seconds < row.Seconds) {
			row.Seconds = s.Seconds
		}
		if s.Case == name {
			row.Trouble.Add(&s.Trouble)
		}
	}
	for key, v := range values {
		row.Values[key] = stats.RangeOf(v)
	}
	pool(row.Values, shares)
	if floor := w.Floors[p.Backend]; floor != "" && floor != p.Name {
		if to := r.ratio(w.Name, name, w.Charts[0], p.Name, floor); to.N > 0 {
			row.ToFloor = &to
		}
	}
	if row.Trouble.Any() {
		r.Troubles = append(r.Troubles, Trouble{p.Name, w.Name, name, row.Trouble})
	}
	return row, len(row.Values) > 0
}

// pool replaces the median of fairness by that of all rounds together.
func pool(values map[string]stats.Range, shares [][]int) {
	even, ok := values[workload.Fairness]
	if !ok || len(shares) == 0 {
		return
	}
	even.Median = stats.Fairness(shares...)
	values[workload.Fairness] = even
	if spread, ok := values[workload.Spread]; ok {
		spread.Median = 100 * (1 - even.Median)
		values[workload.Spread] = spread
	}
}

// values are the figures of a peer by round.
func (r *Report) values(name, of, metric, peer string) map[int]float64 {
	rounds := map[int]float64{}
	for i := range r.samples {
		s := &r.samples[i]
		if v, ok := s.Values[metric]; ok && s.Workload == name && s.Case == of && s.Peer == peer {
			rounds[s.Round] = v
		}
	}
	return rounds
}

// ratio of two peers, round by round: a disturbance of the machine meets both.
func (r *Report) ratio(name, of, metric, a, b string) stats.Range {
	below := r.values(name, of, metric, b)
	var ratios []float64
	for round, v := range r.values(name, of, metric, a) {
		if below[round] > 0 {
			ratios = append(ratios, v/below[round])
		}
	}
	return stats.RangeOf(ratios)
}
