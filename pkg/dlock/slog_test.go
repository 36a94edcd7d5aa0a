package dlock_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// WithSlog(nil) writes to slog.Default, as it is when the Client is made.
func TestNilSlogIsTheDefault(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	option := dlock.WithSlog(nil)
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(memlock.New()), dlock.WithAdmin(), option)
	if err != nil {
		t.Fatal(err)
	}
	g := acquire(t, c, "k")
	admin, err := c.Admin()
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.Evict(ctx, "k", g.Token()); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil { // which delivers what was logged
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "component=dlock") {
		t.Errorf("slog.Default has %q", log.String())
	}
}
