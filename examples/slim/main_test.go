package main

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRun(t *testing.T) {
	if err := run(testenv.Redis(t).Addr()); err != nil {
		t.Error(err)
	}
}
