package fence_test

import (
	"bytes"
	"context"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/pkg/dlock/fence"
)

// asWriter in the environment makes the test binary write a large file until it is killed.
const asWriter = "FENCE_TEST_WRITER"

func TestMain(m *testing.M) {
	if path := os.Getenv(asWriter); path != "" {
		content := bytes.Repeat([]byte("content\n"), 1<<20)
		for {
			if err := fence.WriteFile(context.Background(), path, content, 0o600, 1); err != nil {
				panic(err)
			}
		}
	}
	goleak.VerifyTestMain(m)
}
