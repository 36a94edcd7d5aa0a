package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/fence"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// shipWithBoth is quoted by docs/migration.md.
func shipWithBoth(ctx context.Context, tx *sql.Tx, orders fence.SQL, oldToken, newToken int64) error {
	if err := orders.Check(ctx, tx, "order:123", oldToken); err != nil {
		return err // roll back
	}
	if err := orders.Check(ctx, tx, "order:123 etcd", newToken); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, "UPDATE orders SET state = 'shipped' WHERE id = 123")
	return err
}

// A mover is a process that holds the key, as one of the three steps does.
type mover struct{ old, new int64 } // its tokens; 0: none

// Fleets move from Redis, whose tokens are large, to a backend whose tokens are small. With a fence for each backend, every
// holder is accepted, and every stale one is refused. With one fence and the larger token, a holder on new only is refused.
func TestFencesOfAMove(t *testing.T) {
	t.Parallel()
	d := openSQLite(t)
	_, err := d.db.ExecContext(t.Context(), "CREATE TABLE orders (id INT PRIMARY KEY, state TEXT)")
	must(t, err)
	conn := testenv.Redis(t).Client()
	defer conn.Close()
	open := func(b driver.Opener) *dlock.Client {
		c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(b))
		must(t, err)
		t.Cleanup(func() { must(t, c.Close()) })
		return c
	}
	onOld, onNew := open(redislock.New(conn)), open(memlock.New())
	both, err := dlock.Both(onOld, onNew)
	must(t, err)
	hold := func(step string) (m mover) {
		t.Helper()
		work := func(ctx context.Context) error {
			m.old, m.new = both.Tokens(ctx, "order:123")
			return nil
		}
		switch step {
		case "old":
			err = onOld.Do(t.Context(), "order:123", work)
		case "both":
			err = both.Do(t.Context(), "order:123", work)
		case "new":
			err = onNew.Do(t.Context(), "order:123", work)
		}
		must(t, err)
		return m
	}
	write := func(m mover) error {
		tx, err := d.db.BeginTx(t.Context(), nil)
		must(t, err)
		defer func() { _ = tx.Rollback() }()
		switch {
		case m.new == 0:
			err = d.sql.Check(t.Context(), tx, "order:123", m.old)
		case m.old == 0:
			err = d.sql.Check(t.Context(), tx, "order:123 etcd", m.new)
		default:
			err = shipWithBoth(t.Context(), tx, d.sql, m.old, m.new)
		}
		if err != nil {
			return err
		}
		return tx.Commit()
	}
	var before mover
	for i, step := range []string{"old", "old", "both", "old", "both", "both", "new", "both", "new", "new"} {
		m := hold(step)
		if err := write(m); err != nil {
			t.Errorf("holder %d, on %s: %v", i, step, err)
		}
		if err := write(before); i > 0 && !errors.Is(err, fence.ErrStale) {
			t.Errorf("the stale holder before %d, on %s: %v", i, step, err)
		}
		before = m
	}
	moved, next := hold("both"), hold("new")
	larger := max(moved.old, moved.new)
	err = d.sql.Do(t.Context(), d.db, "one fence", larger, nil)
	must(t, err)
	if err := d.sql.Do(t.Context(), d.db, "one fence", next.new, nil); !errors.Is(err, fence.ErrStale) {
		t.Errorf("after token %d, token %d: %v", larger, next.new, err)
	}
}
