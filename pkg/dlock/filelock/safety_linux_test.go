package filelock_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// refuses asserts that a Store takes no lock, with a fatal error and for this reason.
func refuses(t *testing.T, store *filelock.Store, why error) {
	t.Helper()
	d := open(t, store, driver.Options{})
	defer func() { _ = d.Close() }()
	for _, r := range []driver.Request{try("k"), wait("k"), {Ref: ref("k"), Mode: driver.Shared}} {
		st, err := d.Acquire(ctx, r)
		if !errors.Is(err, why) || driver.ClassOf(err) != driver.Fatal {
			t.Errorf("Acquire = %v, %v (class %d), want %v", st.Phase, err, driver.ClassOf(err), why)
		}
	}
	if phase(t, d, ref("k")) != driver.Gone {
		t.Error("something was stored")
	}
}

func accepts(t *testing.T, store *filelock.Store) {
	t.Helper()
	d := open(t, store, driver.Options{})
	defer func() { _ = d.Close() }()
	file(t, d, try("k"), driver.Held)
}

func mkdir(t *testing.T, perm os.FileMode) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "locks")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, perm); err != nil { // whatever the umask is
		t.Fatal(err)
	}
	return dir
}

func TestPermissions(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "b")
	d := newDriver(t, dir)
	if _, err := os.Stat(dir); err == nil {
		t.Error("Open has made the directory")
	}
	file(t, d, driver.Request{Ref: ref("k"), Mode: driver.Shared}, driver.Held)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Fatalf("%v, %v: want a lock, a slot and a guard", entries, err)
	}
	for _, e := range entries {
		if st, err := e.Info(); err != nil || st.Mode() != 0o600 {
			t.Errorf("%s is %v, %v", e.Name(), st.Mode(), err)
		}
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the directory is %v, %v", st.Mode(), err)
	}
}

func TestDirectoryOfOthers(t *testing.T) {
	t.Parallel()
	me := os.Geteuid()
	for _, tc := range []struct {
		name   string
		perm   os.FileMode
		uid    int
		shared bool
		safe   bool
	}{
		{name: "ours", perm: 0o700, uid: me, safe: true},
		{name: "others can read", perm: 0o755, uid: me, safe: true},
		{name: "the group can write", perm: 0o770, uid: me},
		{name: "all can write", perm: 0o777, uid: me},
		{name: "all can write, and it is sticky", perm: 0o777 | os.ModeSticky, uid: me},
		{name: "another user's", perm: 0o755, uid: me + 1},
		{name: "shared and ours", perm: 0o700, uid: me, shared: true, safe: true},
		{name: "shared and sticky", perm: 0o777 | os.ModeSticky, uid: me, shared: true, safe: true},
		{name: "shared and not sticky", perm: 0o777, uid: me, shared: true},
		{name: "shared and a third's", perm: 0o777 | os.ModeSticky, uid: me + 1, shared: true, safe: me == 0}, // it is root's then
	} {
		t.Run(tc.name, func(t *testing.T) {
			var opts []filelock.Option
			if tc.shared {
				opts = append(opts, filelock.WithSharedDir())
			}
			store := filelock.New(mkdir(t, tc.perm), opts...).AsUser(tc.uid)
			if tc.safe {
				accepts(t, store)
			} else {
				refuses(t, store, filelock.ErrInsecureDir)
			}
		})
	}
}

// In a shared directory every user can take a lock, whatever the umask is.
func TestSharedFiles(t *testing.T) {
	t.Parallel()
	dir := mkdir(t, 0o777|os.ModeSticky)
	d := newDriver(t, dir, filelock.WithSharedDir())
	file(t, d, try("k"), driver.Held)
	if st, err := os.Stat(filepath.Join(dir, filelock.Name("k"))); err != nil || st.Mode().Perm() != 0o666 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}

// File systems are known by the numbers of linux/magic.h and statfs(2). One that is unknown is named by its number.
func TestFileSystemNames(t *testing.T) {
	t.Parallel()
	for want, names := range map[bool]map[uint32]string{
		false: {
			0x6969: "nfs", 0x517b: "smb", 0xfe534d42: "smb2", 0xff534d42: "cifs", 0x01021997: "9p", 0x65735546: "fuse",
			0x00c36400: "ceph", 0x7461636f: "ocfs2", 0x5346414f: "afs", 0x6b414653: "afs", 0x73757245: "coda", 0x564c: "ncp",
			0x0bd00bd0: "lustre", 0x01161970: "gfs2", 0x47504653: "gpfs", 0x19830326: "beegfs", 0x20030528: "orangefs",
			0xaad7aaea: "panfs", 0x786f4256: "vboxsf", 0xbacbacbc: "vmhgfs", 0x7c7c6673: "prl_fs", 0x61636673: "acfs",
		},
		true: {
			0xef53: "ext4", 0x58465342: "xfs", 0x9123683e: "btrfs", 0x01021994: "tmpfs", 0x794c7630: "overlay",
			0xf2f52010: "f2fs", 0x2fc12fc1: "zfs", 0x12345: "0x12345",
		},
	} {
		for magic, name := range names {
			if got, local, err := filelock.JudgeMagic(magic); err != nil || local != want || got != name {
				t.Errorf("%#x is %q, local %v, %v, want %q, local %v", magic, got, local, err, name, want)
			}
		}
	}
}

func TestNetworkFileSystems(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	refuses(t, filelock.New(dir).OnFS("nfs", false), filelock.ErrNetworkFS)
	refuses(t, filelock.New(dir).OnFS("nfs", false), driver.ErrUnsupported)
	accepts(t, filelock.New(dir, filelock.WithNetworkFS()).OnFS("nfs", false))
	d := open(t, filelock.New(dir, filelock.WithNetworkFS()).OnFS("nfs", false), driver.Options{})
	defer func() { _ = d.Close() }()
	if found, err := d.(driver.Checker).Check(ctx); err != nil || found[0].Name != "file-system" || found[0].Level != driver.Unsafe {
		t.Errorf("Check = %+v, %v", found, err)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	d := newDriver(t, filepath.Join(t.TempDir(), "locks"))
	found, err := d.(driver.Checker).Check(ctx)
	if err != nil || len(found) != 3 {
		t.Fatalf("%+v, %v", found, err)
	}
	for _, f := range found {
		if f.Level != driver.OK {
			t.Errorf("%+v", f)
		}
	}
	polling := open(t, filelock.New(filepath.Join(t.TempDir(), "locks")).Polling(), driver.Options{})
	defer func() { _ = polling.Close() }()
	if found, err := polling.(driver.Checker).Check(ctx); err != nil || found[2].Name != "wake-up" || found[2].Level != driver.Warning {
		t.Errorf("Check without watches = %+v, %v", found, err)
	}
}

// A directory that is a link is refused with the name of the directory that it leads to.
func TestLinkedDirIsNamed(t *testing.T) {
	t.Parallel()
	dir := mkdir(t, 0o700)
	link := dir + ".link"
	must(os.Symlink(filepath.Base(dir), link))
	for _, store := range []*filelock.Store{filelock.New(link), filelock.NewFile(filepath.Join(link, "k.lock"))} {
		d := open(t, store, driver.Options{})
		_, err := d.Acquire(ctx, try("k"))
		if !errors.Is(err, filelock.ErrInsecureDir) || !strings.HasSuffix(err.Error(), " symbolic link to "+dir) {
			t.Errorf("%v", err)
		}
		_ = d.Close()
	}
}

// A file that another user has planted under the name of a lock is not touched.
func TestPlantedFiles(t *testing.T) {
	t.Parallel()
	for name, plant := range map[string]func(path, target string) error{
		"a symbolic link":          func(path, target string) error { return os.Symlink(target, path) },
		"a link to nothing":        func(path, target string) error { return os.Symlink(target+".none", path) },
		"a hard link":              func(path, target string) error { return os.Link(target, path) },
		"a pipe":                   func(path, _ string) error { return unix.Mkfifo(path, 0o600) },
		"a directory":              func(path, _ string) error { return os.Mkdir(path, 0o700) },
		"other data":               func(path, _ string) error { return os.WriteFile(path, []byte("precious"), 0o600) },
		"data that begins as ours": func(path, _ string) error { return os.WriteFile(path, []byte(filelock.Magic+"precious"), 0o600) },
	} {
		for _, file := range []string{filelock.Name("k"), filelock.BaseOf("k") + ".0", filelock.GuardName(filelock.BaseOf("k"))} {
			t.Run(name+" at "+file, func(t *testing.T) {
				dir := mkdir(t, 0o700)
				target, path := dir+".target", filepath.Join(dir, file)
				if err := os.WriteFile(target, []byte("precious"), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := plant(path, target); err != nil {
					t.Fatal(err)
				}
				d := newDriver(t, dir)
				st, err := d.Acquire(ctx, driver.Request{Ref: ref("k"), Mode: driver.Shared, Wait: true})
				if strings.HasPrefix(file, ".guard") && err == nil {
					return // nothing is written there
				}
				if err == nil || driver.ClassOf(err) != driver.Fatal {
					t.Errorf("Acquire = %v, %v", st.Phase, err)
				}
				for _, p := range []string{target, path} {
					if st, err := os.Stat(p); err != nil || !st.Mode().IsRegular() {
						continue
					}
					if text, err := os.ReadFile(p); err == nil && !strings.HasSuffix(string(text), "precious") {
						t.Errorf("%s became %q", p, text)
					}
				}
				if _, err := os.Lstat(target + ".none"); err == nil {
					t.Error("the target of the link was made")
				}
			})
		}
	}
}

// A hard link is refused even if its content would be valid.
func TestHardLink(t *testing.T) {
	t.Parallel()
	for _, name := range []string{filelock.Name("k"), filelock.BaseOf("k") + ".0"} {
		dir := mkdir(t, 0o700)
		if err := os.WriteFile(dir+".target", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Link(dir+".target", filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		st, err := newDriver(t, dir).Acquire(ctx, driver.Request{Ref: ref("k"), Mode: driver.Shared})
		if !errors.Is(err, filelock.ErrInsecureDir) || driver.ClassOf(err) != driver.Fatal {
			t.Errorf("%s: Acquire = %v, %v", name, st.Phase, err)
		}
		if text, err := os.ReadFile(dir + ".target"); err != nil || len(text) > 0 {
			t.Errorf("%s: the target became %q, %v", name, text, err)
		}
	}
}

// A waiter also writes only to a lock.
func TestWaiterLeavesOtherDataAlone(t *testing.T) {
	t.Parallel()
	dir := mkdir(t, 0o700)
	path := filepath.Join(dir, filelock.Name("k"))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.WriteString("precious"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	d := newDriver(t, dir)
	if st, err := d.Acquire(ctx, wait("k")); !errors.Is(err, filelock.ErrNotALock) {
		t.Errorf("Acquire = %v, %v", st.Phase, err)
	}
	if text, _ := os.ReadFile(path); string(text) != "precious" {
		t.Errorf("it became %q", text)
	}
}

func TestDirectoryIsALink(t *testing.T) {
	t.Parallel()
	dir := mkdir(t, 0o700)
	if err := os.Symlink(dir, dir+".link"); err != nil {
		t.Fatal(err)
	}
	refuses(t, filelock.New(dir+".link"), filelock.ErrInsecureDir)
	refuses(t, filelock.New(dir+".link/"), filelock.ErrInsecureDir)
}

func TestDirectoryIsAFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := open(t, filelock.New(path), driver.Options{})
	defer func() { _ = d.Close() }()
	if _, err := d.Acquire(ctx, try("k")); driver.ClassOf(err) != driver.Fatal {
		t.Error(err)
	}
	if _, err := filelock.New("").Open(driver.Options{}); err == nil {
		t.Error("no directory at all is accepted")
	}
	if _, err := filelock.New(t.TempDir(), filelock.WithNetworkFS(), nil).Open(driver.Options{}); err == nil || !strings.Contains(err.Error(), "option 1 is nil") {
		t.Errorf("an option that is nil: %v", err)
	}
}
