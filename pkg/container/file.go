package container

import (
	"fmt"
	"path/filepath"

	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// FileConfig says which directory of this host holds the lock files.
type FileConfig struct {
	// Dir is an absolute path. The directory is created when the first lock is taken, for its owner
	// alone. Only root creates a shared directory, for all users.
	Dir string `json:"dir" yaml:"dir" mapstructure:"dir" env:"DIR"`
	// Shared accepts a directory that other users can write to, if it is sticky.
	Shared bool `json:"shared" yaml:"shared" mapstructure:"shared" env:"SHARED"`
	// Network accepts a network file system, on which locks may not exclude other holders.
	Network bool `json:"network" yaml:"network" mapstructure:"network" env:"NETWORK"`
}

// Validate returns nil if the values can be used. The directory itself is checked when the first
// lock is taken.
func (c *FileConfig) Validate() error {
	if c == nil {
		return ErrConfigNil
	}
	if !filepath.IsAbs(c.Dir) {
		return fmt.Errorf("%w: dir %q is no absolute path", ErrInvalidConfig, c.Dir)
	}
	return nil
}

// Store returns the locks of the directory, a backend for dlock.WithBackend. That of a nil
// FileConfig has no directory, and is refused there.
func (c *FileConfig) Store() *filelock.Store {
	if c == nil {
		return filelock.New("")
	}
	var opts []filelock.Option
	if c.Shared {
		opts = append(opts, filelock.WithSharedDir())
	}
	if c.Network {
		opts = append(opts, filelock.WithNetworkFS())
	}
	return filelock.New(c.Dir, opts...)
}
