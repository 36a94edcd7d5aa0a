//go:build linux || darwin

package scripts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// An installation runs scripts/need with a package manager that records what it is asked to do.
type installation struct {
	dir, policy string
}

// newInstallation has only the named commands besides those of the base system. Their text is a shell script
// that finds the directory in $dir.
func newInstallation(t *testing.T, commands map[string]string) *installation {
	t.Helper()
	i := &installation{dir: t.TempDir()}
	i.policy = filepath.Join(i.dir, "policy-rc.d")
	for _, name := range []string{"bash", "sh", "env", "cut", "sed", "tee", "chmod", "rm", "cat", "id", "touch", "test"} {
		path, err := exec.LookPath(name)
		if err == nil {
			err = os.Symlink(path, filepath.Join(i.dir, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	commands["sudo"] = `shift; exec "$@"`
	commands["dpkg"] = ""
	for name, text := range commands {
		err := os.WriteFile(filepath.Join(i.dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755)
		if err != nil {
			t.Fatal(err)
		}
	}
	return i
}

func (i *installation) run(t *testing.T, installs bool) (out string, err error) {
	t.Helper()
	script := fmt.Sprintf(`set -euo pipefail
		say() { echo "$*"; }
		die() { echo "$*"; exit 1; }
		installs=%v
		. ../../scripts/need
		need "redis-server" "$dir/absent" redis-server,redis,redis,redis
		need "MariaDB" "$dir/absent" "mariadb-server-core mariadb-client-core,mariadb-server,mariadb,mariadb"
		install_missing`, installs)
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
	cmd.Env = []string{"PATH=" + i.dir, "dir=" + i.dir, "policy=" + i.policy, "mysql=mysqld"}
	text, err := cmd.CombinedOutput()
	return string(text), err
}

func (i *installation) read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(i.dir, name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text)
}

const aptGet = `[ "$1" = install ] || exit 0
echo "$*" >"$dir/installed"
cat "$dir/policy-rc.d" >"$dir/policy-then"
`

// The packages are asked not to start services, only while they are installed. Nothing is removed.
func TestInstallationStartsNoService(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]string{"succeeds": "", "fails": "exit 100"} {
		i := newInstallation(t, map[string]string{"apt-get": aptGet + fails})
		out, err := i.run(t, true)
		if (err != nil) != (fails != "") || (fails != "" && !strings.Contains(out, "Install redis-server, MariaDB and run this again")) {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		if got := i.read(t, "installed"); got != "install -y --no-install-recommends --no-remove redis-server mariadb-server-core mariadb-client-core\n" {
			t.Errorf("%s: apt-get %s", name, got)
		}
		if got := i.read(t, "policy-then"); !strings.Contains(got, "exit 101") {
			t.Errorf("%s: the policy was %q", name, got)
		}
		if _, err := os.Stat(i.policy); !os.IsNotExist(err) {
			t.Errorf("%s: the policy is left: %v", name, err)
		}
	}
}

// A policy of the machine is neither replaced nor removed.
func TestInstallationKeepsThePolicy(t *testing.T) {
	t.Parallel()
	i := newInstallation(t, map[string]string{"apt-get": aptGet})
	if err := os.WriteFile(i.policy, []byte("mine"), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := i.run(t, true)
	if err != nil || i.read(t, "policy-rc.d") != "mine" || i.read(t, "policy-then") != "mine" {
		t.Errorf("%v: %s: %q", err, out, i.read(t, "policy-rc.d"))
	}
}

// A service that the packages enable is disabled; one that was enabled before stays.
func TestInstallationEnablesNoService(t *testing.T) {
	t.Parallel()
	i := newInstallation(t, map[string]string{
		"apt-get": aptGet + `touch "$dir/on-redis-server" "$dir/on-postgresql"`,
		"systemctl": `case $1 in
			is-enabled) test -e "$dir/on-$3" ;;
			disable) rm "$dir/on-$3" ;;
		esac`,
	})
	if err := os.WriteFile(filepath.Join(i.dir, "on-postgresql"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := i.run(t, true)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	on, err := filepath.Glob(filepath.Join(i.dir, "on-*"))
	if err != nil || len(on) != 1 || filepath.Base(on[0]) != "on-postgresql" {
		t.Errorf("enabled: %q, %v", on, err)
	}
}

// Where a MySQL server is in the way of MariaDB, the message says so.
func TestInstallationNamesMySQL(t *testing.T) {
	t.Parallel()
	for _, installs := range []bool{false, true} {
		with := newInstallation(t, map[string]string{"apt-get": `[ "$1" != install ]`, "mysqld": ""})
		out, err := with.run(t, installs)
		if err == nil || !strings.Contains(out, "A MySQL server is here") {
			t.Errorf("%v: %s", err, out)
		}
		without := newInstallation(t, map[string]string{"apt-get": `[ "$1" != install ]`})
		out, err = without.run(t, installs)
		if err == nil || strings.Contains(out, "MySQL") {
			t.Errorf("%v: %s", err, out)
		}
	}
}
