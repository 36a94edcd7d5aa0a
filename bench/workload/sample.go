// Package workload measures peers: it runs each of them in a process of its own,
// against the same servers, in turns.
package workload

import (
	"fmt"
	"time"
)

// A Sample is what one peer did in one round of one case.
type Sample struct {
	Workload string             `json:"workload"`
	Case     string             `json:"case"`
	Peer     string             `json:"peer"`
	Round    int                `json:"round"`
	Values   map[string]float64 `json:"values"`
	Shares   []int              `json:"shares,omitempty"`  // acquisitions of each client
	Seconds  float64            `json:"seconds,omitempty"` // how long the round was, where open waits count
	Trouble  Trouble            `json:"trouble"`
}

// Trouble is what a lock should not do. The zero value is none.
type Trouble struct {
	Overlaps int    `json:"overlaps"` // acquisitions while another was inside
	Errors   int    `json:"errors"`   // calls that failed
	GaveUp   int    `json:"gave_up"`  // waits that the peer itself ended
	Starved  int    `json:"starved"`  // clients without a turn, where five each would have been even
	First    string `json:"first_error,omitempty"`
}

// Any reports whether there is something to tell.
func (t *Trouble) Any() bool { return t.Overlaps+t.Errors+t.GaveUp+t.Starved > 0 || t.First != "" }

// A Metric is a figure that samples have.
type Metric struct {
	Key, Title string
	Unit       string // s, B, %, or "" for a plain number
	Lower      bool   // lower is better
}

// The keys of the figures. Times are seconds; waits are weighted by waiting time.
const (
	Pairs      = "pairs_per_second"
	PairP50    = "pair_p50"
	PairP99    = "pair_p99"
	Rate       = "acquisitions_per_second"
	WaitP50    = "wait_p50"
	WaitP70    = "wait_p70"
	WaitP90    = "wait_p90"
	WaitP99    = "wait_p99"
	WaitMax    = "wait_max"
	Fairness   = "fairness"
	HandOffP50 = "handoff_p50"
	HandOffP99 = "handoff_p99"
	Requests   = "requests_per_acquisition"
	ClientCPU  = "client_cpu"
	ServerCPU  = "server_cpu"
	TotalCPU   = "total_cpu"
	Bytes      = "bytes_per_lock"
	Goroutines = "goroutines"
	CPUShare   = "cpu_share"
	RequestsPS = "requests_per_second"
	Lost       = "lost"
	Takeover   = "takeover"
	Spread     = "process_spread"
)

// Metrics are all figures, in the order of tables.
var Metrics = []Metric{
	{Pairs, "pairs/s", "", false},
	{PairP50, "pair p50", "s", true},
	{PairP99, "pair p99", "s", true},
	{Rate, "acquisitions/s", "", false},
	{WaitP50, "wait p50", "s", true},
	{WaitP70, "wait p70", "s", true},
	{WaitP90, "wait p90", "s", true},
	{WaitP99, "wait p99", "s", true},
	{WaitMax, "longest wait", "s", true},
	{Fairness, "min/max share", "", false},
	{HandOffP50, "handoff p50", "s", true},
	{HandOffP99, "handoff p99", "s", true},
	{Requests, "requests/acq.", "", true},
	{ClientCPU, "client CPU", "s", true},
	{ServerCPU, "server CPU", "s", true},
	{TotalCPU, "CPU of both", "s", true},
	{Bytes, "bytes/lock", "B", true},
	{Goroutines, "goroutines", "", true},
	{CPUShare, "CPU", "%", true},
	{RequestsPS, "requests/s", "", true},
	{Lost, "lost", "", true},
	{Takeover, "kill to next holder", "s", true},
	{Spread, "spread of processes", "%", true},
}

// The names of cases, by which goals find them.

// PairCase is an uncontended pair by so many goroutines of one client.
func PairCase(goroutines int) string {
	if goroutines == 1 {
		return "1 goroutine"
	}
	return fmt.Sprintf("%d goroutines, as many keys", goroutines)
}

// HotCase is one key among so many clients.
func HotCase(clients int, section time.Duration) string {
	if section == 0 {
		return fmt.Sprintf("%d clients, empty section", clients)
	}
	return fmt.Sprintf("%d clients, section of %v", clients, section)
}

// HeldCase is so many locks held by one client.
func HeldCase(n int) string { return fmt.Sprintf("%d locks held", n) }

// GrowthCase is one key with so many waiters.
func GrowthCase(waiters int) string { return fmt.Sprintf("%d waiting", waiters) }

// The cases of LocalBatch.
const (
	BatchOne  = "64 goroutines of one client"
	BatchFour = "4 processes of 16 goroutines"
)
