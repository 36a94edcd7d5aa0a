package filelock_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// A waiter writes nothing to an empty file that a script holds: the script may write to it.
func TestWaiterLeavesAnEmptyFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(mkdir(t, 0o700), "k.lock")
	short, cancel := context.WithTimeout(t.Context(), time.Minute) // no read or wait below takes longer
	defer cancel()
	script := exec.CommandContext(short, "sh", "-c", `exec 9>>"$1"; flock 9; echo locked; read _; echo $$ >&9; read _`, "sh", path)
	in, err := script.StdinPipe()
	must(err)
	out, err := script.StdoutPipe()
	must(err)
	must(script.Start())
	_, err = out.Read(make([]byte, 1))
	must(err)
	d := oneFile(t, path)
	w := wait("k")
	file(t, d, w, driver.Queued)
	if text, err := os.ReadFile(path); err != nil || len(text) > 0 {
		t.Errorf("the waiter has written %q, %v", text, err)
	}
	_, err = in.Write([]byte("\n"))
	must(err)
	want := strconv.Itoa(script.Process.Pid) + "\n"
	var text []byte
	waitUntil(t, func() bool { text, err = os.ReadFile(path); return err != nil || len(text) > 0 })
	if string(text) != want {
		t.Errorf("the file is %q, %v, want %q", text, err, want)
	}
	must(in.Close())
	_ = script.Wait()    // the last read finds the end
	release(t, d, w.Ref) // it locks the file for moments, to see what it contains
	if _, err := oneFile(t, path).Acquire(ctx, try("k")); !errors.Is(err, filelock.ErrNotALock) {
		t.Errorf("a file with a PID: %v", err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != want {
		t.Errorf("afterwards, the file is %q, %v, want %q", text, err, want)
	}
}

// What a script has appended to a record stays, and is refused.
func TestAppendedPID(t *testing.T) {
	t.Parallel()
	path := filepath.Join(mkdir(t, 0o700), "k.lock")
	d := oneFile(t, path)
	for range 2 { // a second record is accepted behind which blank lines follow
		long := try("k")
		long.Info.Owner = strings.Repeat("o", 100)
		for _, r := range []driver.Request{long, try("k")} {
			file(t, d, r, driver.Held)
			release(t, d, r.Ref)
		}
	}
	must(exec.CommandContext(t.Context(), "flock", path, "sh", "-c", `echo $$ >>"$0"`, path).Run())
	before, err := os.ReadFile(path)
	must(err)
	for _, r := range []driver.Request{try("k"), wait("k"), {Ref: ref("k"), Mode: driver.Shared}} {
		if st, err := d.Acquire(ctx, r); !errors.Is(err, filelock.ErrNotALock) || !strings.Contains(err.Error(), path) {
			t.Errorf("Acquire = %v, %v", st.Phase, err)
		}
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("the file was %q, and is %q, %v", before, after, err)
	}
}

// A script that opens the file with 9> empties it without a lock, at any moment. The lock stays usable.
func TestScriptEmptiesTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(mkdir(t, 0o700), "k.lock")
	script := exec.CommandContext(t.Context(), "sh", "-c", `while :; do : 9>"$1"; done`, "sh", path)
	must(script.Start())
	defer func() {
		_ = script.Process.Kill()
		_ = script.Wait()
	}()
	d := oneFile(t, path)
	for range testenv.UnderStress(800, 4000) {
		r := try("k")
		file(t, d, r, driver.Held)
		release(t, d, r.Ref)
	}
}
