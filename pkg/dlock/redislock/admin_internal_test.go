package redislock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// What Inspect and Look read: claims whose deadline is over are not shown.
func TestReadView(t *testing.T) {
	const now = "1794882929000000"
	id := idOf("0f")[:idLength]
	reader := func(deadline string) string { return "=" + deadline + " 1794882928000000 1 - {}" }
	waiter := func(deadline string) string { return deadline + " 1794882928.000000 1p3 0 - {}" }
	for _, tc := range []struct {
		name  string
		reply []any
		want  string
		joint bool
	}{
		{"free", []any{now, "", int64(0), ""}, "", false},
		{"held", []any{now, "=" + id + ". 1794882928000000 1 - {}", int64(500), ""}, "held exclusive 0 500ms 1s", false},
		{"of a plain client", []any{now, "=x", int64(500), ""}, "held exclusive 0 500ms 0s", false},
		{"readers", []any{now, "~s", int64(0), "", "a", reader("1794882929000001"), "b", reader("1794882929000000"), "c", reader("1.794882930e+15")}, "held shared 0 1µs 1s, held shared 0 1s 1s", true},
		{"permits", []any{now, "~p12", int64(0), "", "a", reader("1794882930000000")}, "held permit 12 1s 1s", true},
		{"waiters", []any{now, "", int64(0), "", "a", waiter("1794882929000001"), "b", waiter("1794882929000000"), "c", waiter("1794882928000000")}, "queued permit 3 1µs 1s", false},
		{"damaged", []any{now, "", int64(0), "", "a", "1 2 3", "b"}, "", false},
	} {
		v, err := readView(tc.reply)
		var got []string
		for _, c := range append(v.holders, v.waiters...) {
			got = append(got, fmt.Sprint(c.Phase, " ", c.Mode, " ", c.Limit, " ", c.Remaining, " ", c.Age))
		}
		if text := strings.Join(got, ", "); text != tc.want || err != nil || v.joint != tc.joint {
			t.Errorf("%s: %q, %v, want %q", tc.name, text, err, tc.want)
		}
	}
	for _, reply := range []any{nil, "x", []any{now, "", int64(0)}, []any{"soon", "", int64(0), ""}} {
		if v, err := readView(reply); !errors.Is(err, ErrUnexpectedReply) {
			t.Errorf("%v: %+v, %v", reply, v, err)
		}
	}
	for _, tc := range []struct {
		z    redis.Z
		want bool
	}{
		{redis.Z{Score: math.Inf(1), Member: "s"}, true},
		{redis.Z{Score: math.Inf(1), Member: "p12"}, true},
		{redis.Z{Score: math.Inf(1), Member: "p"}, false},
		{redis.Z{Score: math.Inf(1), Member: "somebody"}, false},
		{redis.Z{Score: math.Inf(-1), Member: "s"}, false},
		{redis.Z{Score: 1, Member: "s"}, false},
	} {
		if isMode(tc.z) != tc.want {
			t.Errorf("%+v is a mode: %v", tc.z, !tc.want)
		}
	}
}

// A claim that has moved between two pages is shown once, and each plain client, which has no ID, is.
func TestRepeatedClaimsAreShownOnce(t *testing.T) {
	got := withoutRepeats([]driver.Claim{{ID: "a", Token: 1}, {}, {ID: "b"}, {ID: "a", Token: 2}, {}})
	if want := []driver.Claim{{ID: "a", Token: 1}, {}, {ID: "b"}, {}}; !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

// Calls of an operator that are not answered are repeated, and no others, and not forever.
func TestWhichReadsAreRepeated(t *testing.T) {
	for name, tc := range map[string]struct {
		answers []error
		calls   int
	}{
		"not answered": {[]error{context.DeadlineExceeded, context.DeadlineExceeded, nil}, 3},
		"never":        {[]error{context.DeadlineExceeded}, maxReads},
		"refused":      {[]error{replyError("LOADING no")}, 1},
		"answered":     {[]error{nil}, 1},
	} {
		d, h := openScripted(t, func(_ context.Context, c sent) (any, error) {
			return []any{"1794882929000000", "", int64(0), ""}, tc.answers[min(c.n, len(tc.answers)-1)]
		})
		_, err := d.Inspect(t.Context(), "k")
		if len(h.calls) != tc.calls || (err == nil) != (tc.answers[len(tc.answers)-1] == nil) {
			t.Errorf("%s: %d calls, %v", name, len(h.calls), err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if isUnanswered(ended, errors.New("no answer")) {
		t.Error("repeated for a caller that has left")
	}
}
