package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/fencetest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/fence"
)

func TestPostgreSQL(t *testing.T) {
	t.Parallel()
	d := startPostgreSQL(t)
	testDatabase(t, d)
	t.Run("StaysInside", func(t *testing.T) { staysInside(t, d) })
}

func TestMariaDB(t *testing.T) {
	t.Parallel()
	d := startMariaDB(t)
	testDatabase(t, d)
	t.Run("ImplicitCommit", func(t *testing.T) { implicitCommit(t, d) })
	t.Run("IgnoredDeadlock", func(t *testing.T) { ignoredDeadlock(t, d) })
}

func TestSQLite(t *testing.T) {
	t.Parallel()
	d := openSQLite(t)
	testDatabase(t, d)
	t.Run("IgnoredRollback", func(t *testing.T) { ignoredRollback(t, d) })
}

// testDatabase runs all that every database must do. Each test uses resources of its own.
func testDatabase(t *testing.T, d *database) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, *database){
		"LateWrites": lateWrites, "Order": order, "Isolation": isolation, "Snapshot": snapshot, "Names": names,
		"Tables": tables, "CreateAtOnce": createAtOnce, "Boundaries": boundaries, "Transactions": transactions, "DriverOptions": driverOptions,
	} {
		t.Run(name, func(t *testing.T) { test(t, d) })
	}
	if d.brief != "" {
		t.Run("PausedInTransaction", func(t *testing.T) { pausedInTransaction(t, d) })
	}
}

func lateWrites(t *testing.T, d *database) {
	fencetest.Run(t, fencetest.Resource{
		Fenced: func(ctx context.Context, name string, token int64, value string) error {
			return d.sql.Do(ctx, d.db, name, token, func(tx *sql.Tx) error {
				return errors.Join(d.put(ctx, tx, name, value), d.record(ctx, tx, name, token))
			})
		},
		Plain: func(ctx context.Context, name, value string) error { return d.put(ctx, d.db, name, value) },
		Read: func(ctx context.Context, name string) (string, error) {
			return d.read(ctx, "value", "data", name)
		},
		Temporary: temporary,
	})
	history, err := d.read(t.Context(), "tokens", "history", "random")
	must(t, err)
	fencetest.CheckHistory(t, history)
}

// raise runs a fenced transaction without writes.
func (d *database) raise(t *testing.T, resource string, token int64) error {
	t.Helper()
	return d.sql.Do(t.Context(), d.db, resource, token, nil)
}

func (d *database) begin(t *testing.T, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := d.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// order: a second holder waits while the transaction of the first is open, whichever token is
// greater, and its token is compared with what the first has committed.
func order(t *testing.T, d *database) {
	for i, c := range []struct {
		first, second int64
		commit, stale bool
	}{
		{3, 5, true, false},  // the current holder after the stale one
		{5, 3, true, true},   // the stale holder after the current one
		{5, 3, false, false}, // the token of a transaction that was rolled back was not seen
		{5, 5, true, false},
	} {
		for _, known := range []bool{false, true} { // whether the row exists
			resource := fmt.Sprint("order", i, known)
			if known {
				must(t, d.raise(t, resource, 1))
			}
			tx := d.begin(t, sql.LevelDefault)
			must(t, d.sql.Check(t.Context(), tx, resource, c.first))
			d.mustBeBusy(t, resource, c.second)
			done := make(chan error, 1)
			go func() { done <- d.sql.Do(context.Background(), d.db, resource, c.second, nil) }()
			testenv.Eventually(t, time.Minute, "the second holder waits", func() bool {
				if len(done) > 0 {
					t.Fatalf("case %d: the second holder did not wait: %v", i, <-done)
				}
				return d.isWaited(t)
			})
			if c.commit {
				must(t, tx.Commit())
			} else {
				must(t, tx.Rollback())
			}
			err := <-done
			if errors.Is(err, fence.ErrStale) != c.stale || (err != nil) != c.stale {
				t.Errorf("case %d, known %v: %v", i, known, err)
			}
			var stale *fence.StaleError
			if c.stale && (!errors.As(err, &stale) || *stale != (fence.StaleError{Resource: resource, Token: 3, Seen: 5})) {
				t.Errorf("case %d, known %v: %v", i, known, err)
			}
		}
	}
}

// isolation: a check that comes first in its transaction is exact at every level.
func isolation(t *testing.T, d *database) {
	for _, level := range d.levels {
		resource := "isolation" + level.String()
		for _, c := range []struct {
			token int64
			stale bool
		}{{5, false}, {5, false}, {4, true}, {6, false}, {5, true}} {
			tx := d.begin(t, level)
			err := d.sql.Check(t.Context(), tx, resource, c.token)
			if errors.Is(err, fence.ErrStale) != c.stale || (err != nil) != c.stale {
				t.Errorf("%v, token %d: %v", level, c.token, err)
			}
			if err == nil {
				must(t, tx.Commit())
			} else {
				must(t, tx.Rollback())
			}
		}
	}
}

// snapshot: a transaction that has read before the check sees an old state at some levels. It must
// not pass with a stale token: the database refuses it, or the check does.
func snapshot(t *testing.T, d *database) {
	for _, level := range d.levels {
		for _, known := range []bool{false, true} {
			resource := fmt.Sprint("snapshot", level, known)
			if known {
				must(t, d.raise(t, resource, 1))
			}
			tx := d.begin(t, level)
			var n int
			must(t, tx.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM data").Scan(&n))
			must(t, d.raise(t, resource, 5))
			err := d.sql.Check(t.Context(), tx, resource, 3)
			if err == nil {
				err = tx.Commit()
			}
			if !errors.Is(err, fence.ErrStale) && !temporary(err) {
				t.Errorf("%v, known %v: the stale token leads to %v", level, known, err)
			}
			_ = tx.Rollback()
		}
	}
}

// names: similar names are different resources.
func names(t *testing.T, d *database) {
	all := []string{"name", "Name", "NAME", "name ", " name", "näme", "na\u0308me", "库", "name%", "name_", "'; DROP TABLE data; --", `na"me\`, strings.Repeat("n", 1024), strings.Repeat("n", 1023) + "N", strings.Repeat("库", 341)}
	for i, name := range all {
		must(t, d.raise(t, name, int64(100-i))) // a name that is taken for an earlier one is refused
	}
	for i, name := range all {
		err := d.raise(t, name, int64(99-i))
		var stale *fence.StaleError
		if !errors.As(err, &stale) || stale.Seen != int64(100-i) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// tables: with a schema, with a reserved word as a name, and with capital letters.
func tables(t *testing.T, d *database) {
	for _, table := range []string{d.schema + ".other", "order", "Fences_2"} {
		s := fence.SQL{Dialect: d.sql.Dialect, Table: table}
		must(t, s.Create(t.Context(), d.db))
		statement, err := s.Statement()
		must(t, err)
		_, err = d.db.ExecContext(t.Context(), statement) // it exists already
		must(t, err, s.Do(t.Context(), d.db, "tables", 5, nil))
		err = s.Checker(d.db).Check(t.Context(), "tables", 4)
		if !errors.Is(err, fence.ErrStale) {
			t.Errorf("%s: %v", table, err)
		}
	}
	err := fence.SQL{Dialect: d.sql.Dialect, Table: "missing"}.Do(t.Context(), d.db, "tables", 5, nil)
	if err == nil || errors.Is(err, fence.ErrStale) || !strings.Contains(err.Error(), "missing") {
		t.Errorf("without the table: %v", err)
	}
}

// createAtOnce: several processes create the table when they start.
func createAtOnce(t *testing.T, d *database) {
	for i := range 20 {
		s := fence.SQL{Dialect: d.sql.Dialect, Table: fmt.Sprint("at_once_", i)}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := s.Create(t.Context(), d.db); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		must(t, s.Do(t.Context(), d.db, "r", 1, nil))
	}
}

func boundaries(t *testing.T, d *database) {
	for _, token := range []int64{2, 1 << 53, 1<<53 + 1, math.MaxInt64} {
		resource := fmt.Sprint("boundary", token)
		must(t, d.raise(t, resource, token))
		var stale *fence.StaleError
		if err := d.raise(t, resource, token-1); !errors.As(err, &stale) || stale.Seen != token {
			t.Errorf("%d: %v", token, err)
		}
		must(t, d.raise(t, resource, token))
	}
}

// transactions: Do commits what succeeds and takes back what fails, with its token.
func transactions(t *testing.T, d *database) {
	const resource = "transactions"
	write := func(value string) func(*sql.Tx) error {
		return func(tx *sql.Tx) error { return d.put(t.Context(), tx, resource, value) }
	}
	must(t, d.sql.Do(t.Context(), d.db, resource, 5, write("first")))
	failure := errors.New("failure")
	err := d.sql.Do(t.Context(), d.db, resource, 9, func(tx *sql.Tx) error {
		return errors.Join(write("failed")(tx), failure)
	})
	if !errors.Is(err, failure) {
		t.Errorf("error is %v", err)
	}
	func() {
		defer func() {
			if recover() != "panic" {
				t.Error("the panic is lost")
			}
		}()
		_ = d.sql.Do(t.Context(), d.db, resource, 9, func(tx *sql.Tx) error {
			must(t, write("panic")(tx))
			panic("panic")
		})
	}()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.sql.Do(ended, d.db, resource, 9, write("late")); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	called := false
	err = d.sql.Do(t.Context(), d.db, resource, 4, func(*sql.Tx) error { called = true; return nil })
	if !errors.Is(err, fence.ErrStale) || called {
		t.Errorf("a stale token: %v, the function ran: %v", err, called)
	}
	must(t, d.sql.Do(t.Context(), d.db, resource, 6, nil)) // 9 was never committed
	if value, err := d.read(t.Context(), "value", "data", resource); value != "first" || err != nil {
		t.Errorf("value %q, %v", value, err)
	}
}

// driverOptions: the fence does not depend on how a driver counts rows or sends arguments.
func driverOptions(t *testing.T, d *database) {
	options := map[fence.Dialect][]string{
		fence.PostgreSQL: {"default_query_exec_mode=simple_protocol", "default_query_exec_mode=exec"},
		fence.MySQL:      {"clientFoundRows=true", "clientFoundRows=false", "interpolateParams=true", "charset=latin1"},
		fence.SQLite:     {"_txlock=immediate"},
	}[d.sql.Dialect]
	for i, option := range options {
		db := d.open(t, option)
		resource := fmt.Sprint("库", i)
		must(t, d.raise(t, resource, 5)) // by another connection, without the option
		for _, c := range []struct {
			token int64
			stale bool
		}{{5, false}, {5, false}, {4, true}, {6, false}, {5, true}} {
			err := d.sql.Do(t.Context(), db, resource, c.token, nil)
			if errors.Is(err, fence.ErrStale) != c.stale || (err != nil) != c.stale {
				t.Errorf("%s, token %d: %v", option, c.token, err)
			}
		}
	}
}

// pausedInTransaction: a holder that pauses inside its transaction blocks the next one, until the
// database ends its session. Its commit then fails.
func pausedInTransaction(t *testing.T, d *database) {
	conn, err := d.db.Conn(t.Context())
	must(t, err)
	defer conn.Close()
	paused, err := conn.BeginTx(t.Context(), nil)
	must(t, err, d.sql.Check(t.Context(), paused, "paused", 3), d.put(t.Context(), paused, "paused", "stale"))
	_, err = paused.ExecContext(t.Context(), d.brief) // last: from here on it is idle
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must(t, d.sql.Do(ctx, d.db, "paused", 5, func(tx *sql.Tx) error { return d.put(ctx, tx, "paused", "current") }))
	if err := paused.Commit(); err == nil {
		t.Error("the commit of the paused holder succeeded")
	}
	if value, err := d.read(t.Context(), "value", "data", "paused"); value != "current" || err != nil {
		t.Errorf("value %q, %v", value, err)
	}
}
