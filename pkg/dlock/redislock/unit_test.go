package redislock

import (
	"errors"
	"io"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// The slots that the cluster specification and real servers use.
func TestSlots(t *testing.T) {
	for key, want := range map[string]int{"123456789": 12739, "foo": 12182, "{foo}bar": 12182, "bar{foo}": 12182, "": 0, "a": 15495} {
		if got := slotOf(key); got != want {
			t.Errorf("slot of %q is %d, want %d", key, got, want)
		}
	}
	for _, slot := range []int{0, 1, 8191, 16383} {
		if got := slotOf(slotChannel(slot, "me")); got != slot {
			t.Errorf("the channel of slot %d is in slot %d", slot, got)
		}
	}
}

// The keys of a lock share its slot, or the name is refused on a cluster.
func TestSiblingsShareTheSlot(t *testing.T) {
	for _, tc := range []struct {
		name   string
		base   string
		placed bool
	}{
		{"plain", "{plain}", true},
		{"{tag}x", "{tag}x" + separator, true},
		{"x{tag}", "x{tag}" + separator, true},
		{"a{b", "{a{b}", true},
		{"{{x}}", "{{x}}" + separator, true},
		{"{}", "{}" + separator, false},
		{"}{", "}{" + separator, false},
		{"a}b", "a}b" + separator, false},
		{"{}a{b}", "{}a{b}" + separator, false},
	} {
		base, placed := redisnode.Siblings(tc.name)
		if base != tc.base || placed != tc.placed {
			t.Errorf("siblings of %q: %q, %v", tc.name, base, placed)
		}
		if placed && slotOf(base+separator+"q") != slotOf(tc.name) {
			t.Errorf("%q and its queue are in different slots", tc.name)
		}
	}
	d := &redisDriver{cluster: &redis.ClusterClient{}}
	if _, err := d.namesOf("a}b"); !errors.Is(err, driver.ErrInvalidKey) {
		t.Errorf("a name that cannot be placed: %v", err)
	}
}

func TestClassify(t *testing.T) {
	for text, want := range map[string]struct {
		err   error
		class driver.Class
	}{
		"OOM command not allowed":             {ErrOutOfMemory, driver.Transient},
		"READONLY You can't write":            {driver.ErrNotReady, driver.Transient},
		"BUSY Redis is busy running a script": {driver.ErrNotReady, driver.Transient},
		"NOPERM no permissions":               {driver.ErrDenied, driver.Fatal},
		"ERR The user executing the script can't run this command or subcommand script: x": {driver.ErrDenied, driver.Fatal},
		"WRONGTYPE Operation against a key":                                                {ErrNotALock, driver.Fatal},
		"CROSSSLOT Keys in request":                                                        {driver.ErrInvalidKey, driver.Fatal},
		"ERR Error running script: -OOM command not":                                       {ErrOutOfMemory, driver.Transient},
		"ERR user_script:1: WRONGTYPE Operation against a":                                 {ErrNotALock, driver.Fatal},
		"ERR something else":                                                               {nil, driver.Fatal},
	} {
		err := redisnode.Classify(replyError(text))
		if driver.ClassOf(err) != want.class || (want.err != nil && !errors.Is(err, want.err)) {
			t.Errorf("%q became %v, class %d", text, err, driver.ClassOf(err))
		}
	}
	if err := redisnode.Classify(io.EOF); !errors.Is(err, io.EOF) || driver.ClassOf(err) != driver.Ambiguous {
		t.Errorf("EOF became %v", err)
	}
	if redisnode.Classify(nil) != nil {
		t.Error("nil became an error")
	}
}

type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

func TestCursor(t *testing.T) {
	for _, at := range []position{{2, 77, []string{"a key", "another"}}, {0, 1, nil}} {
		got, err := parseCursor(at.String())
		if err != nil || got.node != at.node || got.scan != at.scan || !slices.Equal(got.left, at.left) {
			t.Errorf("%+v, %v", got, err)
		}
	}
	for _, bad := range []string{"x", "1", "1 2", "a\x012\x01k", "1\x01b\x01k", "-1\x012\x01k"} {
		if _, err := parseCursor(bad); driver.ClassOf(err) != driver.Fatal || err == nil {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestOpenRefusesBadSettings(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { _ = client.Close() }()
	ring := redis.NewRing(&redis.RingOptions{})
	defer func() { _ = ring.Close() }()
	for name, o := range map[string]driver.Opener{
		"nil client":       New(nil),
		"negative":         New(client, WithMinReplicas(-1, time.Second)),
		"no time":          New(client, WithMinReplicas(1, 0)),
		"too much time":    New(client, WithMinReplicas(1, math.MaxInt64)),
		"gap too long":     New(client, WithPlainClients(time.Minute)),
		"negative gap":     New(client, WithPlainClients(-1)),
		"a ring of caches": New(ring),
	} {
		if d, err := o.Open(driver.Options{Logger: slog.New(slog.DiscardHandler)}); err == nil || d != nil {
			t.Errorf("%s: %v, %v", name, d, err)
		}
	}
}

// A reply is accepted only if it names the claim.
func FuzzReply(f *testing.F) {
	for _, text := range []string{"held id 12", "queued id 0 3 -7", "gone other x", "held id", "held", "", "queued id 0 3 99999999999999999999", "queued id 0 3 1 unsubscribed", "held id 0 more", "again id 0", "full id 100000"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := driver.Ref{Key: "k", ID: "id", TTL: 3 * time.Second}
		sent := time.Now()
		a, err := parseAnswer(text, r, sent)
		full := errors.Is(err, ErrQueueFull) && driver.ClassOf(err) == driver.Transient
		if err != nil {
			if !full && (!errors.Is(err, ErrUnexpectedReply) || driver.ClassOf(err) != driver.Ambiguous) {
				t.Errorf("%v", err)
			}
			return
		}
		if a.retry {
			if a.state != (driver.State{}) {
				t.Errorf("%q became %+v", text, a)
			}
			return
		}
		st := a.state
		ours := strings.HasPrefix(text, st.Phase.String()+" id ")
		if !ours || (st.Phase == driver.Held && !st.Until.Equal(sent.Add(r.TTL))) || st.Recheck < 0 && st.Phase == driver.Queued {
			t.Errorf("%q became %+v", text, st)
		}
	})
}

// The fields that a script returns in addition to the state.
func TestParseAnswer(t *testing.T) {
	r := driver.Ref{ID: "id", TTL: time.Second}
	queued := driver.State{Phase: driver.Queued, Ahead: 3, Recheck: 7 * time.Millisecond}
	for text, want := range map[string]answer{
		"queued id 0 3 7":              {state: queued},
		"queued id 0 3 7 unsubscribed": {state: queued, unsubscribed: true},
		"held id 5":                    {state: driver.State{Phase: driver.Held, Token: 5}},
		"held id 0 more":               {state: driver.State{Phase: driver.Held}, more: true},
		"gone id 0":                    {state: driver.State{Phase: driver.Gone}},
		"again id 0":                   {retry: true},
	} {
		if got, err := parseAnswer(text, r, time.Time{}); err != nil || got != want {
			t.Errorf("%q became %+v, %v", text, got, err)
		}
	}
	if _, err := parseAnswer("full id 100000", r, time.Time{}); !errors.Is(err, ErrQueueFull) || driver.ClassOf(err) != driver.Transient || !strings.Contains(err.Error(), "100000") {
		t.Errorf("a full queue became %v", err)
	}
}

func TestAReplyOfAnotherKind(t *testing.T) {
	for _, reply := range []any{nil, int64(1), []any{"held", "id", "12"}} {
		if st, err := parseAnswer(reply, driver.Ref{ID: "id"}, time.Now()); !errors.Is(err, ErrUnexpectedReply) {
			t.Errorf("%v became %+v, %v", reply, st, err)
		}
	}
}

// Scripts are fixed, and document their keys and arguments.
func TestScriptHeaders(t *testing.T) {
	for name, source := range map[string]string{"acquire": acquireLua, "renew_held": renewHeldLua, "renew_queue": renewQueueLua, "release": releaseLua, "inspect": inspectLua} {
		head := strings.Split(source, "\nlocal ")[0]
		if !strings.Contains(head, "-- KEYS lock") || !strings.Contains(head, "-- Returns ") {
			t.Errorf("%s.lua has no header", name)
		}
	}
	hashes := []string{acquireScript.Hash, renewHeldScript.Hash, renewQueueScript.Hash, releaseScript.Hash, inspectScript.Hash}
	if slices.Sort(hashes); len(slices.Compact(hashes)) != 5 {
		t.Error("two scripts are the same")
	}
}

// An answer arrives after Renew has returned. The claim may have been submitted again since, so the
// answer does not remove it from the table of waiting claims: it would not receive its grant.
func TestLateRenewalAnswerIsIgnored(t *testing.T) {
	for _, returned := range []bool{false, true} {
		d := &redisDriver{waiting: map[string]waiter{"id": {key: "k"}}}
		r := &renewal{driver: d, refs: []driver.Ref{{Key: "k", ID: "id"}}, states: make([]driver.State, 1), returned: returned}
		r.set(0, driver.State{Phase: driver.Gone})
		if kept := len(d.waiting) == 1; kept != returned || (r.states[0].Phase == driver.Unknown) != returned {
			t.Errorf("Renew has returned: %v; the claim waits: %v, state %v", returned, kept, r.states[0].Phase)
		}
	}
}

// A burnt ID is kept for its time, however many there are, because a late release of it may arrive.
// IDs whose time has passed are dropped.
func TestBurntIDsAreKeptForTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &redisDriver{}
		d.retire("long", time.Hour)
		for i := range maxRetired {
			d.retire(strconv.Itoa(i), time.Minute)
		}
		if !d.isRetired("long") || !d.isRetired("0") || len(d.retired) != maxRetired+1 {
			t.Errorf("%d are kept", len(d.retired))
		}
		time.Sleep(2 * time.Minute)
		d.retire("next", time.Minute)
		if !d.isRetired("long") || !d.isRetired("next") || len(d.retired) != 2 {
			t.Errorf("%d are kept after their time", len(d.retired))
		}
	})
}

// What belongs to a master that has left the cluster is forgotten, but not before its calls have ended.
func TestUnusedPipelinersAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &redisDriver{}
		d.pipelinerAt("unused")
		d.pipelinerAt("sending").inFlight = 1
		d.pipelinerAt("pending").pending = []*pendingCall{{}}
		d.pipelinerAt("delayed").delayed = []*pendingCall{{}}
		wantKnown := func(want ...string) {
			t.Helper()
			got := slices.Sorted(maps.Keys(*d.byMaster.byAddr.Load()))
			if !slices.Equal(got, want) {
				t.Errorf("known are %v, want %v", got, want)
			}
		}
		time.Sleep(forgetAfter)
		d.pipelinerAt("in time")
		wantKnown("delayed", "in time", "pending", "sending", "unused")
		time.Sleep(time.Nanosecond)
		d.pipelinerAt("later")
		wantKnown("delayed", "in time", "later", "pending", "sending")
	})
}
