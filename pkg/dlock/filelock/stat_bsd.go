//go:build darwin || dragonfly || freebsd

package filelock

func lookAt(fd int) (fileState, error) { return fstat(fd) }
