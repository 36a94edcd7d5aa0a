package fence_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/pkg/dlock/fence"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	m := fence.Memory{Max: 2}
	for i, c := range []struct {
		resource string
		token    int64
		want     error
	}{
		{"a", 5, nil},
		{"a", 5, nil},
		{"a", 4, fence.ErrStale},
		{"a", math.MaxInt64, nil},
		{"a", math.MaxInt64 - 1, fence.ErrStale},
		{"A", 1, nil},
		{"b", 1, fence.ErrFull},
		{"A", 2, nil},
		{"", 1, fence.ErrInvalid},
		{"a", 0, fence.ErrInvalid},
		{"a", math.MinInt64, fence.ErrInvalid},
		{"\xff", 1, fence.ErrInvalid},
		{"a\x00", 1, fence.ErrInvalid},
		{strings.Repeat("a", 1025), 1, fence.ErrInvalid},
	} {
		if err := m.Check(context.Background(), c.resource, c.token); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%d: Check(%q, %d) = %v, want %v", i, c.resource, c.token, err, c.want)
		}
	}
}

// The texts name the resource, the cause and the cure, and the codes are stable.
func TestErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err        error
		code, text string
	}{
		{&fence.StaleError{Resource: "order:1", Token: 3, Seen: 5}, "stale_token", `fence "order:1": token 3 is stale, the resource has seen 5: another process has the lock, stop writing`},
		{&fence.StaleError{Resource: "order:1", Token: 3}, "stale_token", `fence "order:1": token 3 is stale, the resource has seen a greater one: another process has the lock, stop writing`},
		{fence.ValidateToken(0), "invalid_argument", "fence: token is 0, and every token is positive: pass Guard.Token() of a lock that is held"},
	} {
		if c.err.Error() != c.text || xerrors.CodeOf(fmt.Errorf("outer: %w", c.err)) != c.code {
			t.Errorf("%v, code %q", c.err, xerrors.CodeOf(c.err))
		}
	}
	if errors.Is(&fence.StaleError{}, fence.ErrInvalid) || errors.Is(fence.ValidateToken(0), fence.ErrStale) || fence.ValidateToken(1) != nil {
		t.Error("the errors are mixed up")
	}
}
