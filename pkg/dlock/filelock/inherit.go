package filelock

import (
	"errors"
	"os"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// ErrNotHeld: no Client of this Store holds the lock with this token.
var ErrNotHeld = driver.ErrNotHeld

// Descriptors returns the descriptors of a lock that a Client of this Store holds. Pass them to a
// child process that keeps the lock if this process dies:
//
//	files, err := store.Descriptors(guard.Key(), guard.Token())
//	...
//	cmd.ExtraFiles = append(cmd.ExtraFiles, files...)
//	err = cmd.Start()
//	// then close them here
//
// The lock is then free when it is unlocked, or when every process that has a descriptor has closed
// it or ended. The caller closes the files. On Windows, where processes do not inherit locks, the
// error is driver.ErrUnsupported.
func (s *Store) Descriptors(key string, token int64) ([]*os.File, error) {
	if _, err := s.where(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := range s.drivers {
		files, err := d.descriptors(key, token)
		if !errors.Is(err, ErrNotHeld) {
			return files, err
		}
	}
	return nil, ErrNotHeld
}

func (d *fileDriver) descriptors(key string, token int64) ([]*os.File, error) {
	q := d.enter(key)
	defer d.leave(q, 0)
	for _, c := range q.holders {
		if c.token == token {
			c.inherited = true
			return d.duplicates(c)
		}
	}
	return nil, ErrNotHeld
}

func (d *fileDriver) duplicates(c *claim) (files []*os.File, err error) {
	for _, fd := range []int{c.main.fd, c.slot} {
		if fd < 0 {
			continue
		}
		f, err := duplicate(fd, pathIn(d.path, c.queue.base))
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}
