package watch

import "testing"

const key = "lab:k"

// A story is what three servers say, and which locks that ended.
func story(t *testing.T) (*quorum, *[]Death) {
	t.Helper()
	w := &Watcher{}
	q := newQuorum(3, w.end, w.undo)
	for i := range 3 {
		if ask := q.hear(i, true); len(ask) > 0 {
			t.Fatalf("asks for %v at the beginning", ask)
		}
	}
	for i := range 3 {
		q.set(i, key, -1, "")
		q.set(i, key, 7, "")
	}
	return q, &w.deaths
}

func expect(t *testing.T, deaths *[]Death, want ...string) {
	t.Helper()
	if len(*deaths) != len(want) {
		t.Fatalf("%d locks ended, want %d: %+v", len(*deaths), len(want), *deaths)
	}
	for i, d := range *deaths {
		if d.Cause != want[i] || d.Key != "k" || d.Fence != 7 {
			t.Errorf("%+v, want %s", d, want[i])
		}
	}
}

func TestALockEndsWithItsMajority(t *testing.T) {
	q, deaths := story(t)
	q.set(0, key, 0, "del")
	expect(t, deaths)
	q.set(2, key, 0, "expired")
	expect(t, deaths, "expired")
	q.set(1, key, 0, "del")
	expect(t, deaths, "expired")
}

// A renewal stores a lock again where it was missing.
func TestAServerThatHasItAgain(t *testing.T) {
	q, deaths := story(t)
	q.set(0, key, 0, "del")
	q.set(0, key, 7, "")
	q.set(1, key, 0, "del")
	expect(t, deaths)
	q.set(2, key, 0, "del")
	expect(t, deaths, "del")
	q.set(1, key, 7, "") // which was before, and heard later
	expect(t, deaths)
}

// A server that cannot be heard may have it.
func TestAServerThatIsNotHeard(t *testing.T) {
	q, deaths := story(t)
	q.hear(0, false)
	q.set(1, key, 0, "del")
	expect(t, deaths)
	if ask := q.hear(0, true); len(ask) != 1 || ask[0] != key {
		t.Errorf("asks for %v", ask)
	}
	expect(t, deaths)
	q.set(0, key, 0, "not stored")
	expect(t, deaths, "not stored")
}

// What a server may have been given while it was not heard is not known.
func TestAGrantThatWasNotHeard(t *testing.T) {
	q, deaths := story(t)
	const other = "lab:other"
	q.hear(0, false)
	q.hear(0, true)
	q.set(1, other, 9, "")
	q.set(2, other, 9, "")
	q.set(1, other, 0, "del")
	expect(t, deaths)
	q.set(2, other, 0, "del")
	if len(*deaths) != 1 || (*deaths)[0].Fence != 9 {
		t.Errorf("%+v", *deaths)
	}
}
