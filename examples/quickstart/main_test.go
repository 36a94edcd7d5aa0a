package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/connector"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // go-redis would log the faults that the tests cause
	goleak.VerifyTestMain(m)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func TestRun(t *testing.T) {
	server := testenv.Redis(t)
	client := server.Client()
	defer client.Close()
	if err := client.Set(t.Context(), "shop:order:123", "another", 500*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), server.Addr()); err != nil {
		t.Error(err)
	}
	if n := client.Exists(t.Context(), "shop:order:123").Val(); n != 0 {
		t.Error("the lock was not released")
	}
}

func TestNoServer(t *testing.T) {
	if err := run(t.Context(), "localhost:1"); !errors.Is(err, connector.ErrUnreachable) {
		t.Errorf("error is %v", err)
	}
}
