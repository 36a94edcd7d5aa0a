package redislock_test

import (
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// However many keys a caller asks for, a step of the scan stays short: the server does nothing else
// meanwhile.
func TestListScansInShortSteps(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	proxy := testenv.Proxy(t, server.Addr())
	acquire(t, locksAt(t, server.Addr()), "k", dlock.WithTTL(time.Minute))
	admin, err := locksAt(t, proxy.Addr()).Admin()
	check(t, err)
	var count atomic.Int64
	proxy.Intercept(func(cmd []string) faultproxy.Action {
		for i, word := range cmd {
			if strings.EqualFold(word, "COUNT") && strings.EqualFold(cmd[0], "SCAN") {
				n, _ := strconv.ParseInt(cmd[i+1], 10, 64)
				count.Store(n)
			}
		}
		return faultproxy.Forward
	})
	for _, limit := range []int{1, 1 << 20, math.MaxInt} {
		keys, next, err := admin.ListPage(t.Context(), "", "", limit)
		if err != nil || len(keys) != 1 || next != "" {
			t.Errorf("limit %d: %q, %q, %v", limit, keys, next, err)
		}
		if n := count.Load(); n < 1 || n > 1000 {
			t.Errorf("limit %d: a step of %d keys", limit, n)
		}
	}
}
