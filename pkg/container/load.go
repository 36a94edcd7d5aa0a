package container

import (
	"fmt"
	"os"
	"path/filepath"
)

// EnvPrefix is what the environment variables of a Config begin with:
// GENESIS_DLOCK_BACKEND, GENESIS_REDIS_ADDR, GENESIS_LOG_LEVEL and so on, each named
// as in the file.
const EnvPrefix = "GENESIS_"

// Load reads a Config from a YAML or JSON file, and then from the environment, which
// wins. An empty path means the environment alone. A key or a variable that is not
// known is refused, and the error names the line; no error shows a value. What Kubernetes
// injects for a Service whose name begins with "genesis" is passed over. It does not
// validate; New does.
func Load(path string) (*Config, error) {
	cfg := &Config{}
	var inFile map[string]bool
	if path != "" {
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalidConfig, err)
		}
		inFile, err = decode(raw, filepath.Ext(path), cfg)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrInvalidConfig, path, err)
		}
	}
	if err := fromEnv(cfg, os.Environ(), inFile); err != nil {
		return nil, fmt.Errorf("%w: environment: %w", ErrInvalidConfig, err)
	}
	return cfg, nil
}
