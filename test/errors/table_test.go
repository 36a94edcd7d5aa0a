// Package errors_test walks the table of docs/errors.md: each row is a fault that is
// brought about on real servers, and holds the page against what happens.
package errors_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

func TestMain(m *testing.M) {
	answerNoHost()                          // as long as this process lives
	if os.Getenv(testenv.StressEnv) == "" { // rows wait more than they work
		if err := flag.Set("test.parallel", "8"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent(),
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

const page = "../../docs/errors.md"

// A row is one line of the table.
type row struct {
	backend, fault string
	kind           error
	try, wait      string
	stored         string
	texts          []string // one of which is in the error
	cutShort       bool     // the last attempt was, so that something may be left to clean up
}

// kinds are the errors of which a row names exactly one.
var kinds = map[string]error{
	"ErrUnavailable": dlock.ErrUnavailable, "ErrDenied": dlock.ErrDenied, "ErrNotReady": dlock.ErrNotReady,
	"ErrUnknownOutcome": dlock.ErrUnknownOutcome, "ErrClosed": dlock.ErrClosed,
}

var quoted = regexp.MustCompile("`([^`]+)`")

// readTable returns the rows of the one table whose head begins with a backend.
func readTable(t *testing.T) []row {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var rows []row
	inside := false
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case !strings.HasPrefix(line, "|"):
			inside = false
		case cells[0] == "backend":
			inside = true
		case inside && !strings.HasPrefix(cells[0], "---"):
			rows = append(rows, readRow(t, cells))
		}
	}
	if len(rows) == 0 {
		t.Fatalf("%s has no table", page)
	}
	return rows
}

func readRow(t *testing.T, cells []string) row {
	t.Helper()
	if len(cells) != 7 {
		t.Fatalf("a row has %d cells: %q", len(cells), cells)
	}
	r := row{backend: cells[0], fault: cells[1], kind: kinds[strings.Trim(cells[2], "`")], try: cells[3], wait: cells[4], stored: cells[5]}
	for _, m := range quoted.FindAllStringSubmatch(cells[6], -1) {
		r.texts = append(r.texts, m[1])
	}
	known := r.kind != nil && len(r.texts) > 0 && slices.Contains([]string{"at once", "2 s"}, r.try) &&
		slices.Contains([]string{"at once", "wait"}, r.wait) && slices.Contains([]string{"no", "perhaps"}, r.stored)
	if !known {
		t.Fatalf("a row cannot be read: %q", cells)
	}
	return r
}

// A scene is a backend with a fault.
type scene struct {
	locks *dlock.Client
	// waits is for WithWait if TryLock leaves locks without the connections that it had.
	waits *dlock.Client
	// stored reports whether a lock is stored, whoever asks; nil if nothing can be.
	stored func(t *testing.T, key string) bool
	// keeps: nothing is cleaned up before the fault is healed, so that it must be stored.
	keeps bool
	// heal ends the fault, where something may be stored.
	heal func(t *testing.T)
}

// ttl is that of all locks: attempts then have their usual two seconds.
const ttl = time.Minute

func TestTable(t *testing.T) {
	walked := map[string]bool{}
	for _, r := range readTable(t) {
		name := r.backend + ", " + r.fault
		begin := procedures[name]
		if begin == nil || walked[name] {
			t.Errorf("%s: there is no procedure for this row, or a second row", name)
			continue
		}
		walked[name] = true
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testenv.StartMetronome(t)
			r.walk(t, begin(t))
		})
	}
	for name := range procedures {
		if !walked[name] {
			t.Errorf("%s: there is no row for this procedure", name)
		}
	}
}

const (
	// attempt is how long one attempt may take.
	attempt = 2 * time.Second
	// wait is for faults that may pass, longWait for those of which the caller is told
	// at once all the same. An answer takes a thousandth of it.
	wait     = 3 * time.Second
	longWait = time.Minute
	// answered is less than any server may take to answer: what is over sooner has not run out of time.
	answered = 400 * time.Millisecond
)

// slack is what a busy machine may add. Whether an attempt was answered its error tells: one
// that was not has another kind and text.
var slack = testenv.UnderStress(20*time.Second, 5*time.Second)

func (r *row) walk(t *testing.T, s scene) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	took, err := r.call(t, func() error {
		ok, err := s.locks.TryLock(ctx, "try")
		if ok {
			t.Fatal("the fault did not happen: TryLock has the lock")
		}
		return err
	})
	r.judge(t, "TryLock", err, r.kind)
	if r.try == "at once" && took >= testenv.UnderStress(slack, attempt) || took > attempt+slack {
		t.Errorf("TryLock took %v, want %s", took, r.try)
	}
	if s.waits == nil {
		s.waits = s.locks
	}
	patience := wait
	if r.wait == "at once" {
		patience = longWait
	}
	for tries := 1; ; tries++ {
		began := time.Now()
		took, err = r.call(t, func() error {
			_, err := s.waits.Acquire(ctx, "wait", dlock.WithWait(patience))
			return err
		})
		if tries == 5 || !r.endedDuringAttempt(t, err, began) {
			break
		}
		t.Logf("the wait ended during an attempt, once more: %v", err)
		r.cutShort = true
	}
	r.judgeWait(t, err)
	if r.wait == "at once" && took > longWait/2 || r.wait == "wait" && (took < wait || took > wait+slack) {
		t.Errorf("WithWait(%v) took %v, want %s", patience, took, r.wait)
	}
	r.look(t, s)
}

// call makes a call, and again if the machine stalled for so long that an attempt has ended before it met the fault.
func (r *row) call(t *testing.T, do func() error) (took time.Duration, err error) {
	t.Helper()
	for {
		began := time.Now()
		err = do()
		took = time.Since(began)
		isUnanswered := errors.Is(err, dlock.ErrUnknownOutcome) || errors.Is(err, dlock.ErrUnavailable)
		if !isUnanswered || errors.Is(err, r.kind) && r.hasText(err) || !testenv.Stalled(t, began, answered) {
			return took, err
		}
		r.cutShort = true
		t.Logf("the machine stalled, so the call is repeated: %v", err)
	}
}

// hasText reports whether the text of an error is one that the row has.
func (r *row) hasText(err error) bool {
	return slices.ContainsFunc(r.texts, func(text string) bool { return strings.Contains(err.Error(), text) })
}

// judgeWait holds the error of a wait against its row. If the wait ended during an attempt, the row
// has the cause of the attempt before, and the outcome is unknown, as the page says.
func (r *row) judgeWait(t *testing.T, err error) {
	t.Helper()
	if errors.Is(r.kind, dlock.ErrNotReady) && errors.Is(err, dlock.ErrUnknownOutcome) {
		r.cutShort = true
		r.judge(t, "WithWait", err, r.kind, dlock.ErrUnknownOutcome)
		return
	}
	r.judge(t, "WithWait", err, r.kind)
}

// unanswered is what an error says of an attempt that had no answer, and how long that was.
var unanswered = regexp.MustCompile("no answer within ([^ ,]+)")

// endedDuringAttempt reports whether a wait for servers that refuse has ended while they were asked. Then the outcome is unknown,
// and not unavailable. The attempt began shortly before the end, or the machine stalled.
func (r *row) endedDuringAttempt(t *testing.T, err error, began time.Time) bool {
	t.Helper()
	if !errors.Is(r.kind, dlock.ErrUnavailable) || !errors.Is(err, dlock.ErrUnknownOutcome) {
		return false
	}
	found := unanswered.FindStringSubmatch(err.Error())
	if found == nil {
		return false
	}
	had, bad := time.ParseDuration(found[1])
	if bad != nil {
		t.Fatalf("%v: %v", err, bad)
	}
	return had < answered || testenv.Stalled(t, began, answered)
}

// judge holds an error against its row: it is of these kinds and no other.
func (r *row) judge(t *testing.T, what string, err error, want ...error) {
	t.Helper()
	if err == nil {
		t.Fatalf("the fault did not happen: %s has the lock", what)
	}
	t.Logf("%s: %v", what, err)
	for name, kind := range kinds {
		if errors.Is(err, kind) != slices.Contains(want, kind) {
			t.Errorf("%s: %v: it is %s: %v", what, err, name, errors.Is(err, kind))
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, dlock.ErrLockHeldByOther) {
		t.Errorf("%s: %v: the caller's context has not ended, and the lock is free", what, err)
	}
	if !r.hasText(err) {
		t.Errorf("%s: %v: the text has none of %q", what, err, r.texts)
	}
}

// look finds out whether anything is stored. What may be is cleaned up when the fault is
// over; of what cannot be, Close has nothing to say.
func (r *row) look(t *testing.T, s scene) {
	t.Helper()
	for _, key := range []string{"try", "wait"} {
		if r.stored == "no" && s.stored != nil && s.stored(t, key) {
			t.Errorf("%q is stored", key)
		}
	}
	if s.keeps && !s.stored(t, "try") {
		t.Error("the fault did not happen: nothing is stored")
	}
	if r.stored == "perhaps" {
		s.heal(t)
		testenv.Eventually(t, testenv.UnderStress(ttl*2/3, 4*slack), "nothing is left of it", func() bool { return !s.stored(t, "try") && !s.stored(t, "wait") })
		return
	}
	if r.cutShort {
		return
	}
	began := time.Now()
	err := s.locks.Close()
	took := time.Since(began)
	if errors.Is(err, dlock.ErrUnknownOutcome) && testenv.Stalled(t, began, answered) {
		return // not even a refusal has come in time
	}
	if err != nil || took >= testenv.UnderStress(slack, 2*time.Second) { // with something to clean up it is an error after two seconds
		t.Errorf("Close: %v after %v", err, took)
	}
}
