package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // registers "pgx"
	"modernc.org/sqlite"

	"github.com/ceyewan/genesis/pkg/dlock/fence"
)

// A database is one under test.
type database struct {
	sql    fence.SQL
	db     *sql.DB
	open   func(t *testing.T, options string) *sql.DB // another pool, with options of the driver
	schema string
	levels []sql.IsolationLevel
	// waiting counts the transactions that wait for a lock. SQLite cannot tell.
	waiting string
	// impatient is a pool whose transactions do not wait. SQLite only.
	impatient func(t *testing.T) *sql.DB
	// brief ends idle transactions after about a second. SQLite cannot.
	brief string
}

const postgresAdvice = `PostgreSQL is needed
	Debian, Ubuntu: apt-get install postgresql
	Fedora:         dnf install postgresql-server
	Alpine:         apk add postgresql
	macOS:          brew install postgresql@17`

func startPostgreSQL(t *testing.T) *database {
	t.Helper()
	path := findServer(t, postgresAdvice, "postgres", "/usr/lib/postgresql/*/bin/postgres", "/usr/libexec/postgresql*/postgres", "/usr/pgsql-*/bin/postgres",
		"/opt/homebrew/opt/postgresql*/bin/postgres", "/usr/local/opt/postgresql*/bin/postgres")
	initdb := findServer(t, postgresAdvice, filepath.Join(filepath.Dir(path), "initdb"), "initdb")
	dir := serverDir(t)
	data := filepath.Join(dir, "data")
	runToEnd(t, dir, initdb, "-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
	source := fmt.Sprintf("host=%s user=postgres dbname=postgres", dir)
	startServer(t, dir, path, "pgx", source, "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=60")
	d := &database{
		sql: fence.SQL{Dialect: fence.PostgreSQL}, schema: "shop",
		levels:  []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable},
		waiting: "SELECT COUNT(*) FROM pg_locks WHERE NOT granted",
		brief:   "SET idle_in_transaction_session_timeout = 1000",
		open:    func(t *testing.T, options string) *sql.DB { return open(t, "pgx", source+" "+options) },
	}
	return d.prepare(t, "CREATE SCHEMA shop")
}

const mariadbAdvice = `MariaDB is needed
	Debian, Ubuntu: apt-get install mariadb-server-core mariadb-client-core
	Fedora:         dnf install mariadb-server
	Alpine:         apk add mariadb
	macOS:          brew install mariadb`

func startMariaDB(t *testing.T) *database {
	t.Helper()
	path := findServer(t, mariadbAdvice, "mariadbd", "/usr/sbin/mariadbd", "/usr/libexec/mariadbd")
	install := findServer(t, mariadbAdvice, "mariadb-install-db")
	dir := serverDir(t)
	data, socket := filepath.Join(dir, "data"), filepath.Join(dir, "s")
	common := []string{
		"--no-defaults", "--datadir=" + data, "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0",
		"--innodb-use-native-aio=0", "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M", "--tmpdir=" + dir,
	}
	runToEnd(t, dir, install, append(common, "--auth-root-authentication-method=normal", "--skip-test-db")...)
	source := "root@unix(" + socket + ")/"
	startServer(t, dir, path, "mysql", source, append(common, "--socket="+socket, "--pid-file="+filepath.Join(dir, "pid"), "--skip-networking", "--skip-log-bin")...)
	d := &database{
		sql: fence.SQL{Dialect: fence.MySQL}, schema: "shop",
		levels:  []sql.IsolationLevel{sql.LevelReadUncommitted, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable},
		waiting: "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'",
		brief:   "SET idle_transaction_timeout = 1",
		open:    func(t *testing.T, options string) *sql.DB { return open(t, "mysql", source+"test?"+options) },
	}
	admin := open(t, "mysql", source)
	_, err1 := admin.ExecContext(t.Context(), "CREATE DATABASE test")
	_, err2 := admin.ExecContext(t.Context(), "CREATE DATABASE shop")
	must(t, err1, err2)
	return d.prepare(t)
}

func sqliteSource(file string) string { return impatientSource(file) + "&_pragma=busy_timeout(120000)" }

func impatientSource(file string) string {
	return "file:" + file + "?_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"
}

func openSQLite(t *testing.T) *database {
	t.Helper()
	file := filepath.Join(t.TempDir(), "test.db")
	source := sqliteSource(file)
	d := &database{
		sql: fence.SQL{Dialect: fence.SQLite}, schema: "main",
		levels:    []sql.IsolationLevel{sql.LevelDefault},
		open:      func(t *testing.T, options string) *sql.DB { return open(t, "sqlite", source+"&"+options) },
		impatient: func(t *testing.T) *sql.DB { return open(t, "sqlite", impatientSource(file)) },
	}
	return d.prepare(t)
}

// prepare creates the tables: that of the fences, and the data of the tests.
func (d *database) prepare(t *testing.T, statements ...string) *database {
	t.Helper()
	d.db = d.open(t, "")
	name := "TEXT"
	if d.sql.Dialect == fence.MySQL {
		name = "VARCHAR(200)"
	}
	statements = append(statements, "CREATE TABLE data (name "+name+" PRIMARY KEY, value TEXT NOT NULL)", "CREATE TABLE history (name "+name+" PRIMARY KEY, tokens TEXT NOT NULL)")
	for _, s := range statements {
		_, err := d.db.ExecContext(t.Context(), s)
		must(t, err)
	}
	must(t, d.sql.Create(t.Context(), d.db), d.sql.Create(t.Context(), d.db)) // the second one does nothing
	return d
}

// execer is a transaction or a database.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// bind writes the placeholders of a statement as the database wants them.
func (d *database) bind(statement string) string {
	if d.sql.Dialect != fence.PostgreSQL {
		return statement
	}
	n, bound := 0, ""
	for _, c := range statement {
		if c == '?' {
			n++
			bound += fmt.Sprint("$", n)
			continue
		}
		bound += string(c)
	}
	return bound
}

// put writes a value.
func (d *database) put(ctx context.Context, tx execer, name, value string) error {
	statement := "INSERT INTO data (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value"
	if d.sql.Dialect == fence.MySQL {
		statement = "REPLACE INTO data (name, value) VALUES (?, ?)"
	}
	_, err := tx.ExecContext(ctx, d.bind(statement), name, value)
	return err
}

// record adds a token to the history of a name.
func (d *database) record(ctx context.Context, tx execer, name string, token int64) error {
	add := fmt.Sprint(token, ",")
	statement := "INSERT INTO history (name, tokens) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET tokens = history.tokens || EXCLUDED.tokens"
	if d.sql.Dialect == fence.MySQL {
		statement = "INSERT INTO history (name, tokens) VALUES (?, ?) ON DUPLICATE KEY UPDATE tokens = CONCAT(tokens, VALUES(tokens))"
	}
	_, err := tx.ExecContext(ctx, d.bind(statement), name, add)
	return err
}

func (d *database) read(ctx context.Context, column, table, name string) (value string, err error) {
	err = d.db.QueryRowContext(ctx, d.bind("SELECT "+column+" FROM "+table+" WHERE name = ?"), name).Scan(&value)
	return value, err
}

// mustBeBusy fails the test if a holder could write now. It is for SQLite, which cannot tell whether
// a transaction waits: without a busy_timeout, a holder that would wait fails.
func (d *database) mustBeBusy(t *testing.T, resource string, token int64) {
	t.Helper()
	if d.waiting != "" {
		return
	}
	const busy = 5
	var lite *sqlite.Error
	err := d.sql.Do(t.Context(), d.impatient(t), resource, token, nil)
	if !errors.As(err, &lite) || lite.Code() != busy {
		t.Fatalf("token %d did not wait: %v", token, err)
	}
}

// isWaited reports whether a transaction waits for another one. For SQLite, mustBeBusy is the test.
func (d *database) isWaited(t *testing.T) bool {
	t.Helper()
	if d.waiting == "" {
		return true
	}
	var n int
	must(t, d.db.QueryRowContext(t.Context(), d.waiting).Scan(&n))
	return n > 0
}

// temporary reports errors after which a transaction can be run again: a deadlock, a serialization
// failure, or a state that is outdated.
func temporary(err error) bool {
	const deadlock, changed = 1213, 1020 // of MySQL
	const busySnapshot = 517             // of SQLite
	var my *mysql.MySQLError
	var pg *pgconn.PgError
	var lite *sqlite.Error
	switch {
	case errors.As(err, &my):
		return my.Number == deadlock || my.Number == changed
	case errors.As(err, &pg):
		return pg.Code == "40001" || pg.Code == "40P01"
	}
	return errors.As(err, &lite) && lite.Code() == busySnapshot
}
