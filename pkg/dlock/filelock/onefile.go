package filelock

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A oneFile is the only lock of a Store that NewFile has made.
type oneFile struct {
	key  string
	base string // of its file, which need not be that of the key
}

// NewFile returns a backend whose only lock is one file, which may exist already because scripts
// lock it with flock(1): they exclude the Clients of this Store, and are excluded by them. The name
// of the file must end in ".lock". Its key, with the Prefix of the Client, is that name without
// ".lock", unescaped if Name returns it; every other key is an ErrInvalidKey. The file must be empty or
// a record of this package, and its directory must be as New demands it.
//
// In the directory of myApp.lock, Name("myApp") would be another file. The two do not exclude each other,
// so if both exist, taking the lock is an ErrInvalidConfig, here and in a Store of the directory.
//
// Some calls create files next to it: .guard-N for a TryLock of a taken lock, for shared locks and
// permits and for showing holders, and myApp.0, myApp.1 and so on for shared locks and permits.
// Scripts must not use these names.
func NewFile(path string, opts ...Option) *Store {
	if path != "" {
		path = filepath.Clean(path)
	}
	base, isLock := strings.CutSuffix(filepath.Base(path), lockSuffix)
	s := New(filepath.Dir(path), opts...)
	if !isLock || base == "" {
		s.bad = fmt.Errorf("the name of the lock file %s does not end in %s", path, lockSuffix)
		return s
	}
	s.only = &oneFile{key: base, base: base}
	if key, escaped := keyOf(base); escaped {
		s.only.key = key
	}
	return s
}

// Key returns the only key of a Store that NewFile has made, with the Prefix of the Client; ok is false
// for every other Store.
func (s *Store) Key() (key string, ok bool) {
	if s.only == nil {
		return "", false
	}
	return s.only.key, true
}

// allows refuses the keys that a Store of one file does not have.
func (s *Store) allows(name string) error {
	if s.only == nil || name == s.only.key {
		return nil
	}
	return fmt.Errorf("%w: the backend is the file %s alone, whose key is %q", driver.ErrInvalidKey, s.only.base+lockSuffix, s.only.key)
}

// baseOf returns the start of the names of all files of a key.
func (s *Store) baseOf(name string) string {
	if s.only != nil && name == s.only.key {
		return s.only.base
	}
	return baseOf(name)
}

// keyOf returns the key of a lock file, unless that is hashed.
func (s *Store) keyOf(base string) (key string, ok bool) {
	if s.only != nil {
		return s.only.key, base == s.only.base
	}
	return keyOf(base)
}

// has reports whether a lock file belongs to this Store.
func (s *Store) has(base string) bool { return s.only == nil || base == s.only.base }
