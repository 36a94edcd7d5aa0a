package dashboard

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/internal/lockreader"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// beyond returns a page on a store with more locks than are read.
func beyond(t *testing.T) *fixture {
	f := setUp(t, WithMaxLocks(1))
	f.take("a")
	f.take("b")
	return f
}

// However many viewers look at a lock that is not in the list, it is asked for once per interval.
func TestLockBeyondTheLimitIsAskedForOnce(t *testing.T) {
	f := beyond(t)
	const path = "/api/v1/lock?source=memory&key=z"
	get[detail](f, path)
	p := f.page.sources[0]
	began := time.Now()
	_, before := p.reader.Calls()
	var viewers sync.WaitGroup
	for range 10 {
		viewers.Go(func() {
			for range 20 {
				f.request(http.MethodGet, path, "")
			}
		})
	}
	viewers.Wait()
	_, after := p.reader.Calls()
	rounds := int64(time.Since(began)/minInterval) + 2
	if most := rounds * (1 + int64(len(relatedTo("z")))); after-before > most { // the list has one lock
		t.Errorf("%d questions in %d intervals for 200 requests, at most %d are allowed", after-before, rounds, most)
	}
}

// At most 16 keys that are not in the list are asked for in an interval; too many requests are refused.
func TestAskerIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withoutServer(t)
		p := f.page.sources[0]
		began := time.Now()
		var took [2 * askedAtOnce]time.Duration
		var all sync.WaitGroup
		for i := range took {
			all.Go(func() {
				if _, _, err := p.asker.ask(t.Context(), fmt.Sprint("k", i)); err != nil {
					t.Error(err)
				}
				took[i] = time.Since(began)
			})
		}
		all.Wait()
		late := 0
		for _, d := range took {
			if d >= minInterval {
				late++
			}
		}
		if late != askedAtOnce || time.Since(began) != minInterval {
			t.Errorf("%d answers came in the second interval, the last after %v", late, time.Since(began))
		}
		time.Sleep(minInterval)
		synctest.Wait()
		if n := len(p.asker.questions); n != 0 {
			t.Errorf("%d answers are kept after their interval", n)
		}
		for i := range maxQuestions {
			p.asker.questions[fmt.Sprint("q", i)] = &question{}
		}
		if _, _, err := p.asker.ask(t.Context(), "one more"); !errors.Is(err, errBusy) {
			t.Errorf("%v", err)
		}
	})
}

// A backend that hangs gets the questions about 16 keys at a time, also if the interval is shorter.
func TestAskerWaitsForReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withoutServer(t)
		hang := make(chan struct{})
		f.store.hangInspect.Store(&hang)
		var all sync.WaitGroup
		for i := range 2 * askedAtOnce {
			all.Go(func() {
				if _, _, err := f.page.sources[0].asker.ask(t.Context(), fmt.Sprint("k", i)); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(lockreader.Timeout / 2)
		synctest.Wait()
		if n, most := f.store.inspects.Load(), int64(askedAtOnce*len(relatedTo("k"))); n != most {
			t.Errorf("%d questions at a time, not %d", n, most)
		}
		close(hang)
		all.Wait()
	})
}

// A question that was refused because there were too many is asked when there is a slot.
func TestAskerForgetsRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withoutServer(t, WithInterval(maxInterval))
		a := f.page.sources[0].asker
		began := time.Now()
		for i := range askedAtOnce {
			if _, _, err := a.ask(t.Context(), fmt.Sprint("k", i)); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := a.ask(t.Context(), "one more"); !errors.Is(err, errBusy) || time.Since(began) != lockreader.Timeout {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		time.Sleep(time.Until(began.Add(maxInterval)))
		synctest.Wait()
		if _, _, err := a.ask(t.Context(), "one more"); err != nil {
			t.Error(err)
		}
	})
}

// If the backend fails, a lock of the list is shown as it was read; another one is not free, but unknown.
func TestAskerFails(t *testing.T) {
	f := beyond(t)
	get[detail](f, "/api/v1/lock?source=memory&key=a")
	f.store.failsInspect.Store(true)
	text, err := io.ReadAll(f.request(http.MethodGet, "/api/v1/lock?source=memory&key=z", "").Body)
	if err != nil || !strings.Contains(string(text), `"error":"backend"`) {
		t.Errorf("%v: %s", err, text)
	}
	listed := "a"
	for key := range f.page.sources[0].current().rows {
		listed = key
	}
	if d := get[detail](f, "/api/v1/lock?source=memory&key="+listed); d.HolderCount != 1 { // from the list
		t.Errorf("%+v", d)
	}
}

// If the backend hangs, the page of a lock of the list is soon answered with what the list has.
func TestListedLockOfBackendThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withoutServer(t, WithMaxLocks(1))
		f.take("a", dlock.WithTTL(time.Hour))
		f.take("b", dlock.WithTTL(time.Hour))
		p := f.page.sources[0]
		defer p.join()()
		time.Sleep(minInterval / 2)
		if s := p.current(); !s.more || s.rows["a"] == nil {
			t.Fatalf("%+v", s)
		}
		hang := make(chan struct{})
		f.store.hangInspect.Store(&hang)
		for range 3 { // the first asks, the others wait for the same answer
			began := time.Now()
			w := httptest.NewRecorder()
			f.page.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/api/v1/lock?source=memory&key=a", http.NoBody))
			var d detail
			if err := json.Unmarshal(w.Body.Bytes(), &d); err != nil || d.HolderCount != 1 || time.Since(began) != listedTimeout {
				t.Errorf("%d after %v: %v, %s", w.Code, time.Since(began), err, w.Body)
			}
		}
		if n, most := f.store.inspects.Load(), int64(len(p.current().rows)*2+len(relatedTo("a"))); n > most {
			t.Errorf("%d questions, at most %d are allowed", n, most) // two readings, and one question
		}
		close(hang)
	})
}

// The job of a lock that is not in the list is on its page.
func TestJobBeyondTheLimit(t *testing.T) {
	f := setUp(t, WithMaxLocks(1))
	f.take("a", dlock.WithTTL(time.Hour))
	f.run("report", time.Hour, succeed)
	_, term := f.elect("leader")
	f.take("leader:value", dlock.WithInfo(dlock.Info{Purpose: fmt.Sprint(term, " here")}))
	for _, key := range []string{"report", "report:runs"} {
		if d := get[detail](f, "/api/v1/lock?source=memory&key="+key); d.Job == nil || d.Job.State != jobDone || len(d.Runs) != 1 {
			t.Errorf("%s: %+v, %+v", key, d.Job, d.Runs)
		}
	}
	if d := get[detail](f, "/api/v1/lock?source=memory&key=leader"); d.Leader == nil || d.Leader.Value != "here" {
		t.Errorf("%+v", d.part)
	}
}
