package container

import (
	"fmt"
	"path/filepath"

	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// FileConfig says in which directory of this host locks are files.
type FileConfig struct {
	// Dir is an absolute path; it is made when the first lock is taken, for its owner
	// alone. A shared one is made by root only, for all.
	Dir string `json:"dir" yaml:"dir" mapstructure:"dir" env:"DIR"`
	// Shared accepts a directory to which other users can write, if it is sticky.
	Shared bool `json:"shared" yaml:"shared" mapstructure:"shared" env:"SHARED"`
	// Network accepts a network file system, on which locks may not exclude anybody.
	Network bool `json:"network" yaml:"network" mapstructure:"network" env:"NETWORK"`
}

// Validate returns nil if the values can be used. The directory itself is looked at
// when the first lock is taken.
func (c *FileConfig) Validate() error {
	if c == nil {
		return ErrConfigNil
	}
	if !filepath.IsAbs(c.Dir) {
		return fmt.Errorf("%w: dir %q is no absolute path", ErrInvalidConfig, c.Dir)
	}
	return nil
}

// Store returns the locks of the directory, a backend for dlock.WithBackend.
func (c *FileConfig) Store() *filelock.Store {
	var opts []filelock.Option
	if c.Shared {
		opts = append(opts, filelock.WithSharedDir())
	}
	if c.Network {
		opts = append(opts, filelock.WithNetworkFS())
	}
	return filelock.New(c.Dir, opts...)
}
