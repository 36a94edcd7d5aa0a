package soak

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/lab/internal/worker"
)

// Children are this binary again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == ChildCommand {
		if err := Main(os.Args[2], os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// A slice of a soak: users work, figures are there, lines are fitted, and nothing is left
// after Close. What grows cannot be told in so short a time.
func TestSlice(t *testing.T) {
	testenv.Redis(t) // or skip
	path := filepath.Join(t.TempDir(), "soak.samples.jsonl")
	plan := Plan{Backends: []string{"redis", kindMemory}, Duration: 40 * time.Second, Seed: 1}
	report, err := Run(t.Context(), plan, path, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	for _, tail := range report.Backends {
		if tail.Total() == 0 || tail.Operations["acquire: ok"] == 0 || tail.Operations["user asks: ok"] == 0 || tail.Names == 0 || tail.Samples < 10 {
			t.Errorf("%s: %+v", tail.Backend, tail)
		}
		if !tail.Closed || tail.Left != 0 {
			t.Errorf("%s: closed: %v, %v goroutines left:\n%s", tail.Backend, tail.Closed, tail.Left, tail.Stacks)
		}
		if len(tail.Faults) == 0 {
			t.Errorf("%s: no fault in the second half", tail.Backend)
		}
	}
	for backend, all := range map[string][]string{"redis": {heap, goroutines, connections}, kindMemory: {heap, goroutines}} {
		for _, series := range all {
			fitted := slices.ContainsFunc(report.Lines, func(l Line) bool {
				return l.Backend == backend && l.Series == series && l.Half == 1 && l.N >= minPoints && l.Mean > 0 && l.Verdict != tooFew
			})
			if !fitted {
				t.Errorf("%s: %s: no fit", backend, series)
			}
		}
	}
	again, samples, err := ReadSamples(path)
	if err != nil || !reflect.DeepEqual(NewReport(again, samples).Backends, report.Backends) {
		t.Errorf("the file of samples makes another report: %v", err)
	}
	var text bytes.Buffer
	report.Write(&text)
	if !strings.Contains(text.String(), "goroutines left after Close: 0") {
		t.Error(text.String())
	}
}

// A run that is told to stop reports what there is, and leaves no file behind.
func TestStopped(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	path := filepath.Join(t.TempDir(), "soak.samples.jsonl")
	plan := Plan{Backends: []string{kindFile}, Duration: time.Hour, Seed: 1}
	var report Report
	ended := make(chan error, 1)
	go func() {
		var err error
		report, err = Run(ctx, plan, path, t.Logf)
		ended <- err
	}()
	testenv.Eventually(t, time.Minute, "a sample is written, or the run is over", func() bool {
		_, samples, _ := ReadSamples(path)
		return len(samples) > 0 || len(ended) > 0
	})
	cancel()
	err := <-ended
	if err != nil || len(report.Backends) != 1 || !report.Backends[0].Closed || report.Backends[0].Left != 0 {
		t.Errorf("%v: %+v", err, report)
	}
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// The table of the document has both halves of a series in one row.
func TestTable(t *testing.T) {
	var samples []Sample
	for i := range 40 {
		samples = append(samples, Sample{Backend: "redis", At: float64(i) * 180, Rest: true, Figures: map[string]float64{
			goroutines: 35, lockKeys: float64(max(0, i-20)), names: float64(i),
		}})
	}
	var text bytes.Buffer
	NewReport(hour, samples).WriteTable(&text)
	for _, row := range []string{
		"| redis | goroutines | 35 | 0 (0 to 0) | 0 (0 to 0) | flat, flat |",
		"| redis | keys of locks | 0 | 0 (0 to 0) | 20 (20 to 20) | flat, GROWS |",
	} {
		if !strings.Contains(text.String(), row) {
			t.Errorf("no row %q in\n%s", row, text.String())
		}
	}
	if strings.Contains(text.String(), "names") {
		t.Errorf("counts of work in\n%s", text.String())
	}
}

// Keys are told apart by their names.
func TestKindOf(t *testing.T) {
	for key, want := range map[string]string{
		"dlock:token\x0163": counterKeys, "lab:order-1": lockKeys, "{lab:order-1}\x01f": fenceKeys, "{lab:order-1}\x01y": queueKeys, "{lab:order-1}\x01r": queueKeys,
		"{lab:order-1}\x01w": queueKeys, "{lab:order-1}\x01b0123": tombstones, "{lab:order-1}\x01g": otherKeys, "{lab:order-1}\x01": otherKeys,
	} {
		if got := kindOf(key); got != want {
			t.Errorf("%q is one of the %s, want %s", key, got, want)
		}
	}
}

// The bytes without fences stay the same, however many fences there are.
func TestFencesAreSubtracted(t *testing.T) {
	server := testenv.Redis(t)
	prober := newRedisProber([]string{server.Addr()})
	defer prober.close()
	client := prober.clients[0]
	other := func(first, count int) float64 {
		pipe := client.Pipeline()
		for i := range count {
			pipe.Set(t.Context(), "{lab:order-"+strconv.Itoa(first+i)+"}\x01f", 1<<50+i, time.Hour)
		}
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
		figures, err := prober.probe(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		return figures[otherBytes]
	}
	other(10_000, 20_000) // the client and the server keep buffers from this
	before := other(30_000, 1)
	const count = 20_000
	if each := (other(40_000, count) - before) / count; each > 2 || each < -2 {
		t.Errorf("%.1f bytes of each fence are taken for something else", each)
	}
	if left, err := client.Keys(t.Context(), "soak:*").Result(); err != nil || len(left) != 0 {
		t.Errorf("%d keys of the measurement are left: %v", len(left), err)
	}
}

// Users ask for everything that those of the simulator can: unlocks that do not wait, and what was added to their
// calls since, such as Do as the owner of a key.
func TestUsersCallEverything(t *testing.T) {
	i := &instance{child: &child{orders: Orders{Backend: worker.Backend{Kind: kindMemory}}}}
	u := i.user("u", rand.New(rand.NewPCG(1, 1)))
	if u.Extra == nil || u.Several == nil || !u.Async {
		t.Errorf("%+v", u)
	}
}
