package filelock

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// maxFileName is how long the name of a file may be on usual file systems.
const maxFileName = 255

// rivalOf returns the name of the other file that could be meant by a key: its file in a Store of the
// directory if base is a file of NewFile, and else the file of NewFile. It is "" if there is none.
func rivalOf(name, base string) string {
	if usual := baseOf(name); usual != base {
		return usual + lockSuffix
	}
	file := name + lockSuffix
	if name == base || len(file) > maxFileName || strings.ContainsRune(file, 0) || filepath.Base(file) != file || !filepath.IsLocal(file) {
		return ""
	}
	return file
}

// checkRival refuses a lock that two files could be: the holder of one would not exclude the holder of
// the other.
func (a *attempt) checkRival() error {
	rival := rivalOf(a.queue.name, a.queue.base)
	if rival == "" {
		return nil
	}
	if _, err := os.Lstat(pathIn(a.dir.path, rival)); err != nil {
		return nil //nolint:nilerr // it is not there, or cannot be
	}
	if !isListed(a.dir.path, rival) {
		return nil
	}
	err := fmt.Errorf("filelock: %w: in %s, the key %q has the file %s, and also %s, which does not exclude it: use one of them everywhere, and remove the other",
		xerrors.ErrInvalidConfig, a.dir.path, a.queue.name, a.queue.base+lockSuffix, rival)
	return driver.Classify(err, driver.Fatal)
}

// isListed reports whether a directory has a file of exactly this name. Where the case of names does not count, as on
// Windows and macOS, Lstat also finds the file of another key.
func isListed(dir, name string) bool {
	d, err := os.Open(dir)
	if err != nil {
		return true // as Lstat has found
	}
	defer func() { _ = d.Close() }()
	for {
		names, err := d.Readdirnames(1000)
		switch {
		case slices.Contains(names, name):
			return true
		case errors.Is(err, io.EOF):
			return false
		case err != nil:
			return true
		}
	}
}
