package report_test

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/bench/peer"
	"github.com/ceyewan/genesis/bench/report"
	"github.com/ceyewan/genesis/bench/workload"
	"github.com/ceyewan/genesis/internal/stats"
)

const hostile = `</title><script>alert("1")</script>&'`

// example is a report with a chart of each kind, and with text from everywhere.
func example(text string) *report.Report {
	row := func(name string, median float64, floor *stats.Range) report.Row {
		rate := stats.Range{Median: median, Min: median * 0.9, Max: median * 1.2, N: 3}
		wait := stats.Range{Median: 3 / median, Min: 2 / median, Max: 90 / median, N: 3}
		return report.Row{Peer: name, Values: map[string]stats.Range{workload.Rate: rate, workload.WaitP99: wait, workload.Pairs: rate}, ToFloor: floor}
	}
	rows := []report.Row{
		row("floor", 40_000, nil),
		row("ours", 32_000, &stats.Range{Median: 0.8, Min: 0.7, Max: 0.9, N: 3}),
		row(text, 640, &stats.Range{Median: 0.016, Min: 0.01, Max: 0.02, N: 3}),
	}
	hot := workload.HotCase(64, time.Millisecond)
	return &report.Report{
		Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Seconds: 61, Plan: text, Rounds: 3, Platform: text, CPUs: 2,
		Servers: map[string]string{"redis": text}, Ended: text, Load: text,
		Figures:  []report.Figure{{Name: text, Value: 1.5, Goal: text, OK: true, Min: 1, Max: 2}, {Name: "b", Goal: ">= 1"}},
		Missing:  []string{text},
		Troubles: []report.Trouble{{Peer: text, Workload: text, Case: text, Trouble: workload.Trouble{Overlaps: 1, First: text}}},
		Peers: []peer.Info{
			{Name: "floor", Floor: true},
			{Name: "ours", Ours: true},
			{Name: text, Title: text, Version: text, Setup: text, Changed: text},
		},
		Sections: []report.Section{
			{Name: "hot", Title: "hot key", About: text, Charts: []string{workload.Rate, workload.WaitP99}, Cases: []report.Case{{Name: hot, Rows: rows}}},
			{Name: "pair", Title: "pair", About: text, Charts: []string{workload.Pairs}, Cases: []report.Case{{Name: workload.PairCase(1), Rows: rows}}},
		},
	}
}

// Whatever the data is, the page and the pictures are well-formed, and nothing in them
// becomes markup.
func TestTextIsEscaped(t *testing.T) {
	r := example(hostile)
	page, err := r.Page()
	if err != nil {
		t.Fatal(err)
	}
	seen := elements(t, page)
	if seen["script"] != 0 || seen["svg"] != 3 || seen["figure"] != 3 || seen["table"] != 5 || seen["section"] != 4 {
		t.Errorf("%v in %s", seen, page)
	}
	pictures, err := r.Pictures()
	if err != nil || len(pictures) != 3 {
		t.Fatalf("%d pictures, %v", len(pictures), err)
	}
	for file, picture := range pictures {
		if seen := elements(t, picture); seen["script"] != 0 || seen["svg"] != 1 || seen["rect"] != 4 {
			t.Errorf("%s: %v in %s", file, seen, picture)
		}
	}
}

func elements(t *testing.T, text string) map[string]int {
	t.Helper()
	seen := map[string]int{}
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return seen
		}
		if err != nil {
			t.Fatalf("not well-formed: %v in %s", err, text)
		}
		if e, ok := token.(xml.StartElement); ok {
			seen[e.Name.Local]++
		}
	}
}

func TestNoTrouble(t *testing.T) {
	r := example("text")
	r.Troubles = nil
	page, err := r.Page()
	if err != nil || !strings.Contains(page, "No library. Mutual exclusion was checked") {
		t.Errorf("%v in %s", err, page)
	}
}

// A wait that lasted as long as the round would have been longer: its bar says so, and no other.
func TestBarThatEndsWithTheRound(t *testing.T) {
	r := example("text")
	rows := r.Sections[0].Cases[0].Rows
	rows[2].Seconds = rows[2].Values[workload.WaitP99].Median
	rows[1].Seconds = 2 * rows[1].Values[workload.WaitP99].Median
	pictures, err := r.Pictures()
	if err != nil || strings.Count(pictures["waits.svg"], ">≥ ") != 1 || strings.Contains(pictures["hot.svg"], "≥") {
		t.Errorf("%v in %s", err, pictures)
	}
}
