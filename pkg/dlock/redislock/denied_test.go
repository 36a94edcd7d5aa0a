package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// scriptCommands returns the commands that the scripts of an operation use.
func scriptCommands(op string) []string {
	used := map[string]bool{}
	for _, source := range redislock.Scripts(op) {
		for _, m := range regexp.MustCompile(`call\('(\w+)'`).FindAllStringSubmatch(source, -1) {
			used[strings.ToLower(m[1])] = true
		}
	}
	return slices.Sorted(maps.Keys(used))
}

// A user that may not use one of the commands of a script gets an error, and then nothing of its claim is
// stored, and nothing that never expires: the engine does not release a claim that was refused. It is so
// for every command and mode, at a lock that is free, that the claim can share, and that it must wait for.
func TestDeniedCommandStoresNothing(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	direct, own := directTo(t, server), openDriver(t, server.Addr())
	d := openAsUser(t, server.Addr(), direct)
	modes := []driver.Request{{}, {Mode: driver.Shared}, {Mode: driver.Permit, Limit: 2}}
	denied := map[string]bool{}
	for _, command := range scriptCommands("acquire") {
		setUser(t, direct, "u", allowAll, []string{"-" + command})
		for _, held := range []*driver.Request{nil, &modes[0], &modes[1], &modes[2]} {
			for _, r := range modes {
				for _, wait := range []bool{false, true} {
					check(t, direct.FlushAll(t.Context()).Err())
					if held != nil {
						submitAs(t, own, *held, 1, false)
					}
					before := joined(t, direct)
					err := submitAs(t, d, r, 2, wait)
					if err == nil {
						continue
					}
					wantError(t, err, driver.ErrDenied)
					denied[command] = true
					if after := joined(t, direct); after != before {
						t.Errorf("without %s, a %v claim (waits: %v) leaves %q, before it was %q", command, r.Mode, wait, after, before)
					}
				}
			}
		}
	}
	for _, command := range strings.Fields("set setrange hset hsetnx zadd pexpire pttl") {
		if !denied[command] {
			t.Errorf("no claim was refused for want of %s", command)
		}
	}
}

// allowAll are the rights of user u before one is taken away.
var allowAll = []string{"reset", "on", ">p", "~*", "&*", "+@all"}

// openAsUser returns a driver of user u, which may do everything.
func openAsUser(t *testing.T, addr string, direct *redis.Client) driver.Driver {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr, Username: "u", Password: "p", ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = rdb.Close() })
	setUser(t, direct, "u", allowAll)
	d, err := redislock.New(rdb).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
	check(t, err)
	t.Cleanup(func() { _ = d.Close() })
	redislock.NeverInline(d)
	return d
}

// A user that may not use one of the commands of a script is told so, or the script does without it. A claim that is
// stored is never said to be gone.
func TestDeniedCommandLosesNothing(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	direct, own := directTo(t, server), openDriver(t, server.Addr())
	d := openAsUser(t, server.Addr(), direct)
	denied := map[string]bool{}
	for _, r := range []driver.Request{{}, {Mode: driver.Shared}, {Mode: driver.Permit, Limit: 2}} {
		r.Ref = driver.Ref{Key: "k", ID: claimID(1), TTL: time.Minute}
		for _, command := range append(scriptCommands("renew"), scriptCommands("release")...) {
			for _, way := range []struct {
				waits      bool // another claim waits for the lock
				unanswered bool
				renew      bool
			}{{}, {waits: true}, {unanswered: true}, {waits: true, unanswered: true}, {renew: true}, {waits: true, renew: true}} {
				check(t, direct.FlushAll(t.Context()).Err())
				check(t, submitAs(t, d, r, 1, false))
				if way.waits {
					check(t, submitAs(t, own, driver.Request{}, 2, true))
				}
				setUser(t, direct, "u", allowAll, []string{"-" + command})
				var st driver.State
				var err error
				if way.renew {
					states, failed := d.Renew(t.Context(), []driver.Ref{r.Ref})
					st, err = states[0], failed
				} else {
					ref := r.Ref
					ref.Unanswered = way.unanswered
					st, err = d.Release(t.Context(), ref)
				}
				setUser(t, direct, "u", allowAll)
				switch {
				case err != nil && driver.ClassOf(err) != driver.Fatal: // a busy machine: the attempt took too long
				case err != nil:
					wantError(t, err, driver.ErrDenied)
					denied[command] = true
				case st.Phase != driver.Held:
					t.Errorf("without %s, a %v claim (%+v) is said to be %v", command, r.Mode, way, st.Phase)
				}
			}
		}
	}
	for _, command := range strings.Fields("get zrange zrem del pexpire") {
		if !denied[command] {
			t.Errorf("nothing was refused for want of %s", command)
		}
	}
}

// An operator that may not read a lock is told so, and not that it is other data.
func TestDeniedOperator(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	direct := directTo(t, server)
	d := openAsUser(t, server.Addr(), direct)
	for _, tc := range []struct {
		mode    driver.Mode
		command string
	}{{driver.Exclusive, "get"}, {driver.Shared, "zrange"}} {
		check(t, direct.FlushAll(t.Context()).Err())
		check(t, submitAs(t, d, driver.Request{Mode: tc.mode}, 1, false))
		setUser(t, direct, "u", allowAll, []string{"-" + tc.command})
		_, inspected := d.(driver.Admin).Inspect(t.Context(), "k")
		_, looked := answered(t, func() (int, error) {
			_, waiters, err := d.(driver.HolderFinder).Look(t.Context(), "k", "")
			return waiters, err
		})
		setUser(t, direct, "u", allowAll)
		for what, err := range map[string]error{"Inspect": inspected, "Look": looked} {
			if !errors.Is(err, driver.ErrDenied) {
				t.Errorf("%s of a %v lock without %s: %v", what, tc.mode, tc.command, err)
			}
		}
	}
}

// submitAs submits claim n on the lock k as a request, and returns the error if it was denied.
func submitAs(t *testing.T, d driver.Driver, r driver.Request, n int, wait bool) (err error) {
	t.Helper()
	r.Ref, r.Wait = driver.Ref{Key: "k", ID: claimID(n), TTL: time.Minute}, wait
	_, err = answered(t, func() (driver.State, error) { return d.Acquire(t.Context(), r) })
	return err
}

// joined returns the claims that the keys of the lock k contain, and fails if one of them does not expire.
func joined(t *testing.T, direct *redis.Client) string {
	t.Helper()
	ctx := context.Background()
	keys, _ := redislock.Keys("", "k")
	var found []string
	for i, key := range keys {
		if i == 1 {
			continue // the counter
		}
		switch direct.Type(ctx, key).Val() {
		case "none":
			continue
		case "string":
			found = append(found, holderID(t, direct, key))
		case "zset":
			found = append(found, direct.ZRange(ctx, key, 0, -1).Val()...)
		case "hash":
			found = append(found, slices.Sorted(slices.Values(direct.HKeys(ctx, key).Val()))...)
		}
		if left := direct.PTTL(ctx, key).Val(); left < 0 {
			t.Errorf("%q never expires", key)
		}
	}
	return fmt.Sprint(found)
}

// If other data is stored where readers have their records, no lock is stored, and the data is not touched.
func TestOtherDataInsteadOfRecords(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	direct, d := directTo(t, server), openDriver(t, server.Addr())
	keys, _ := redislock.Keys("", "k")
	holders := keys[4]
	check(t, direct.SAdd(t.Context(), holders, "a").Err())
	same := untouched(t, direct, holders)
	for _, r := range []driver.Request{{Mode: driver.Shared}, {Mode: driver.Permit, Limit: 2}} {
		wantError(t, submitAs(t, d, r, 1, true), redislock.ErrNotALock)
		if kind := direct.Type(t.Context(), "k").Val(); kind != "none" {
			t.Errorf("a refused %v claim leaves a %s", r.Mode, kind)
		}
		same()
	}
}
