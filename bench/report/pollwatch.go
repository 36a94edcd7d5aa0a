package report

import (
	"slices"
	"strings"

	"github.com/ceyewan/genesis/bench/workload"
)

// pollOrWatch takes from the hot key what distinguishes polling from notification: with few and
// with many clients, a poller of 10 ms, a library that polls with long pauses, one that
// watches, and a queue.
func (r *Report) pollOrWatch(hot *workload.Workload) Section {
	peers := []string{workload.Strict, workload.Redsync, workload.Rueidislock, workload.Poller}
	var samples []workload.Sample
	cases := casesOf(hot.Name, r.samples)
	for i := range r.samples {
		s := &r.samples[i]
		if s.Workload == hot.Name && slices.Contains(peers, s.Peer) && fewOrMany(cases, s.Case) {
			samples = append(samples, r.samples[i])
		}
	}
	w := *hot
	w.Floors = nil
	troubles := r.Troubles // these are reported already
	section := r.section(&w, samples)
	r.Troubles = troubles
	section.Name, section.Title = "poll-watch", "poll or watch"
	section.About = "From the rounds of the hot key, with the fewest and with the most clients. A poller asks every 10 ms; redsync asks after random pauses of 50 to 250 ms; rueidislock is told by the server that the key has changed, and all who wait ask at once; we stand in a queue, and the one whose turn it is is told."
	section.Charts = []string{workload.WaitP99, workload.Requests}
	return section
}

func fewOrMany(cases []string, name string) bool {
	for _, ending := range []string{"empty section", "1ms"} {
		var of []string
		for _, c := range cases {
			if strings.HasSuffix(c, ending) {
				of = append(of, c)
			}
		}
		if len(of) > 0 && (name == of[0] || name == of[len(of)-1]) {
			return true
		}
	}
	return false
}
