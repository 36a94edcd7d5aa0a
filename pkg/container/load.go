package container

import (
	"fmt"
	"os"
	"path/filepath"
)

// EnvPrefix is the prefix of the environment variables of a Config: GENESIS_DLOCK_BACKEND,
// GENESIS_REDIS_ADDR, GENESIS_LOG_LEVEL and so on, each named as in the file.
const EnvPrefix = "GENESIS_"

// Load reads a Config from a YAML or JSON file, and then from the environment, which takes
// precedence. An empty path means the environment alone. Load refuses an unknown key or variable,
// and the error names the line; no error shows a value. Load ignores the variables that Kubernetes
// injects for a Service whose name begins with "genesis". It does not validate; New does.
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
