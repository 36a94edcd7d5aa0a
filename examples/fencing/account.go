package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	_ "modernc.org/sqlite" // SQLite in pure Go; registers the driver "sqlite"
)

var errFenced = errors.New("refused: a holder with a greater token has written")

// open opens the database. A new database has one account with a balance of 100.
func open(ctx context.Context, file string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(5000)")
	if err != nil {
		return nil, err
	}
	_, err = db.ExecContext(ctx, `
		CREATE TABLE IF NOT EXISTS accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, fence INTEGER NOT NULL DEFAULT 0);
		INSERT OR IGNORE INTO accounts (id, balance) VALUES (1, 100);`)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("database %s: %w", file, err), db.Close())
	}
	return db, nil
}

// withdraw takes amount from the account on behalf of the holder with this token. One
// statement compares the token and writes, so no other write can come in between.
func withdraw(ctx context.Context, db *sql.DB, token, amount int64) error {
	result, err := db.ExecContext(ctx,
		`UPDATE accounts SET balance = balance - ?, fence = ? WHERE id = ? AND fence <= ?`,
		amount, token, 1, token)
	if err != nil {
		return err
	}
	rows, err := result.RowsAffected()
	if err == nil && rows == 0 {
		err = errFenced // nothing was written: stop
	}
	return err
}

func balance(ctx context.Context, db *sql.DB) (left int64, err error) {
	err = db.QueryRowContext(ctx, `SELECT balance FROM accounts WHERE id = ?`, 1).Scan(&left)
	return left, err
}
