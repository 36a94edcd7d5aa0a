package servers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
)

// These environment variables hold the paths of the binaries to run. Without them, redis-server is
// looked up in PATH, and etcd and etcdctl first among those that scripts/etcd has built.
const (
	BinaryEnv  = "DLOCK_REDIS_SERVER"
	EtcdEnv    = "DLOCK_TEST_ETCD"
	EtcdctlEnv = "DLOCK_TEST_ETCDCTL"
	// ChromiumEnv is for a browser that is not in PATH.
	ChromiumEnv = "DLOCK_TEST_CHROMIUM"
)

// ErrNotInstalled: a required binary is missing. The text of the error that wraps it says what to
// do.
var ErrNotInstalled = errors.New("not installed")

const redisAdvice = `redis-server (7.0 or newer) is needed
	Debian, Ubuntu: apt-get install redis-server
	Fedora:         dnf install redis (or valkey-compat-redis)
	Alpine:         apk add redis
	macOS:          brew install redis
or set ` + BinaryEnv + ` to the path of the binary`

func redisBinary() (string, error) {
	return find(BinaryEnv, redisAdvice, "redis-server")
}

func etcdBinary() (string, error) { return builtBinary("etcd", EtcdEnv) }

// Etcdctl returns the path of etcdctl, or ErrNotInstalled.
func Etcdctl() (string, error) { return builtBinary("etcdctl", EtcdctlEnv) }

const chromiumAdvice = `Chromium is needed
	Debian:         apt-get install chromium
	Fedora:         dnf install chromium
	Alpine:         apk add chromium
	macOS:          brew install --cask chromium
or set ` + ChromiumEnv + ` to the path of the binary`

// Chromium returns the path of a browser, or ErrNotInstalled.
func Chromium() (string, error) {
	return find(ChromiumEnv, chromiumAdvice, "chromium", "chromium-browser", "google-chrome")
}

func builtBinary(name, env string) (string, error) {
	advice := name + " is needed: run ./scripts/etcd, or set " + env + " to the path of the binary"
	if root, ok := moduleRoot(); ok {
		return find(env, advice, filepath.Join(root, "build", "bin", name), name)
	}
	return find(env, advice, name)
}

// find returns the binary that env names or, if it names none, the first that exists.
func find(env, advice string, names ...string) (string, error) {
	if name := os.Getenv(env); name != "" {
		names = []string{name}
	}
	var errs []error
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err == nil {
			return filepath.Abs(path)
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("%w: %s (%w)", ErrNotInstalled, advice, errors.Join(errs...))
}

var moduleLine = regexp.MustCompile(`(?m)^module github\.com/ceyewan/genesis$`)

// moduleRoot returns the nearest directory above this one that contains this module, as in tests
// and in programs run from a checkout.
func moduleRoot() (string, bool) {
	dir, err := os.Getwd()
	for err == nil {
		if text, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && moduleLine.Match(text) {
			return dir, true
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			break
		}
		dir = parent
	}
	return "", false
}
