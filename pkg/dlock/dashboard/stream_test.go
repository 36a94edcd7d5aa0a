package dashboard

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// A stream begins with everything, and goes on with differences.
func TestStreamSendsDifferences(t *testing.T) {
	f := setUp(t)
	long := []dlock.LockOption{dlock.WithTTL(time.Hour), dlock.WithoutRenewal()} // a renewal is a change, too
	first := f.take("a", append(long, dlock.WithInfo(dlock.Info{Owner: "ann", Host: "web-1", PID: 7, Purpose: "test"}))...)
	f.take("b", long...)
	next, _ := f.follow()
	greeting := next()
	var h hello
	if err := json.Unmarshal([]byte(greeting.data), &h); err != nil || greeting.name != "hello" || h.Evict || h.Interval != 250 || len(h.Sources) != 1 {
		t.Fatalf("%v: %+v", err, greeting)
	}
	u := f.nextUpdate(next)
	if !u.Full || len(u.Changed) != 2 || u.Source != "memory" || u.Backend != "memory" || u.Answer <= 0 {
		t.Fatalf("%+v", u)
	}
	for _, r := range u.Changed {
		if r.Key != "a" {
			continue
		}
		c := r.Holders[0]
		if c.Owner != "ann" || c.Host != "web-1" || c.PID != 7 || c.Purpose != "test" || c.Token != fmt.Sprint(first.Token()) || c.Since == 0 || c.Until <= c.Since {
			t.Errorf("%+v", c)
		}
	}
	f.take("c", long...)
	if u := f.nextUpdate(next); u.Full || len(u.Changed) != 1 || u.Changed[0].Key != "c" || len(u.Removed) != 0 {
		t.Errorf("%+v", u)
	}
	if err := first.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if u := f.nextUpdate(next); u.Full || len(u.Changed) != 0 || len(u.Removed) != 1 || u.Removed[0] != "a" {
		t.Errorf("%+v", u)
	}
	f.queue("b", dlock.WithInfo(dlock.Info{Owner: "bob"}))
	if u := f.nextUpdate(next); len(u.Changed) != 1 || *u.Changed[0].Waiters != 1 || u.Changed[0].WaitingSince == 0 {
		t.Errorf("%+v", u)
	}
}

// No answer has a claim ID, which is the right to release a lock.
func TestNoClaimIDs(t *testing.T) {
	f := setUp(t, WithEvict())
	f.take("k")
	f.queue("k")
	ids := f.claimIDs("k")
	next, _ := f.follow()
	var all strings.Builder
	for !strings.Contains(all.String(), `"full":true`) {
		all.WriteString(next().data)
	}
	for _, path := range []string{"/api/v1/locks", "/api/v1/lock?source=memory&key=k", "/api/v1/health"} {
		text, err := io.ReadAll(f.request(http.MethodGet, path, "").Body)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	if len(ids) != 2 || !strings.Contains(all.String(), `"key":"k"`) {
		t.Fatalf("%d claims, %s", len(ids), all.String())
	}
	for _, id := range ids {
		if strings.Contains(all.String(), id) {
			t.Errorf("a claim ID is in %s", all.String())
		}
	}
}

// A reader that has missed snapshots gets the newest one, and no more.
func TestSlowViewersSkip(t *testing.T) {
	f := setUp(t)
	next, _ := f.follow()
	u := f.nextUpdate(next)
	for i := range 5 {
		f.take(fmt.Sprint("k", i))
		before := f.page.sources[0].current().seq
		f.eventually("a snapshot", func() bool { return f.page.sources[0].current().seq > before })
	}
	seen := map[string]bool{}
	for last := u.Seq; len(seen) < 5; {
		u := f.nextUpdate(next)
		if u.Seq <= last || u.Full {
			t.Errorf("snapshot %d after %d", u.Seq, last)
		}
		last = u.Seq
		for _, r := range u.Changed {
			seen[r.Key] = true
		}
	}
}

// Close ends streams, and later requests get 503.
func TestClose(t *testing.T) {
	f := setUp(t)
	next, _ := f.follow()
	if e := next(); e.name != "hello" {
		t.Fatalf("%+v", e)
	}
	if err := f.page.Close(); err != nil {
		t.Fatal(err)
	}
	d := described(t)
	for _, path := range []string{"/api/v1/stream", "/api/v1/locks", "/api/v1/health", "/metrics"} {
		if got := f.request(http.MethodGet, path, "").StatusCode; got != http.StatusServiceUnavailable {
			t.Errorf("%s: %d", path, got)
		}
		if _, ok := d.Paths[path]["get"].Responses["503"]; !ok {
			t.Errorf("%s: 503 is not described", path)
		}
	}
	if err := f.page.Close(); err != nil {
		t.Errorf("again: %v", err)
	}
}

// However many viewers there are, the backend is read once per interval; without one, not at all.
func TestReadingIsBounded(t *testing.T) {
	f := setUp(t)
	f.take("k")
	if n := f.store.lists.Load(); n != 0 {
		t.Fatalf("%d readings without a viewer", n)
	}
	var leave []func()
	for range 20 {
		next, l := f.follow()
		f.nextUpdate(next)
		leave = append(leave, l)
	}
	began, before := time.Now(), f.store.lists.Load()
	f.eventually("some readings", func() bool { return f.store.lists.Load() >= before+4 })
	for range 50 { // requests are answered from memory
		get[map[string]any](f, "/api/v1/lock?source=memory&key=k")
	}
	lists, took := f.store.lists.Load()-before, time.Since(began)
	if most := int64(took/minInterval) + 2; lists > most {
		t.Errorf("%d readings in %v, at most %d are allowed", lists, took, most)
	}
	for _, l := range leave {
		l()
	}
	p := f.page.sources[0]
	f.eventually("the reading ends", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.running
	})
	after := f.store.lists.Load()
	for range 3 { // each joins and leaves: the bound holds across that
		get[map[string]any](f, "/api/v1/locks")
	}
	if n := f.store.lists.Load() - after; n > 4 {
		t.Errorf("%d readings for three requests", n)
	}
	if n := f.store.checks.Load(); n > 1+int64(time.Since(began)/checkEvery) {
		t.Errorf("the settings were checked %d times", n)
	}
}

// A source that fails keeps its last locks, says why, and comes back.
func TestOutage(t *testing.T) {
	f := setUp(t)
	f.take("k")
	next, _ := f.follow()
	f.nextUpdate(next)
	f.store.fails.Store(true)
	await := func(bad bool) update {
		for {
			var u update
			if e := next(); e.name == "update" && json.Unmarshal([]byte(e.data), &u) == nil && (u.Error != "") == bad {
				return u
			}
		}
	}
	if u := await(true); u.Locks != 1 || len(u.Removed) != 0 || u.At == 0 {
		t.Errorf("%+v", u)
	}
	f.store.fails.Store(false)
	if u := await(false); u.Locks != 1 {
		t.Errorf("%+v", u)
	}
}

func TestMaxLocks(t *testing.T) {
	f := setUp(t, WithMaxLocks(3))
	for i := range 5 {
		f.take(fmt.Sprint("k", i))
	}
	type locks struct{ Sources []sourceLocks }
	if all := get[locks](f, "/api/v1/locks").Sources[0]; len(all.Rows) != 3 || !all.More {
		t.Errorf("%+v", all)
	}
}

func (f *fixture) claimIDs(key string) (ids []string) {
	f.Helper()
	d, err := f.store.Store.Open(driverOptions)
	if err != nil {
		f.Fatal(err)
	}
	defer d.Close()
	claims, err := d.(adminDriver).Inspect(f.Context(), key)
	if err != nil {
		f.Fatal(err)
	}
	for i := range claims {
		ids = append(ids, claims[i].ID)
	}
	return ids
}

// A writer that cannot flush would keep events back: the page says so.
func TestNoFlush(t *testing.T) {
	f := setUp(t)
	f.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.page.ServeHTTP(struct{ http.ResponseWriter }{w}, r)
	})
	if got := f.request(http.MethodGet, "/api/v1/stream", "").StatusCode; got != http.StatusInternalServerError {
		t.Errorf("%d", got)
	}
}

// Many locks come in several events, of which only the first says that it begins anew.
func TestLargeUpdatesComeInParts(t *testing.T) {
	f := setUp(t)
	for i := range 2*maxRows + 1 {
		f.take(fmt.Sprint("k", i), dlock.WithTTL(time.Hour), dlock.WithoutRenewal())
	}
	next, _ := f.follow()
	seen, seq := map[string]bool{}, uint64(0)
	for part := range 3 {
		u := f.nextUpdate(next)
		if part == 0 {
			seq = u.Seq
		}
		if u.Full != (part == 0) || u.Seq != seq || len(u.Changed) > maxRows || u.Locks != 2*maxRows+1 {
			t.Errorf("part %d: full %v, seq %d, %d of %d locks", part, u.Full, u.Seq, len(u.Changed), u.Locks)
		}
		for _, r := range u.Changed {
			seen[r.Key] = true
		}
	}
	if len(seen) != 2*maxRows+1 {
		t.Errorf("%d locks", len(seen))
	}
}
