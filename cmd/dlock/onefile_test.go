//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// lockFile is the path of a lock that is not there yet.
func lockFile(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "locks", name)
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// A % in the name of a file is an escape in a URL. The command does not take that for another file than the one that
// a script holds.
func TestEscapedNameOfOneFile(t *testing.T) {
	t.Parallel()
	path := lockFile(t, "order%3a1.lock")
	call := func(backend string) (errs string, code int) {
		_, errs, code = finish(t, exec.Command("flock", path, program, "-b", backend, "run", "--try", "order:1", "--", "true"))
		return errs, code
	}
	if errs, code := call("file://" + path); code != 64 || !strings.Contains(errs, `"order%253a1.lock"`) || !strings.Contains(errs, `"order:1.lock"`) {
		t.Errorf("the name as it is: exit %d, %s", code, errs)
	}
	unescaped := filepath.Join(filepath.Dir(path), "order:1.lock")
	if errs, code := call("file://" + unescaped); code != 64 || !strings.Contains(errs, "order%3a1.lock") {
		t.Errorf("the name unescaped: exit %d, %s", code, errs)
	}
	if _, err := os.Lstat(unescaped); err == nil {
		t.Errorf("%s was made", unescaped)
	}
	for _, backend := range []string{"file://" + strings.ReplaceAll(path, "%", "%25"), "file://" + filepath.Dir(path)} {
		if errs, code := call(backend); code != 75 {
			t.Errorf("%s: exit %d, %s", backend, code, errs)
		}
	}
}

// A file and its directory are not two locks of one key.
func TestOneFileAndItsDirectory(t *testing.T) {
	t.Parallel()
	path := lockFile(t, "myApp.lock")
	inner := []string{"run", "myApp", "--", program, "-b", "file://" + filepath.Dir(path), "run", "--try", "myApp", "--", "true"}
	if _, errs, code := dlock(t, "file://"+path, inner...); code != 64 || !strings.Contains(errs, "my%41pp.lock") {
		t.Errorf("exit %d, %s", code, errs)
	}
}

// Doctor and bench use the only key, whatever the prefix is, and leave its file.
func TestProbesOfOneFile(t *testing.T) {
	t.Parallel()
	path := lockFile(t, "app:k.lock")
	for _, args := range [][]string{
		{"doctor"}, {"bench", "--clients", "2", "--section", "0", "--duration", "20ms", "--quiet"},
	} {
		if out, errs, code := dlock(t, "file://"+path+"/?prefix=app:", args...); code != 0 {
			t.Errorf("%s: exit %d, %s%s", args[0], code, out, errs)
		}
		if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() {
			t.Errorf("%s: %v", args[0], err)
		}
	}
}
