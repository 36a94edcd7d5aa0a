//go:build unix

// Package fence_test holds package fence against real databases: PostgreSQL, MariaDB and SQLite. It
// is a module of its own, so that their drivers are no dependencies of users.
package fence_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"testing"

	"github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(asHolder) != "" {
		err := hold(context.Background(), os.Args[1], os.Args[2])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// The driver would log the faults that the tests cause.
	_ = mysql.SetLogger(log.New(silent{}, "", 0))
	goleak.VerifyTestMain(m)
}

type silent struct{}

func (silent) Write(p []byte) (int, error) { return len(p), nil }
