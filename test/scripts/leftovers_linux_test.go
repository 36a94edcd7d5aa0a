package scripts

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const listenerFile = "LEFTOVERS_TEST_LISTENER"

func TestMain(m *testing.M) {
	if file := os.Getenv(listenerFile); file != "" {
		listen(file)
	}
	os.Exit(m.Run())
}

// listen is a process that writes its port to a file and stays.
func listen(file string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	if err := os.WriteFile(file, []byte(port), 0o600); err != nil {
		panic(err)
	}
	select {}
}

// A process that listens is named with its port.
func TestListenersAreNamed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "port")
	code, out := leftovers(t, fmt.Sprintf(`%s='%s' '%s' & while [ ! -s '%[2]s' ]; do sleep 0.02; done`, listenerFile, file, os.Args[0]))
	port, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf(", listening on %s: ", port); code != 1 || !strings.Contains(out, want) {
		t.Errorf("exit %d and %q, want 1 and %q", code, out, want)
	}
}
