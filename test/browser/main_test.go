package browser

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	for _, name := range []string{"DLOCK_BACKEND", "DLOCK_CONFIG", "DLOCK_PASSWORD", "DLOCK_UI_TOKEN"} {
		_ = os.Unsetenv(name)
	}
	goleak.VerifyTestMain(stopping{m})
}

// stopping ends the browser after the tests, before goroutines are counted.
type stopping struct{ *testing.M }

func (s stopping) Run() int {
	code := s.M.Run()
	if shared.browser != nil {
		if err := shared.close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	return code
}

// root is the folder of the repository.
func root(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
