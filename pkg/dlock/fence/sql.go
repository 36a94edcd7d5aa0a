package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// SQL fences transactions of a database. Table is a small table that stores the greatest token of
// each resource; create it with Create, or with Statement in a migration.
//
//	orders := fence.SQL{Dialect: fence.PostgreSQL, Table: "fences"}
//	err := orders.Do(ctx, db, "order:123", guard.Token(), func(tx *sql.Tx) error {
//		_, err := tx.ExecContext(ctx, "UPDATE orders SET state = 'shipped' WHERE id = 123")
//		return err
//	})
//	if errors.Is(err, fence.ErrStale) {
//		return err // another process has the lock: stop
//	}
//
// The token and the writes are in one transaction, so they take effect together or not at all.
// This needs two things of the writer. Return every error of a statement: after a deadlock, MySQL
// has rolled back the transaction with its fence, and a statement that follows takes effect at once.
// On MySQL and MariaDB, send no statement that commits implicitly, such as DDL, TRUNCATE or a
// procedure that commits. Do detects both with ErrTransactionEnded, but cannot undo the writes.
//
// The fence holds at every isolation level. At REPEATABLE READ and SERIALIZABLE, the database may return
// a serialization failure, and MySQL a deadlock at any level: the transaction then had no effect,
// and can be run again.
//
// A holder that pauses inside its transaction keeps the row locked, and the next holder waits. On
// PostgreSQL and MariaDB, let the database end that session: set
// idle_in_transaction_session_timeout or idle_transaction_timeout below the time that you can wait.
// MySQL and SQLite have no such setting. The wait itself ends with an error after
// innodb_lock_wait_timeout (MySQL and MariaDB, 50 s by default), and on SQLite after busy_timeout,
// which is 0 unless it is set.
type SQL struct {
	// Dialect is the language of the database.
	Dialect Dialect
	// Table is the name of the table, with or without a schema: "fences", "shop.fences". It is used
	// as it is written, with its case. Empty: "fences".
	Table string
}

// Statement returns the statement that creates the table unless it exists.
func (s SQL) Statement() (string, error) {
	texts, err := s.texts()
	return texts.create, err
}

// Create creates the table unless it exists. Several processes may call it at the same time.
func (s SQL) Create(ctx context.Context, db *sql.DB) error {
	statement, err := s.Statement()
	if err != nil {
		return err
	}
	if db == nil {
		return &InputError{"db", "is nil"}
	}
	_, err = db.ExecContext(ctx, statement)
	if err != nil && ctx.Err() == nil {
		// PostgreSQL fails if another session creates the table at the same time. Now it exists.
		_, err = db.ExecContext(ctx, statement)
	}
	if err != nil {
		return fmt.Errorf("fence: create table %s: %w", s.table(), err)
	}
	return nil
}

// Check compares the token with the greatest that the resource has seen, and records it. Call it
// first in the transaction: it locks the row of the resource until the transaction ends, so that a
// holder with another token writes before or after the whole transaction.
//
// If the error is not nil, roll the transaction back. ErrStale says that another process has the
// lock. The token counts as seen when the transaction is committed.
func (s SQL) Check(ctx context.Context, tx *sql.Tx, resource string, token int64) error {
	texts, err := s.texts()
	if err == nil {
		err = validate(resource, token)
	}
	if err == nil && tx == nil {
		err = &InputError{"tx", "is nil"}
	}
	if err != nil {
		return err
	}
	seen, err := texts.raise(ctx, tx, resource, token)
	if err != nil {
		return fmt.Errorf("fence %q: %w", resource, err)
	}
	if seen > token {
		return &StaleError{resource, token, seen}
	}
	return nil
}

// Do runs write in a transaction that is fenced by token. It commits if write returns nil, and
// rolls back otherwise, also if write panics. Without write (nil) it only raises the fence, which
// is the first step of a holder that reads before it writes. write must return every error of a
// statement, and must not end the transaction: see ErrTransactionEnded.
//
// If the commit fails, it is not known whether the transaction took effect, as with any commit.
func (s SQL) Do(ctx context.Context, db *sql.DB, resource string, token int64, write func(*sql.Tx) error) error {
	if _, err := s.texts(); err != nil {
		return err
	}
	if err := validate(resource, token); err != nil {
		return err
	}
	if db == nil {
		return &InputError{"db", "is nil"}
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("fence %q: begin: %w", resource, err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	err = s.Check(ctx, tx, resource, token)
	if err != nil {
		return err
	}
	if write != nil {
		err = s.runInside(ctx, tx, resource, write)
		if err != nil {
			return err
		}
	}
	err = tx.Commit()
	if err != nil {
		return fmt.Errorf("fence %q: commit: %w", resource, err)
	}
	return nil
}

// savepoint is one that exists only as long as the transaction that set it.
const savepoint = "dlock_fence"

// runInside runs write, and checks that the transaction is still the one that was fenced. MySQL
// reports no error for a commit without a transaction, and its drivers do not know that one ended.
// PostgreSQL refuses all statements after an error, and has no implicit commit.
func (s SQL) runInside(ctx context.Context, tx *sql.Tx, resource string, write func(*sql.Tx) error) error {
	if s.Dialect == PostgreSQL {
		return write(tx)
	}
	_, err := tx.ExecContext(ctx, "SAVEPOINT "+savepoint)
	if err != nil {
		return fmt.Errorf("fence %q: savepoint: %w", resource, err)
	}
	err = write(tx)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "RELEASE SAVEPOINT "+savepoint)
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), savepoint): // the server names one that it does not know
		return fmt.Errorf("fence %q: %w: the function must return every error of a statement, and send no statement that commits: %w", resource, ErrTransactionEnded, err)
	}
	return fmt.Errorf("fence %q: release savepoint: %w", resource, err)
}

// Checker returns a Checker that stores the tokens in the database. Every check is a transaction of
// its own: a write after it is not fenced, unless it calls Check in its own transaction too. It
// stores a row for each name that it is asked about.
func (s SQL) Checker(db *sql.DB) Checker { return &sqlChecker{s, db} }

type sqlChecker struct {
	sql SQL
	db  *sql.DB
}

func (c *sqlChecker) Check(ctx context.Context, resource string, token int64) error {
	return c.sql.Do(ctx, c.db, resource, token, nil)
}

// raise records a token, and returns the greatest that was seen. The row is locked from here on.
func (t statements) raise(ctx context.Context, tx *sql.Tx, resource string, token int64) (seen int64, err error) {
	args := []any{resource, token}
	if t.mysql {
		args = append(args, token)
	}
	result, err := tx.ExecContext(ctx, t.upsert, args...)
	if err != nil {
		return 0, err
	}
	if !t.mysql {
		rows, err := result.RowsAffected()
		if err != nil || rows > 0 {
			return token, err
		}
	}
	err = tx.QueryRowContext(ctx, t.read, resource).Scan(&seen)
	if errors.Is(err, sql.ErrNoRows) || (err == nil && (seen < token || seen == token && !t.mysql)) {
		// A trigger, a rule or a policy of the table has dropped it.
		return 0, fmt.Errorf("%w: the table has not stored token %d", ErrDamaged, token)
	}
	return seen, err
}
