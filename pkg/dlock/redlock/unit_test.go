package redlock

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

func TestOpenRefuses(t *testing.T) {
	client := func(addr string) redis.UniversalClient {
		c := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"c:1"}})
	t.Cleanup(func() { _ = cluster.Close() })
	ring := redis.NewRing(&redis.RingOptions{})
	t.Cleanup(func() { _ = ring.Close() })
	a, b, c, d := client("a:1"), client("b:1"), client("c:1"), client("d:1")
	three := []redis.UniversalClient{a, b, c}
	for reason, o := range map[string]driver.Opener{
		"0 servers":                New(nil),
		"1 servers":                New(three[:1]),
		"4 servers":                New([]redis.UniversalClient{a, b, c, d}),
		"client 1 is nil":          New([]redis.UniversalClient{a, nil, c}),
		"client 2 is nil":          New([]redis.UniversalClient{a, b, (*redis.Client)(nil)}),
		"clients 0 and 2 are":      New([]redis.UniversalClient{a, b, a}),
		"clients 1 and 2 are":      New([]redis.UniversalClient{a, b, client("b:1")}),
		"client 2 is one of a clu": New([]redis.UniversalClient{a, b, cluster}),
		"client 0 is a *redis.Rin": New([]redis.UniversalClient{ring, b, c}),
		"option 1 is nil":          New(three, WithDrift(0), nil),
		"WithDrift(-1)":            New(three, WithDrift(-1)),
		"WithDrift(NaN)":           New(three, WithDrift(math.NaN())),
		"WithDrift(0.9)":           New(three, WithDrift(0.9)),
		"WithNodeTimeout(-1ns)":    New(three, WithNodeTimeout(-1)),
		"WithNodeTimeout(1m0s)":    New(three, WithNodeTimeout(time.Minute)),
	} {
		got, err := o.Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
		want := ErrInvalidServers
		if strings.HasPrefix(reason, "option") || strings.HasPrefix(reason, "With") {
			want = xerrors.ErrInvalidConfig
		}
		if !errors.Is(err, want) || got != nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v, %v", reason, got, err)
		}
	}
}

// The drift and the rounding of expiries shorten the validity, and a node may take only a small
// part of a lease.
func TestValidity(t *testing.T) {
	s := settings{drift: 0.01}
	sent := time.Now()
	if got := s.until(sent, 10*time.Second).Sub(sent); got != 9898*time.Millisecond {
		t.Errorf("%v of 10 s are valid", got)
	}
	for ttl, want := range map[time.Duration]time.Duration{
		100 * time.Millisecond: 25 * time.Millisecond, 800 * time.Millisecond: 200 * time.Millisecond, time.Hour: defaultNodeTimeout,
	} {
		if got := s.patience(ttl); got != want || got > ttl/4 {
			t.Errorf("with a TTL of %v a node has %v, want %v", ttl, got, want)
		}
	}
}

// What too few answers mean for the caller, and which of several causes they name: the one that prevents a majority.
func TestNoQuorum(t *testing.T) {
	unsent, unknown, denied := driver.Classify(driver.ErrUnavailable, driver.Transient), errors.New("EOF"), driver.Classify(driver.ErrDenied, driver.Fatal)
	loading, foreign := driver.Classify(driver.ErrNotReady, driver.Transient), driver.Classify(ErrNotALock, driver.Fatal)
	closed := redisnode.Unsent(redis.ErrClosed)
	for name, tc := range map[string]struct {
		errs   []error
		of     int
		stored bool
		want   driver.Class
		cause  error // unless it is ambiguous
		ends   bool  // a wait
		unsent bool
	}{
		"one says what is not known":     {errs: []error{nil, unsent, unsent}, of: 3, want: driver.Ambiguous},
		"nothing was sent":               {[]error{unsent, unsent}, 3, false, driver.Transient, driver.ErrUnavailable, false, true},
		"one may have it":                {[]error{unsent, unknown}, 3, false, driver.Ambiguous, nil, false, false},
		"one has it":                     {[]error{unsent, unsent}, 3, true, driver.Ambiguous, nil, false, false},
		"a majority denies":              {[]error{denied, denied}, 3, false, driver.Fatal, driver.ErrDenied, false, false},
		"a minority denies":              {[]error{denied, unsent}, 3, false, driver.Transient, driver.ErrUnavailable, false, false},
		"a majority denies later":        {[]error{unknown, denied, denied}, 3, true, driver.Fatal, driver.ErrDenied, false, false},
		"one is loading, others silent":  {[]error{errSilent, loading, errSilent}, 3, false, driver.Transient, driver.ErrNotReady, false, false},
		"foreign data and two away":      {[]error{unsent, unsent, foreign}, 3, false, driver.Transient, driver.ErrUnavailable, false, false},
		"foreign data and two silent":    {[]error{foreign, errSilent, errSilent}, 3, false, driver.Transient, driver.ErrUnavailable, false, false},
		"foreign data twice, one away":   {[]error{unsent, foreign, foreign}, 3, false, driver.Fatal, ErrNotALock, true, false},
		"foreign data and a denial":      {[]error{denied, foreign}, 3, false, driver.Fatal, driver.ErrDenied, false, false},
		"foreign data on two of five":    {[]error{foreign, foreign, unsent}, 5, false, driver.Transient, driver.ErrUnavailable, false, false},
		"a denial and a closed client":   {[]error{closed, denied}, 3, false, driver.Fatal, driver.ErrDenied, false, false},
		"foreign data, a closed client":  {[]error{closed, foreign}, 3, false, driver.Fatal, driver.ErrUnavailable, true, false},
		"two closed clients":             {[]error{closed, closed}, 3, false, driver.Fatal, driver.ErrUnavailable, true, false},
		"one closed client, two away":    {[]error{closed, unsent, unsent}, 3, false, driver.Transient, driver.ErrUnavailable, false, true},
		"most are loading, one is away":  {[]error{unsent, loading, loading}, 3, false, driver.Transient, driver.ErrNotReady, false, false},
		"most are away, one loads first": {[]error{loading, unsent, unsent}, 3, false, driver.Transient, driver.ErrUnavailable, false, true},
	} {
		var y tally
		for _, err := range tc.errs {
			y.add(err)
		}
		err := y.noQuorum(tc.of, tc.of/2+1, tc.stored)
		if driver.ClassOf(err) != tc.want || !errors.Is(err, ErrNoQuorum) || endsWait(err) != tc.ends || isUnsent(err) != tc.unsent {
			t.Errorf("%s: %v, class %d, ends a wait %v, unsent %v", name, err, driver.ClassOf(err), endsWait(err), isUnsent(err))
		}
		switch {
		case tc.want == driver.Ambiguous && errors.Is(err, driver.ErrUnavailable):
			t.Errorf("%s: %v, though it may be stored", name, err)
		case tc.want != driver.Ambiguous && (!errors.Is(err, tc.cause) || xerrors.CodeOf(err) != xerrors.CodeOf(tc.cause)):
			t.Errorf("%s: %v, want %v", name, err, tc.cause)
		}
		for _, each := range tc.errs {
			each = cmp.Or(each, ErrUnexpectedReply)
			if !errors.Is(each, errSilent) && !strings.Contains(err.Error(), each.Error()) {
				t.Errorf("%s: %v does not name %v", name, err, each)
			}
		}
	}
	if err := (&tally{}).noQuorum(3, 2, false); !errors.Is(err, driver.ErrNotReady) || !errors.Is(err, ErrNoQuorum) {
		t.Errorf("without a cause: %v", err)
	}
	if !errors.Is(errNotEnough, ErrNoQuorum) || !errors.Is(errNotEnough, driver.ErrNotReady) || driver.ClassOf(errNotEnough) != driver.Ambiguous {
		t.Errorf("%v", errNotEnough)
	}
}

func TestCursor(t *testing.T) {
	for _, at := range []position{{2, 1, 77, nil, false}, {2, 1, 77, []string{"a key", "b"}, false}, {0, 0, 0, nil, true}} {
		got, err := parseCursor(at.String())
		if err != nil || got.node != at.node || got.done != at.done || got.scan != at.scan || !slices.Equal(got.left, at.left) || got.every != at.every {
			t.Errorf("%+v, %v", got, err)
		}
	}
	for _, bad := range []string{"x", "1\x012", "1 2 3", "a\x012\x013\x01k", "1\x01b\x013\x01k", "1\x012\x01c\x01k", "-1\x012\x013\x01k", "1\x01-2\x013\x01k"} {
		if _, err := parseCursor(bad); driver.ClassOf(err) != driver.Fatal || err == nil {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// Scripts are fixed, and document their keys and arguments.
func TestScriptHeaders(t *testing.T) {
	for name, source := range map[string]string{
		"acquire": acquireLua, "confirm": confirmLua, "renew": renewLua, "wait": waitLua, "release": releaseLua, "inspect": inspectLua,
	} {
		head := strings.Split(source, "\nlocal ")[0]
		if !strings.Contains(head, "-- KEYS ") || !strings.Contains(head, "-- ARGV ") || !strings.Contains(head, "-- Returns ") {
			t.Errorf("%s.lua has no header", name)
		}
	}
	if len(Scripts) != 6 {
		t.Error("two scripts are the same")
	}
}

// A reply about another claim is not accepted.
func TestForeignReplyIsRefused(t *testing.T) {
	for _, tt := range []struct {
		reply any
		want  bool
	}{
		{[]any{"ours", "id", "5"}, true},
		{[]any{"id", "waits"}, true},
		{[]any{"ours", "another", "5"}, false},
		{[]any{"another", "waits"}, false},
		{[]any{"ours", "id"}, false},
		{[]any{}, false},
		{"id", false},
	} {
		cmd := waitScript.Command(t.Context(), nil)
		cmd.SetVal(tt.reply)
		a := (&node{}).judge(cmd, nil, "id")
		if (a.err == nil) != tt.want {
			t.Errorf("%q: %v", tt.reply, a.err)
		}
	}
}

// No node is called under a context that has ended.
func TestDeadContextsAreReported(t *testing.T) {
	d := &redDriver{} // without nodes: it must not come to asking them
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Check(dead); !errors.Is(err, context.Canceled) {
		t.Errorf("Check: %v", err)
	}
	if _, err := d.Evict(dead, "k", "id", 1); !errors.Is(err, context.Canceled) {
		t.Errorf("Evict: %v", err)
	}
	if _, err := d.Release(dead, driver.Ref{Key: "k", ID: "id"}); !errors.Is(err, context.Canceled) {
		t.Errorf("Release: %v", err)
	}
}

// A claim that was blocked for a moment, and no longer is when the nodes have answered, tries at once: nothing else
// would make it try.
func TestPauseThatEndsMeanwhile(t *testing.T) {
	d := threeNodes()
	d.closed = true // it does not listen
	q := d.enter("k")
	c := &claim{key: "k", id: "id", waits: true, ttl: time.Minute, phase: driver.Queued, until: time.Now().Add(time.Hour)}
	q.waiting = []*claim{c}
	for _, left := range []time.Duration{-time.Minute, time.Minute} {
		c.notSoon = time.Now().Add(left)
		if st := d.stillWaits(c, time.Now(), false); st.Phase != driver.Queued || st.Recheck <= 0 {
			t.Errorf("%v before it may try: %+v", left, st)
		}
	}
}

// If nodes do not answer, a claim is the holder if they may complete its majority, and that of no other.
func TestHolderByTheNodesThatAnswer(t *testing.T) {
	claim := func(id string, token int64, on int) *seen {
		return &seen{Claim: driver.Claim{ID: id, Token: token, Phase: driver.Held}, on: on, tokens: map[int64]int{token: on}, leases: make([]time.Duration, on)}
	}
	for name, tt := range map[string]struct {
		claims  []*seen
		missing int
		want    string
	}{
		"a majority":                     {[]*seen{claim("a", 5, 2), claim("b", 9, 1)}, 0, "a"},
		"too few":                        {[]*seen{claim("a", 5, 1)}, 0, ""},
		"with the one that is missing":   {[]*seen{claim("a", 5, 1)}, 1, "a"},
		"without a token":                {[]*seen{claim("a", 0, 1)}, 1, ""},
		"either of two":                  {[]*seen{claim("a", 5, 1), claim("b", 9, 1)}, 1, ""},
		"one of which has not won":       {[]*seen{claim("a", 5, 1), claim("b", 0, 1)}, 1, "a"},
		"a majority, though one missing": {[]*seen{claim("a", 5, 2)}, 1, "a"},
	} {
		s := snapshot{claims: map[string]*seen{}}
		for _, c := range tt.claims {
			s.claims[c.ID] = c
		}
		got := ""
		for _, c := range s.show(2, tt.missing) {
			if c.Phase == driver.Held {
				got += c.ID
			}
		}
		if got != tt.want {
			t.Errorf("%s: the holder is %q, want %q", name, got, tt.want)
		}
	}
}
