//go:build linux || darwin

package scripts

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// scripts/dist makes an archive for this machine and runs what is in it. The other platforms, and the
// program with all backends, are for make dist.
func TestDistForThisMachine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), dist(t),
		"--out", dir, "--tags", "filesonly", runtime.GOOS+"/"+runtime.GOARCH)
	cmd.Env = append(os.Environ(), "PATH="+dockerThat(t, "exit 1")+string(os.PathListSeparator)+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "holds a lock, and refuses a second holder") {
		t.Fatalf("%v: %s", err, out)
	}
	archive := onlyFile(t, filepath.Join(dir, "dlock_*_"+runtime.GOOS+"_"+runtime.GOARCH+".tar.gz"))
	names := namesIn(t, archive)
	for _, want := range []string{"dlock", "LICENSE", "NOTICES", "man/dlock-run.1", "completions/dlock.bash", "deploy/kubernetes/cronjob.yaml"} {
		if !slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(name, "/"+want) }) {
			t.Errorf("%s is not in %q", want, names)
		}
	}
	var bom struct {
		BOMFormat  string
		Metadata   struct{ Component struct{ Version string } }
		Components []struct{ Name, Version, PURL string }
	}
	text, err := os.ReadFile(onlyFile(t, filepath.Join(dir, "dlock_*.cdx.json")))
	if err == nil {
		err = json.Unmarshal(text, &bom)
	}
	if err != nil || bom.BOMFormat != "CycloneDX" || len(bom.Components) < 3 || bom.Metadata.Component.Version == "(devel)" {
		t.Errorf("the list of modules: %v, %s", err, text)
	}
	checkManPages(t, archive)
}

// scripts/dist removes nothing that it has not made, and does not start to build.
func TestDistKeepsForeignFiles(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"dlock_notes.txt", "SHA256SUMS"} {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, []byte("precious\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), dist(t), "--out", filepath.Dir(file), "--tags", "filesonly", "freebsd/arm64")
		cmd.Env = append(os.Environ(), "PATH="+dockerThat(t, "exit 1")+string(os.PathListSeparator)+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), file+" is not of an earlier call") || strings.Contains(string(out), "building") {
			t.Errorf("%s: %v, %s", name, err, out)
		}
		if text, err := os.ReadFile(file); err != nil || string(text) != "precious\n" {
			t.Errorf("%s is %q, %v", name, text, err)
		}
	}
}

// A directory that an archive of an earlier call was unpacked into is not of that call.
func TestDistKeepsUnpackedArchive(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const archive, sum = "dlock_1_linux_amd64.tar.gz", "0123456789abcdef"
	unpacked := filepath.Join(dir, "dlock_1_linux_amd64")
	err := errors.Join(
		os.WriteFile(filepath.Join(dir, archive), []byte("precious\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sum+"  "+archive+"\n"), 0o600),
		os.Mkdir(unpacked, 0o700),
	)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), dist(t), "--out", dir, "--tags", "filesonly", "freebsd/arm64").CombinedOutput()
	if err == nil || !strings.Contains(string(out), unpacked+" is not of an earlier call") {
		t.Errorf("%v, %s", err, out)
	}
	if _, err := os.Stat(filepath.Join(dir, archive)); err != nil {
		t.Error(err)
	}
}

// A directory is relative to where the script is called, and gets new files in place of those of an earlier call.
// If the image cannot be built, the script fails, and the files of the earlier call stay.
func TestDistTwice(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	call := func(docker string) (string, error) {
		tools := dockerThat(t, docker)
		// A real package takes seconds to compress; TestDistForThisMachine makes one.
		if err := os.WriteFile(filepath.Join(tools, "dpkg-deb"), []byte("#!/bin/sh\ntouch \"$4\"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), dist(t), "--out", "to", "--tags", "filesonly", runtime.GOOS+"/"+runtime.GOARCH)
		cmd.Dir = parent
		cmd.Env = append(os.Environ(), "PATH="+tools+string(os.PathListSeparator)+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := call("exit 1"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	first := onlyFile(t, filepath.Join(parent, "to", "dlock_*_"+runtime.GOOS+"_"+runtime.GOARCH+".tar.gz"))
	before, err := os.Stat(first)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := call(`[ "$1" = info ]`); err == nil {
		t.Errorf("no image was built: %s", out)
	}
	if after, err := os.Stat(first); err != nil || !os.SameFile(before, after) {
		t.Errorf("a call that fails has changed %s: %v", first, err)
	}
	if out, err := call("exit 1"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if after, err := os.Stat(onlyFile(t, filepath.Join(parent, "to", "dlock_*_"+runtime.GOOS+"_"+runtime.GOARCH+".tar.gz"))); err != nil || os.SameFile(before, after) {
		t.Errorf("the second call has not replaced %s: %v", first, err)
	}
}

// dist is the path of the script.
func dist(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "scripts", "dist"))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// dockerThat is a directory with a docker that does this, so that no image is built here.
func dockerThat(t *testing.T, does string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "docker"), []byte("#!/bin/sh\n"+does+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// checkManPages formats each page where man(1) is there.
func checkManPages(t *testing.T, archive string) {
	t.Helper()
	man, err := exec.LookPath("man")
	if err != nil {
		man = ""
	}
	eachFile(t, archive, func(name string, content []byte) {
		if !strings.HasSuffix(name, ".1") {
			return
		}
		if !strings.HasPrefix(string(content), ".nh\n.TH \"DLOCK") || !strings.Contains(string(content), ".SH SYNOPSIS") {
			t.Errorf("%s is not a man page: %.80q", name, content)
		}
		if man == "" || runtime.GOOS != "linux" {
			return
		}
		page := filepath.Join(t.TempDir(), filepath.Base(name))
		if err := os.WriteFile(page, content, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), man, "--warnings", "-l", page)
		cmd.Env = append(os.Environ(), "MANPAGER=cat", "MANWIDTH=80", "LC_ALL=C.UTF-8")
		var said strings.Builder
		cmd.Stderr = &said
		if err := cmd.Run(); err != nil || said.Len() > 0 {
			t.Errorf("%s: %v, %s", name, err, &said)
		}
	})
}

func onlyFile(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q, %v, want one", pattern, found, err)
	}
	return found[0]
}

func namesIn(t *testing.T, archive string) (names []string) {
	t.Helper()
	eachFile(t, archive, func(name string, _ []byte) { names = append(names, name) })
	return names
}

// eachFile calls f with the files in a .tar.gz.
func eachFile(t *testing.T, archive string, f func(name string, content []byte)) {
	t.Helper()
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		f(h.Name, content)
	}
}
