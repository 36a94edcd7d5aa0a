package fence_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/pkg/dlock/fence"
)

// Nothing is sent for bad input: the database does not exist.
func TestBadInput(t *testing.T) {
	t.Parallel()
	db := open(t, "pgx", "host=/nonexistent")
	good := fence.SQL{Dialect: fence.PostgreSQL}
	table := func(name string) fence.SQL { return fence.SQL{Dialect: fence.PostgreSQL, Table: name} }
	for name, c := range map[string]struct {
		sql      fence.SQL
		resource string
		token    int64
	}{
		"no dialect": {fence.SQL{}, "r", 1}, "other dialect": {fence.SQL{Dialect: "oracle"}, "r", 1},
		"injection": {table("fences; DROP TABLE data"), "r", 1}, "quotes": {table(`fences"`), "r", 1}, "backquote": {table("fences`"), "r", 1},
		"three parts": {table("a.b.c"), "r", 1}, "empty part": {table("a."), "r", 1}, "digit": {table("1a"), "r", 1}, "newline": {table("a\n"), "r", 1},
		"long table": {table(strings.Repeat("a", 64)), "r", 1},
		"no name":    {good, "", 1}, "long name": {good, strings.Repeat("r", 1025), 1}, "no UTF-8": {good, "\xff", 1}, "NUL": {good, "a\x00b", 1},
		"token 0": {good, "r", 0}, "negative token": {good, "r", -1},
	} {
		for step, err := range map[string]error{
			"Do":      c.sql.Do(t.Context(), db, c.resource, c.token, nil),
			"Check":   c.sql.Check(t.Context(), &sql.Tx{}, c.resource, c.token),
			"Checker": c.sql.Checker(db).Check(t.Context(), c.resource, c.token),
		} {
			var input *fence.InputError
			if !errors.Is(err, fence.ErrInvalid) || !errors.As(err, &input) {
				t.Errorf("%s, %s: %v", name, step, err)
			}
		}
	}
	_, err := table("a b").Statement()
	for name, err := range map[string]error{
		"statement": err, "create": table("a b").Create(t.Context(), db),
		"no tx": good.Check(t.Context(), nil, "r", 1), "no db": good.Do(t.Context(), nil, "r", 1, nil), "no db to create in": good.Create(t.Context(), nil),
	} {
		if !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := good.Do(t.Context(), db, "r", 1, nil); err == nil || errors.Is(err, fence.ErrInvalid) || !strings.Contains(err.Error(), `fence "r"`) {
		t.Errorf("without a database: %v", err)
	}
}

// A table that drops writes, by a trigger, a rule or a policy, does not let anything pass.
func TestTableThatDropsWrites(t *testing.T) {
	t.Parallel()
	d := openSQLite(t)
	_, err := d.db.ExecContext(t.Context(), "CREATE TRIGGER dropped BEFORE INSERT ON fences BEGIN SELECT RAISE(IGNORE); END")
	must(t, err)
	if err := d.raise(t, "resource", 5); !errors.Is(err, fence.ErrDamaged) {
		t.Errorf("error is %v", err)
	}
}
