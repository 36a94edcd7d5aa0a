package peer

import (
	"context"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

type ourFile struct{}

func (ourFile) Info() Info {
	return Info{
		Name: "dlock-file", Title: "Genesis DLock on files", Backend: "file", Version: "the standard library",
		Setup: "dlock.Config{} on filelock.New: flock(2), fenced, one host", Ours: true, Waits: true, Renews: true,
	}
}

func (ourFile) Open(_ context.Context, env *Env) (Client, error) {
	return openOurs(env, dlock.Config{}, filelock.New(env.Dir), func() error { return nil })
}
