package filelock_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

func inspect(t *testing.T, d driver.Driver, key string) []driver.Claim {
	t.Helper()
	claims, err := d.(driver.Admin).Inspect(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	return claims
}

func list(t *testing.T, d driver.Driver) []string {
	t.Helper()
	keys, next, err := d.(driver.Admin).List(ctx, "", "", 0)
	if err != nil || next != "" {
		t.Fatal(next, err)
	}
	return keys
}

// Dead holders are not shown, whatever they have left in the file.
func TestDeadHoldersAreNotShown(t *testing.T) {
	t.Parallel()
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared, driver.Permit} {
		t.Run(mode.String(), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "locks")
			d := newDriver(t, dir)
			cmd, token := holder(t, dir, "k", mode)
			claims := inspect(t, d, "k")
			if len(claims) != 1 || fmt.Sprint(claims[0].Token) != token || claims[0].Mode != mode ||
				claims[0].Info.Owner != "child" || claims[0].Info.PID != cmd.Process.Pid || claims[0].Age > time.Minute {
				t.Errorf("shown as %+v, want token %s", claims, token)
			}
			if keys := list(t, d); !slices.Equal(keys, []string{"k"}) {
				t.Errorf("listed %q", keys)
			}
			stop(t, cmd)
			if claims := inspect(t, d, "k"); len(claims) != 0 {
				t.Errorf("shown though dead: %+v", claims)
			}
			if keys := list(t, d); len(keys) != 0 {
				t.Errorf("listed %q", keys)
			}
		})
	}
}

// openIn counts the descriptors of this process that are a directory or a file in it.
func openIn(t *testing.T, dir string) int {
	t.Helper()
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, name := range names {
		path, _ := os.Readlink("/proc/self/fd/" + name.Name()) // some are closed by now
		if path == dir || strings.HasPrefix(path, dir+"/") {
			n++
		}
	}
	return n
}

// List reads the key of a long name inside the file, and closes the file.
func TestListClosesFiles(t *testing.T) {
	t.Parallel()
	dir := mkdir(t, 0o700)
	d := newDriver(t, dir)
	key := strings.Repeat("long ", 100)
	file(t, d, try(key), driver.Held)
	before := openIn(t, dir)
	if keys := list(t, d); !slices.Equal(keys, []string{key}) {
		t.Errorf("listed %q", keys)
	}
	if after := openIn(t, dir); after != before || before == 0 {
		t.Errorf("%d descriptors after List, %d before", after, before)
	}
}

// Among several holders the living ones are shown, in the order of their tokens.
func TestSharedHoldersAreShown(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	ds := []driver.Driver{newDriver(t, dir), newDriver(t, dir), newDriver(t, dir)}
	refs := make([]driver.Ref, len(ds))
	for i, d := range ds {
		r := driver.Request{Ref: ref("k"), Mode: driver.Shared, Info: driver.Info{Owner: fmt.Sprint("reader ", i)}}
		file(t, d, r, driver.Held)
		refs[i] = r.Ref
	}
	release(t, ds[0], refs[0])
	again := driver.Request{Ref: ref("k"), Mode: driver.Shared, Info: driver.Info{Owner: "reader 3"}}
	file(t, ds[0], again, driver.Held) // in the slot of the first
	var owners []string
	for _, c := range inspect(t, ds[1], "k") {
		owners = append(owners, c.Info.Owner)
	}
	if want := []string{"reader 1", "reader 2", "reader 3"}; !slices.Equal(owners, want) {
		t.Errorf("shown are %q, want %q", owners, want)
	}
	if _, err := os.Stat(filepath.Join(dir, filelock.BaseOf("k")+".3")); err == nil {
		t.Error("a fourth slot was made for three readers")
	}
}

// A short record after a long one leaves nothing of the long one.
func TestShorterRecord(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	d := newDriver(t, dir)
	for _, owner := range []string{strings.Repeat("é\"\\", 80), "b", "", strings.Repeat("c", 256), "d"} {
		r := driver.Request{Ref: ref("k"), Info: driver.Info{Owner: owner, Trace: owner}}
		st := file(t, d, r, driver.Held)
		claims := inspect(t, d, "k")
		if len(claims) != 1 || claims[0].Info != r.Info || claims[0].Token != st.Token || claims[0].ID != r.ID {
			t.Errorf("shown as %+v", claims)
		}
		text, err := os.ReadFile(filepath.Join(dir, filelock.Name("k")))
		if lines := strings.Fields(strings.ReplaceAll(string(text), " ", "_")); err != nil || len(lines) != 3 {
			t.Errorf("the file has the lines %q, %v", lines, err)
		}
		release(t, d, r.Ref)
	}
}
