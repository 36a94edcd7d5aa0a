package redislock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Only an answer about these claims counts, with no more numbers than claims.
func TestReadBatch(t *testing.T) {
	for text, want := range map[string][]int64{"held id": {}, "held id 5": {5}, "held id 5 6": {5, 6}} {
		if got, err := parseBatch(text, "held", "id", 2); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, reply := range []any{nil, "", "held", "held other 5", "released id 5", "held id 5 6 7", "held id x", []any{"held", "id"}} {
		if got, err := parseBatch(reply, "held", "id", 2); !errors.Is(err, ErrUnexpectedReply) || got != nil {
			t.Errorf("%v: %v, %v", reply, got, err)
		}
	}
}

// A batch grants the first claims or all, and the rest must be submitted alone.
func TestBatchOfClaims(t *testing.T) {
	rs := []driver.Request{{Ref: claimA}, {Ref: driver.Ref{Key: "l", ID: idOf("b"), TTL: time.Minute}}}
	for reply, want := range map[string]string{"held " + claimA.ID + " 5 6": "held 5 held 6", "held " + claimA.ID + " 5": "held 5 gone 0", "held " + claimA.ID: "gone 0 gone 0"} {
		synctest.Test(t, func(t *testing.T) {
			d, h := openScripted(t, func(context.Context, sent) (any, error) {
				time.Sleep(time.Millisecond)
				return reply, nil
			})
			began := time.Now()
			states, err := d.AcquireBatch(t.Context(), rs)
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(states[0].Phase, " ", states[0].Token, " ", states[1].Phase, " ", states[1].Token); got != want {
				t.Errorf("%q: %s, want %s", reply, got, want)
			}
			for _, st := range states {
				if st.Phase == driver.Held && !st.Until.Equal(began.Add(time.Minute)) {
					t.Errorf("until %v", st.Until)
				}
			}
			h.wantSent(t, "acquireBatch")
		})
	}
}

// A batch releases what needs no tombstone, and says of the rest that it is left. An answer to other claims is none.
func TestBatchOfReleases(t *testing.T) {
	lost := driver.Ref{Key: "l", ID: idOf("c"), TTL: time.Minute, Unanswered: true}
	for _, tc := range []struct {
		refs  []driver.Ref
		reply string
		want  []driver.Phase
		waits int
		sent  []string
	}{
		{[]driver.Ref{lost, claimA, claimB}, "released " + claimA.ID + " 1 0", []driver.Phase{driver.Unknown, driver.Held, driver.Unknown}, 1, []string{"releaseBatch"}},
		{[]driver.Ref{lost}, "", []driver.Phase{driver.Unknown}, 2, nil},
		{[]driver.Ref{claimA, claimB}, "released " + claimA.ID + " 1", nil, 2, []string{"releaseBatch"}},
		{[]driver.Ref{claimA, claimB}, "released " + claimB.ID + " 1 1", nil, 2, []string{"releaseBatch"}},
	} {
		d, h := openScripted(t, always(tc.reply, nil))
		d.waiting[claimA.ID], d.waiting[claimB.ID] = waiter{}, waiter{}
		states, err := d.ReleaseBatch(t.Context(), tc.refs)
		var got []driver.Phase
		for _, st := range states {
			got = append(got, st.Phase)
		}
		if !slices.Equal(got, tc.want) || (err == nil) != (tc.want != nil) || (err != nil && !errors.Is(err, ErrUnexpectedReply)) {
			t.Errorf("%+v: %v, %v", tc.refs, got, err)
		}
		if Waiting(d) != tc.waits {
			t.Errorf("%d are known to wait, want %d", Waiting(d), tc.waits)
		}
		h.wantSent(t, tc.sent...)
	}
}
