package report_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/report"
	"github.com/ceyewan/genesis/lab/internal/result"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/trial"
	"github.com/ceyewan/genesis/lab/internal/watch"
)

const hostile = `</title><script>alert("1")</script>&'`

// example is a trial that failed, with text from everywhere.
func example(t *testing.T, text string) result.Result {
	t.Helper()
	second := int64(time.Second)
	events := []event.Event{
		{At: 1 * second, Kind: event.Call, Worker: text, Key: text, Attempt: "1"},
		{At: 2 * second, Kind: event.Enter, Worker: text, Key: text, Attempt: "1", Fence: 7},
		{At: 6 * second, Kind: event.Exit, Worker: text, Key: text, Attempt: "1", Note: event.Lost},
		{At: 3 * second, Kind: event.Call, Worker: "w2", Key: text, Attempt: text},
		{At: 5 * second, Kind: event.Enter, Worker: "w2", Key: text, Attempt: text, Fence: 8},
		{At: 7 * second, Kind: event.Exit, Worker: "w2", Key: text, Attempt: text, Note: event.Done},
		{At: 4 * second, Kind: event.Call, Worker: "w3", Key: text, Attempt: "3"},
		{At: 8 * second, Kind: event.Failed, Worker: "w3", Key: text, Attempt: "3", Note: text},
	}
	e := &oracle.Evidence{
		TTL: 2 * time.Second, From: second, To: 10 * second, Events: events,
		Faults: []oracle.Struck{{Fault: schedule.Fault{Kind: schedule.Kind(text)}, From: 3 * second, To: 4 * second, Worker: text}},
		Deaths: []watch.Death{{Key: text, At: 4*second + second/2, Fence: 7, Cause: text}},
	}
	v := &oracle.Verdict{Operations: 12345, Overlaps: 1, Violations: []oracle.Violation{
		{Oracle: text, Key: text, Detail: text, From: 5 * second, To: 6 * second},
		{Oracle: "no time", Detail: text},
	}}
	r := result.New(trial.Spec{Seed: 1, Topology: text, Mode: schedule.Inside, Length: time.Minute, Mutant: text}, v, e, 0)
	timeline, err := report.Timeline(e, v)
	if err != nil {
		t.Fatal(err)
	}
	r.Timeline = timeline
	return r
}

// Whatever the data is, the page of a trial is well-formed, and nothing in it becomes
// markup.
func TestTextIsEscaped(t *testing.T) {
	page, err := report.Page(example(t, hostile))
	if err != nil {
		t.Fatal(err)
	}
	seen := elements(t, page)
	if seen["script"] != 0 || seen["section"] != 1 || seen["svg"] != 2 || seen["li"] != 2 || seen["h3"] != 2 {
		t.Errorf("%v in %s", seen, page)
	}
}

func elements(t *testing.T, page []byte) map[string]int {
	t.Helper()
	seen := map[string]int{}
	for d := xml.NewDecoder(bytes.NewReader(page)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return seen
		}
		if err != nil {
			t.Fatalf("not well-formed: %v in %s", err, page)
		}
		if e, ok := token.(xml.StartElement); ok {
			seen[e.Name.Local]++
		}
	}
}

// The report of a folder has all trials, and the timelines of those that failed.
func TestWrite(t *testing.T) {
	folder := result.Folder(t.TempDir())
	r := example(t, "a & <b>")
	r.Topology, r.Mutant = "single", ""
	many := slices.Repeat([]oracle.Violation{{Oracle: "many", Detail: "again"}}, 30)
	r.Verdict.Violations = append(r.Verdict.Violations, many...)
	if err := folder.Save(r); err != nil {
		t.Fatal(err)
	}
	r.Mutant = "mutant-1"
	if err := folder.Save(r); err != nil {
		t.Fatal(err)
	}
	s := result.Summary{Column: "pr", Figures: []result.Figure{{Name: hostile, Goal: "0", OK: true}, {Name: "losses", Value: 1, Goal: ">= 9"}}}
	if err := report.Write(folder, s); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(string(folder), "report.html"))
	if err != nil {
		t.Fatal(err)
	}
	seen := elements(t, page)
	if seen["table"] != 3 || seen["svg"] != 2 || seen["li"] != 21 || seen["script"] != 0 || !bytes.Contains(page, []byte("and 12 more")) {
		t.Errorf("%v in %s", seen, page)
	}
}
