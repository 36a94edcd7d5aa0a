package container

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/caarlos0/env/v11"
	"go.yaml.in/yaml/v3"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// EnvPrefix is what the environment variables of a Config begin with:
// GENESIS_DLOCK_BACKEND, GENESIS_REDIS_ADDR, GENESIS_LOG_LEVEL and so on, each named
// as in the file.
const EnvPrefix = "GENESIS_"

// Load reads a Config from a YAML or JSON file, and then from the environment, which
// wins. An empty path means the environment alone. A key or a variable that is not
// known is refused, and the error names the line. It does not validate; New does.
func Load(path string) (*Config, error) {
	cfg := &Config{}
	if path != "" {
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalidConfig, err)
		}
		if err := decode(raw, filepath.Ext(path), cfg); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrInvalidConfig, path, err)
		}
	}
	if err := fromEnv(cfg, os.Environ()); err != nil {
		return nil, fmt.Errorf("%w: environment: %w", ErrInvalidConfig, err)
	}
	return cfg, nil
}

func decode(raw []byte, ext string, cfg *Config) error {
	switch ext {
	case ".yaml", ".yml":
	case ".json": // is YAML too, but for tabs, which JSON has only between words
		raw = bytes.ReplaceAll(raw, []byte("\t"), []byte(" "))
	default:
		return fmt.Errorf("the name ends in %q, and not in .yaml, .yml or .json", ext)
	}
	d := yaml.NewDecoder(bytes.NewReader(raw))
	d.KnownFields(true)
	if err := d.Decode(cfg); err != nil && !errors.Is(err, io.EOF) {
		return errors.New(plain(err.Error()))
	}
	if err := d.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return errors.New("more than one document")
	}
	return nil
}

var (
	values  = regexp.MustCompile("`[^`]*`")
	inType  = regexp.MustCompile(` not found in type \S+`)
	heading = regexp.MustCompile(`^yaml: (unmarshal errors:\s*)?`)
)

// plain leaves out of an error the values, which may be secrets, and the names of
// our types.
func plain(text string) string {
	text = heading.ReplaceAllString(text, "")
	text = inType.ReplaceAllString(text, " is not known")
	text = values.ReplaceAllString(text, "a value")
	return strings.Join(strings.Fields(text), " ")
}

// section sets what the environment sets of a section, which begins with its first
// variable.
func section[T any](to **T, prefix string, vars map[string]string, known map[string]bool) error {
	s := *to
	if s == nil {
		s = new(T)
	}
	if err := parse(s, EnvPrefix+prefix, vars, known); err != nil {
		return err
	}
	if names(vars, EnvPrefix+prefix) {
		*to = s
	}
	return nil
}

// fromEnv sets what the environment sets. Sections that it does not name stay as
// they are, also if they are nil.
func fromEnv(cfg *Config, environ []string) error {
	vars := map[string]string{}
	for _, kv := range environ {
		if name, value, ok := strings.Cut(kv, "="); ok && strings.HasPrefix(name, EnvPrefix) {
			vars[name] = value
		}
	}
	known := map[string]bool{}
	plain := struct {
		Log   *clog.Config  `envPrefix:"LOG_"`
		DLock *dlock.Config `envPrefix:"DLOCK_"`
	}{&cfg.Log, &cfg.DLock}
	if err := parse(&plain, EnvPrefix, vars, known); err != nil {
		return err
	}
	if err := errors.Join(
		section(&cfg.Redis, "REDIS_", vars, known), section(&cfg.Etcd, "ETCD_", vars, known),
		section(&cfg.Redlock, "REDLOCK_", vars, known), section(&cfg.File, "FILE_", vars, known),
	); err != nil {
		return err
	}
	for name := range vars {
		if !known[name] {
			return fmt.Errorf("%s is not known", name)
		}
	}
	return nil
}

func names(vars map[string]string, prefix string) bool {
	for name := range vars {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// parse reads the variables of a struct, and notes the names that it could have.
func parse(to any, prefix string, vars map[string]string, known map[string]bool) error {
	opts := env.Options{Environment: vars, Prefix: prefix, UseFieldNameByDefault: true}
	fields, err := env.GetFieldParamsWithOptions(to, opts)
	if err != nil {
		return err
	}
	for _, f := range fields {
		known[f.Key] = true
	}
	if err := env.ParseWithOptions(to, opts); err != nil {
		return badVariable(err, fields)
	}
	return nil
}

// badVariable names the variable and leaves out its value.
func badVariable(err error, fields []env.FieldParams) error {
	var bad env.ParseError
	if !errors.As(err, &bad) {
		return err
	}
	for _, f := range fields {
		if strings.EqualFold(strings.ReplaceAll(f.OwnKey, "_", ""), bad.Name) {
			return fmt.Errorf("%s is not a %s", f.Key, bad.Type)
		}
	}
	return fmt.Errorf("%s is not a %s", bad.Name, bad.Type)
}
