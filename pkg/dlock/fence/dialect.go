package fence

import (
	"fmt"
	"regexp"
	"strings"
)

// A Dialect is the language of a database.
type Dialect string

// The dialects that SQL knows. MySQL is also that of MariaDB.
const (
	PostgreSQL Dialect = "postgresql"
	MySQL      Dialect = "mysql"
	SQLite     Dialect = "sqlite"
)

// statements are what SQL sends to a database.
type statements struct {
	create string
	// upsert records a token unless a greater one is there, and locks the row in either case.
	upsert string
	read   string
	// mysql: the number of rows affected does not tell whether the token was recorded, because it
	// depends on a flag of the connection (clientFoundRows). The upsert takes the token twice.
	mysql bool
}

// Names of resources are compared byte by byte. A collation could treat "a" as "A", or "a" as "a ".
// A table without a lock for each row, such as those of MyISAM, would not fence.
var templates = map[Dialect]statements{
	PostgreSQL: {
		create: `CREATE TABLE IF NOT EXISTS %s (resource TEXT COLLATE "C" PRIMARY KEY, token BIGINT NOT NULL)`,
		upsert: `INSERT INTO %s AS f (resource, token) VALUES ($1, $2)
			ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token WHERE f.token <= EXCLUDED.token`,
		read: `SELECT token FROM %s WHERE resource = $1`,
	},
	SQLite: {
		create: `CREATE TABLE IF NOT EXISTS %s (resource TEXT COLLATE BINARY PRIMARY KEY, token INTEGER NOT NULL) WITHOUT ROWID`,
		upsert: `INSERT INTO %s AS f (resource, token) VALUES (?1, ?2)
			ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE f.token <= excluded.token`,
		read: `SELECT token FROM %s WHERE resource = ?1`,
	},
	MySQL: {
		create: `CREATE TABLE IF NOT EXISTS %s (resource VARBINARY(1024) PRIMARY KEY, token BIGINT NOT NULL) ENGINE=InnoDB ROW_FORMAT=DYNAMIC`,
		upsert: `INSERT INTO %s (resource, token) VALUES (?, ?) ON DUPLICATE KEY UPDATE token = GREATEST(token, ?)`,
		// A locking read returns what is stored, not what the transaction saw when it began.
		read:  `SELECT token FROM %s WHERE resource = ? FOR UPDATE`,
		mysql: true,
	},
}

func (s SQL) table() string {
	if s.Table == "" {
		return "fences"
	}
	return s.Table
}

// identifier is a name of at most 63 bytes, with or without a schema: PostgreSQL cuts longer names
// short.
var identifier = regexp.MustCompile(`^(?:[A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// texts returns the statements for the table.
func (s SQL) texts() (statements, error) {
	t, ok := templates[s.Dialect]
	if !ok {
		return t, &InputError{"Dialect", fmt.Sprintf("%q is not known: use PostgreSQL, MySQL or SQLite", s.Dialect)}
	}
	if !identifier.MatchString(s.table()) {
		return t, &InputError{"Table", fmt.Sprintf("%q is not a name, or a schema and a name, of letters, digits and underscores", s.Table)}
	}
	quote := `"`
	if s.Dialect == MySQL {
		quote = "`"
	}
	name := quote + strings.ReplaceAll(s.table(), ".", quote+"."+quote) + quote
	t.create, t.upsert, t.read = fmt.Sprintf(t.create, name), fmt.Sprintf(t.upsert, name), fmt.Sprintf(t.read, name)
	return t, nil
}
