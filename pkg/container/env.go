package container

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/caarlos0/env/v11"
)

// fromSection sets the fields of a section from the environment. Its first variable creates the
// section.
func fromSection[T any](to **T, prefix string, vars map[string]string, known map[string]bool) error {
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

// fromEnv sets fields from the environment. Sections that the environment does not name stay
// unchanged, also if they are nil. inFile contains the names of the fields that the file has set.
func fromEnv(cfg *Config, environ []string, inFile map[string]bool) error {
	vars, empty := ourVariables(environ)
	known := map[string]bool{}
	log := &cfg.Log
	if err := errors.Join(
		fromSection(&log, "LOG_", vars, known), fromSection(&cfg.DLock, "DLOCK_", vars, known),
		fromSection(&cfg.Redis, "REDIS_", vars, known), fromSection(&cfg.Etcd, "ETCD_", vars, known),
		fromSection(&cfg.Redlock, "REDLOCK_", vars, known), fromSection(&cfg.File, "FILE_", vars, known),
	); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		if !known[name] {
			return fmt.Errorf("%s is not known", name)
		}
	}
	for _, name := range empty {
		switch {
		case !known[name]:
			return fmt.Errorf("%s is not known", name)
		case inFile[name]: // does it count, or does the file? One of them may be a password
			return fmt.Errorf("%s is empty, and the file sets it: unset the variable, or remove it from the file", name)
		}
	}
	return nil
}

// ourVariables returns the variables with EnvPrefix, and the names of the empty ones, which count
// as not set.
func ourVariables(environ []string) (vars map[string]string, empty []string) {
	all := map[string]string{}
	for _, kv := range environ {
		name, value, ok := strings.Cut(kv, "=")
		if ok && strings.HasPrefix(name, EnvPrefix) {
			all[name] = value
		}
	}
	vars = map[string]string{}
	for name, value := range all {
		switch {
		case isInjected(name, all):
		case value == "":
			empty = append(empty, name)
		default:
			vars[name] = value
		}
	}
	slices.Sort(empty)
	return vars, empty
}

// For a Service genesis-redis, Kubernetes sets GENESIS_REDIS_SERVICE_HOST,
// GENESIS_REDIS_PORT=tcp://10.0.0.1:6379 and so on in every container of the namespace, unless the
// Pod has enableServiceLinks: false.
var (
	ofService  = regexp.MustCompile(`^_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)
	serviceURL = regexp.MustCompile(`^(tcp|udp|sctp)://`)
)

// isInjected reports whether a variable is one of those of a Service: the address of that Service
// is set as well, and a bare PORT is a URL.
func isInjected(name string, all map[string]string) bool {
	for other, host := range all {
		service, ok := strings.CutSuffix(other, "_SERVICE_HOST")
		if !ok || net.ParseIP(host) == nil {
			continue
		}
		rest, ok := strings.CutPrefix(name, service)
		if ok && (ofService.MatchString(rest) || rest == "_PORT" && serviceURL.MatchString(all[name])) {
			return true
		}
	}
	return false
}

func names(vars map[string]string, prefix string) bool {
	for name := range vars {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// parse reads the variables of a struct, and records the names that it accepts.
func parse(to any, prefix string, vars map[string]string, known map[string]bool) error {
	opts := env.Options{Environment: vars, Prefix: prefix, UseFieldNameByDefault: true}
	fields, err := env.GetFieldParamsWithOptions(to, opts)
	if err != nil {
		return err
	}
	for _, f := range fields {
		if !f.Init { // a section below this one, whose variables have its prefix
			known[f.Key] = true
		}
	}
	if err := env.ParseWithOptions(to, opts); err != nil {
		return badVariable(to, opts)
	}
	return nil
}

// badVariable finds the variable that cannot be read, by reading one at a time. It omits the value,
// which the library's errors may contain.
func badVariable(to any, opts env.Options) error {
	vars := opts.Environment
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		opts.Environment = map[string]string{name: vars[name]}
		err := env.ParseWithOptions(reflect.New(reflect.TypeOf(to).Elem()).Interface(), opts)
		var bad env.ParseError
		switch {
		case errors.As(err, &bad):
			return fmt.Errorf("%s is not a %s", name, bad.Type)
		case err != nil:
			return fmt.Errorf("%s cannot be read", name)
		}
	}
	return errors.New("the variables cannot be read together")
}
