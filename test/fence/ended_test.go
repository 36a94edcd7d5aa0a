package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/fence"
)

// implicitCommit: a statement that commits frees the fence, and the next one is in no transaction.
func implicitCommit(t *testing.T, d *database) {
	_, err := d.db.ExecContext(t.Context(), "CREATE PROCEDURE committing() BEGIN COMMIT; END")
	must(t, err)
	for _, statement := range []string{"CREATE TABLE made (id INT)", "TRUNCATE TABLE history", "CALL committing()", "COMMIT", "ROLLBACK"} {
		for _, begins := range []string{"", "BEGIN"} { // a transaction of its own does not help
			err := d.sql.Do(t.Context(), d.db, "implicit", 5, func(tx *sql.Tx) error {
				return errors.Join(run(t, tx, statement), run(t, tx, begins), d.put(t.Context(), tx, "implicit", "late"), run(t, tx, "DROP TABLE IF EXISTS made"))
			})
			if !errors.Is(err, fence.ErrTransactionEnded) {
				t.Errorf("%s, %s: %v", statement, begins, err)
			}
		}
	}
	// What stays inside is no reason to refuse.
	must(t, d.sql.Do(t.Context(), d.db, "implicit", 5, func(tx *sql.Tx) error {
		return errors.Join(run(t, tx, "SAVEPOINT mine"), d.put(t.Context(), tx, "implicit", "current"), run(t, tx, "ROLLBACK TO mine"), run(t, tx, "CREATE TEMPORARY TABLE brief (id INT)"))
	}))
}

func run(t *testing.T, tx execer, statement string) error {
	t.Helper()
	if statement == "" {
		return nil
	}
	_, err := tx.ExecContext(t.Context(), statement)
	return err
}

// ignoredDeadlock: a deadlock rolls back the whole transaction, with the fence. A function that goes on
// writes without it.
func ignoredDeadlock(t *testing.T, d *database) {
	must(t, d.put(t.Context(), d.db, "x", "0"), d.put(t.Context(), d.db, "y", "0"))
	update := func(tx execer, value, name string) error {
		_, err := tx.ExecContext(context.Background(), "UPDATE data SET value = ? WHERE name = ?", value, name)
		return err
	}
	other := d.begin(t, sql.LevelDefault)
	for i := range 100 { // InnoDB rolls back the transaction that has changed fewer rows
		must(t, d.put(t.Context(), other, fmt.Sprint("weight", i), "0"))
	}
	must(t, update(other, "other", "y"))
	blocked := make(chan error, 1)
	err := d.sql.Do(t.Context(), d.db, "deadlock", 5, func(tx *sql.Tx) error {
		must(t, update(tx, "ours", "x"))
		go func() { blocked <- update(other, "other", "x") }()
		testenv.Eventually(t, time.Minute, "the other transaction waits", func() bool { return d.isWaited(t) })
		var my *mysql.MySQLError
		if err := update(tx, "ours", "y"); !errors.As(err, &my) || my.Number != 1213 {
			t.Errorf("no deadlock: %v", err)
		}
		must(t, <-blocked, other.Rollback())
		return update(tx, "late", "y") // again, on what is no transaction any more
	})
	if !errors.Is(err, fence.ErrTransactionEnded) {
		t.Errorf("error is %v", err)
	}
	if value, err := d.read(t.Context(), "value", "data", "y"); value != "late" || err != nil {
		t.Errorf("the scenario does not show the fault: %q, %v", value, err)
	}
}

// ignoredRollback: SQLite ends a transaction in its conflict clause ROLLBACK, among others.
func ignoredRollback(t *testing.T, d *database) {
	must(t, d.put(t.Context(), d.db, "a", "0"))
	err := d.sql.Do(t.Context(), d.db, "conflict", 5, func(tx *sql.Tx) error {
		if run(t, tx, "INSERT OR ROLLBACK INTO data (name, value) VALUES ('a', '1')") == nil {
			t.Error("no conflict")
		}
		return d.put(t.Context(), tx, "a", "late")
	})
	if !errors.Is(err, fence.ErrTransactionEnded) {
		t.Errorf("error is %v", err)
	}
	must(t, d.sql.Do(t.Context(), d.db, "conflict", 5, func(tx *sql.Tx) error { return run(t, tx, "CREATE TABLE made (id INT)") }))
}

// staysInside: PostgreSQL takes DDL into the transaction, and refuses to go on after an error.
func staysInside(t *testing.T, d *database) {
	must(t, d.sql.Do(t.Context(), d.db, "ddl", 5, func(tx *sql.Tx) error { return run(t, tx, "CREATE TABLE made (id INT)") }))
	err := d.sql.Do(t.Context(), d.db, "ddl", 5, func(tx *sql.Tx) error {
		if run(t, tx, "SELECT 1/0") == nil || d.put(t.Context(), tx, "ddl", "late") == nil {
			t.Error("a statement after a failure was accepted")
		}
		return nil
	})
	if err == nil {
		t.Error("the commit succeeded")
	}
}
