package servers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// BinaryEnv names the environment variable that holds the path of the
// redis-server to run; without it, redis-server is looked up in PATH.
const BinaryEnv = "DLOCK_REDIS_SERVER"

// ErrNotInstalled: there is no redis-server to run. Its text says what to do.
var ErrNotInstalled = errors.New(`redis-server (7.0 or newer) is not installed
	Debian, Ubuntu: apt-get install redis-server
	Fedora:         dnf install redis (or valkey-compat-redis)
	Alpine:         apk add redis
	macOS:          brew install redis
or set ` + BinaryEnv + ` to the path of the binary`)

// redisBinary finds the server to run.
func redisBinary() (string, error) {
	name := "redis-server"
	if env := os.Getenv(BinaryEnv); env != "" {
		name = env
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w (%w)", ErrNotInstalled, err)
	}
	return path, nil
}
