//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package fence_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ceyewan/genesis/pkg/dlock/fence"
)

func ExampleWriteFile() {
	dir, err := os.MkdirTemp("", "fence-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "state")
	ctx := context.Background()
	fmt.Println(fence.WriteFile(ctx, path, []byte("second"), 0o600, 34))
	err = fence.WriteFile(ctx, path, []byte("first"), 0o600, 33)
	fmt.Println(errors.Is(err, fence.ErrStale))
	// Output:
	// <nil>
	// true
}
