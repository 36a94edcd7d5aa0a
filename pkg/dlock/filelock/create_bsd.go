//go:build darwin || dragonfly || freebsd

package filelock

func create(dir *directory, name string) (int, error) { return createVisibly(dir, name) }
