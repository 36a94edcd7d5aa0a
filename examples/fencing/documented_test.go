package main

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/internal/docscan"
)

// The statements of the documents write with a token, and refuse a smaller one afterwards.
func TestStatementsOfTheDocuments(t *testing.T) {
	blocks, err := docscan.Blocks("../..")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, b := range blocks {
		if b.Lang != "sql" {
			continue
		}
		checked++
		db, err := open(t.Context(), filepath.Join(t.TempDir(), "accounts.db"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = db.ExecContext(t.Context(), `INSERT INTO accounts (id, balance) VALUES (42, 100)`)
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			token int64
			rows  string
		}{{34, "[1]"}, {34, "[1]"}, {33, "[0]"}, {35, "[1]"}} {
			rows, err := execute(t, db, b.Text, step.token)
			if err != nil || fmt.Sprint(rows) != step.rows {
				t.Errorf("%s: token %d changes %v rows, want %s: %v", b, step.token, rows, step.rows, err)
			}
		}
		err = db.Close()
		if err != nil {
			t.Error(err)
		}
	}
	if checked < 3 {
		t.Errorf("%d blocks of SQL, there were more", checked)
	}
}

// execute runs the statements of a block for account 42 and returns how many rows the writing ones change.
func execute(t *testing.T, db *sql.DB, text string, token int64) (rows []int64, err error) {
	t.Helper()
	text = regexp.MustCompile(`--.*`).ReplaceAllString(text, "")
	for statement := range strings.SplitSeq(text, ";") {
		args := []any{token} // $1, which may stand more than once
		switch strings.Count(statement, "?") {
		case 1:
			args = []any{42} // the row
		case 3:
			args = []any{token, 42, token}
		}
		switch {
		case strings.Contains(statement, "UPDATE"):
			result, err := db.ExecContext(t.Context(), statement, args...)
			if err != nil {
				return nil, err
			}
			n, err := result.RowsAffected()
			if err != nil {
				return nil, err
			}
			rows = append(rows, n)
		case strings.Contains(statement, "SELECT"):
			var balance int64
			err = db.QueryRowContext(t.Context(), statement, args...).Scan(&balance)
			if err != nil {
				return nil, err
			}
		}
	}
	return rows, nil
}
