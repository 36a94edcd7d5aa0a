package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	pathpkg "path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// A Scheme makes a Backend of a URL. It touches no network.
type Scheme func(*URL, clog.Logger) (*Backend, error)

// ConfigScheme is under which name of Main's schemes the one for a configuration
// file is: its URL has nothing but a path.
const ConfigScheme = "config"

// A Backend is where the locks of one call of the command are.
type Backend struct {
	Name   string        // as in dlock.Config
	Where  string        // for people, without secrets
	Opener driver.Opener // for the Client
	Config dlock.Config  // what the URL or the file says of the Client
	// Connect finds out whether the backend can be reached; nil if there is
	// nothing to reach.
	Connect func(context.Context) error
	// Close closes what was made; nil if nothing was.
	Close func() error
	// Count begins to count the commands that are sent; nil if the backend cannot.
	Count func() (sent func() int64)
	// Forget removes what stays in the store of a lock that will never be wanted
	// again, by its name behind the prefix; nil if nothing does.
	Forget func(ctx context.Context, name string) error
	// OnlyKey is the only key that the backend has; "" if it has any.
	OnlyKey string
}

// A URL is the parts of a --backend. Parameters are taken out as they are
// understood, so that what is left is unknown.
type URL struct {
	Scheme   string
	User     string
	Password string
	Hosts    []string // host:port
	Path     string   // without the first slash, except for files
	written  string   // the path of a file, with its escapes
	params   url.Values
	errs     []error
}

// backendHelp is the topic `dlock help backends`.
const backendHelp = `Backends are named by a URL, in --backend or in DLOCK_BACKEND.

  file:///dir                       files of this host; by default in ` + defaultDirName + `
  file:///dir/KEY.lock              the one lock KEY, in a file that flock(1) may lock as well;
                                    a % in its name is written as %25
  redis://user@host:6379/0          one Redis server; rediss:// with TLS
  redis+sentinel://h1,h2/mymaster/0 the master that sentinels watch
  redis+cluster://h1,h2             a Redis cluster
  redlock://h1,h2,h3                a majority of independent Redis servers
  etcd://h1,h2                      etcd

Parameters follow after a '?', as in redis://host?prefix=app:&ca=/etc/ca.pem

  prefix=TEXT         is put before every key in the store
  password_file=FILE  where the password is
  tls=true            TLS with the system's authorities; implied by those that follow
  ca=FILE             the authorities to trust
  cert=FILE key=FILE  our own certificate
  server_name=NAME    the name in the server's certificate
  insecure=true       accept any certificate
  min_replicas=N      Redis: how many replicas must have confirmed a lock
  shared=true         files: accept a directory that is shared by all users, and sticky
  network=true        files: accept a network file system, at your own risk

A password in the arguments of a command can be read by every user of the host. It
is refused in --backend: put it into DLOCK_BACKEND, DLOCK_PASSWORD or password_file.

A configuration file of a service (--config or DLOCK_CONFIG) does as well; the
command then uses the same backend, prefix and defaults as the service.
`

func backendsTopic() *cobra.Command {
	return &cobra.Command{Use: "backends", Short: "How to name a backend", Long: backendHelp}
}

// open makes the backend that flags and environment name.
func (w *app) open(cmd *cobra.Command, log clog.Logger) (*Backend, error) {
	b, err := w.choose(log)
	if err != nil {
		return nil, usage(cmd, "%w", err)
	}
	return b, nil
}

func (w *app) choose(log clog.Logger) (*Backend, error) {
	switch {
	case w.backend != "" && w.config != "":
		return nil, errors.New("--backend and --config exclude each other")
	case w.backend != "":
		return w.byURL("--backend", w.backend, log)
	case w.config != "":
		return w.byConfig(w.config, log)
	case w.getenv("DLOCK_BACKEND") != "":
		return w.byURL("DLOCK_BACKEND", w.getenv("DLOCK_BACKEND"), log)
	case w.getenv("DLOCK_CONFIG") != "":
		return w.byConfig(w.getenv("DLOCK_CONFIG"), log)
	}
	return openFiles(&URL{Scheme: "file", Path: urlPath(DefaultDir())}, log)
}

func (w *app) byConfig(path string, log clog.Logger) (*Backend, error) {
	open := w.schemes[ConfigScheme]
	if open == nil {
		return nil, errors.New("this dlock reads no configuration files: it was built with the tag filesonly")
	}
	return open(&URL{Scheme: ConfigScheme, Path: path}, log)
}

// byURL opens a backend. What it says of errors begins with where the URL is from,
// and never has the URL in it, which may have a password.
func (w *app) byURL(from, raw string, log clog.Logger) (*Backend, error) {
	u, err := ParseURL(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	if u.Password != "" && from == "--backend" {
		return nil, errors.New("--backend: a password in the arguments can be read by every user of this host; " +
			"use DLOCK_BACKEND, DLOCK_PASSWORD or ?password_file=")
	}
	if p := w.getenv("DLOCK_PASSWORD"); u.Password == "" && u.Scheme != "file" {
		u.Password = p
	}
	open := w.schemes[u.Scheme]
	if u.Scheme == "file" {
		open = openFiles
	}
	if open == nil && len(w.schemes) == 0 {
		return nil, fmt.Errorf("%s: this dlock knows only file, not %q: it was built with the tag filesonly", from, u.Scheme)
	}
	if open == nil {
		return nil, fmt.Errorf("%s: scheme %q is none of file%s", from, u.Scheme, w.knownSchemes())
	}
	b, err := open(u, log)
	if err == nil {
		err = u.done()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	return b, nil
}

func (w *app) knownSchemes() string {
	var b strings.Builder
	var names []string
	for s := range w.schemes {
		if s != ConfigScheme {
			names = append(names, s)
		}
	}
	slices.Sort(names)
	for _, s := range names {
		b.WriteString(", " + s)
	}
	return b.String()
}

// ParseURL splits a URL. Its errors name the part that is wrong and do not repeat
// the rest.
func ParseURL(raw string) (*URL, error) {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || scheme == "" {
		return nil, errors.New("no scheme: a backend begins with file://, redis://, etcd:// or the like")
	}
	u := &URL{Scheme: strings.ToLower(scheme)}
	rest, query, _ := strings.Cut(rest, "?")
	if u.Scheme != "file" && strings.Contains(query, "@") { // what comes before it may be a password
		return nil, errors.New("user or password: a ? in it (write %3F; in a parameter, write @ as %40)")
	}
	var err error
	if u.params, err = url.ParseQuery(query); err != nil {
		return nil, errors.New("parameters: not of the form name=value&name=value, with % escapes")
	}
	if u.Scheme == "file" {
		u.written = rest
		u.Path, err = url.PathUnescape(rest)
		if err != nil || !strings.HasPrefix(u.Path, "/") {
			return nil, errors.New("path: file:// is followed by an absolute path, as in file:///var/lock/dlock")
		}
		return u, nil
	}
	return u, u.parseServer(rest)
}

// parseServer takes user:password@host,host/path apart.
func (u *URL) parseServer(rest string) error {
	hosts, path, _ := strings.Cut(rest, "/")
	if at := strings.LastIndex(hosts, "@"); at >= 0 {
		user, password, _ := strings.Cut(hosts[:at], ":")
		var errUser, errPassword error
		u.User, errUser = url.PathUnescape(user)
		u.Password, errPassword = url.PathUnescape(password)
		if errUser != nil || errPassword != nil {
			return errors.New("user or password: a % that begins no escape (write %25)")
		}
		hosts = hosts[at+1:]
	}
	if strings.Contains(path, "@") { // what comes before it may be a password
		return errors.New("user or password: a / in it (write %2F)")
	}
	if hosts == "" {
		return errors.New("host: there is none")
	}
	for i, h := range strings.Split(hosts, ",") {
		h = strings.TrimSpace(h)
		if h == "" {
			return fmt.Errorf("host %d: empty", i+1)
		}
		if port := portOf(h); strings.Trim(port, "0123456789") != "" {
			return fmt.Errorf("host %d: its port is no number (in a password, write / as %%2F and ? as %%3F)", i+1)
		}
		u.Hosts = append(u.Hosts, h)
	}
	var err error
	if u.Path, err = url.PathUnescape(strings.TrimSuffix(path, "/")); err != nil {
		return errors.New("path: a % that begins no escape")
	}
	return nil
}

// WithPort adds a port to every host that has none.
func (u *URL) WithPort(port string) []string {
	hosts := make([]string, len(u.Hosts))
	for i, h := range u.Hosts {
		if portOf(h) == "" {
			h = strings.TrimSuffix(h, ":") + ":" + port
		}
		hosts[i] = h
	}
	return hosts
}

// portOf is what follows the last colon, unless that is part of an IPv6 address.
func portOf(host string) string {
	_, port, _ := strings.Cut(host[strings.LastIndex(host, "]")+1:], ":")
	return port
}

// Param takes a parameter out.
func (u *URL) Param(name string) string {
	v := u.params.Get(name)
	delete(u.params, name)
	return v
}

// Bool takes out a parameter that is true or false.
func (u *URL) Bool(name string) bool {
	v := u.Param(name)
	if v == "" {
		return false
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		u.errs = append(u.errs, fmt.Errorf("parameter %s: %q is neither true nor false", name, v))
	}
	return b
}

// Int takes out a parameter that is a number.
func (u *URL) Int(name string) int {
	v := u.Param(name)
	if v == "" {
		return 0
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 {
		u.errs = append(u.errs, fmt.Errorf("parameter %s: %q is no number", name, v))
	}
	return n
}

// done returns what was wrong with the parameters, and which are not known.
func (u *URL) done() error {
	for name := range u.params {
		u.errs = append(u.errs, fmt.Errorf("parameter %s: not known for %s", name, u.Scheme))
	}
	return errors.Join(u.errs...)
}

// openFiles is the scheme of files.
func openFiles(u *URL, _ clog.Logger) (*Backend, error) {
	var opts []filelock.Option
	if u.Bool("shared") {
		opts = append(opts, filelock.WithSharedDir())
	}
	if u.Bool("network") {
		opts = append(opts, filelock.WithNetworkFS())
	}
	path := filepath.Clean(localPath(u.Path))
	b := &Backend{Name: "file", Where: "file://" + u.Path, Config: dlock.Config{Prefix: u.Param("prefix")}}
	if isLockFile(path) {
		store := filelock.NewFile(path, opts...)
		key, _ := store.Key()
		b.Opener, b.OnlyKey = store, strings.TrimPrefix(key, b.Config.Prefix)
		return b, ambiguous(u, path, key)
	}
	b.Opener, b.Forget = filelock.New(path, opts...), forgetFile(path)
	return b, nil
}

// ambiguous refuses the path of a file that is missing, if the path is, with its escapes, the name that
// a directory has for the same key: a script may mean that name, and lock another file.
func ambiguous(u *URL, path, key string) error {
	name := filepath.Base(path)
	escaped := pathpkg.Base(pathpkg.Clean(u.written))
	if escaped == name || escaped != filelock.Name(key) || strings.Contains(name, "%") { // a % has no other spelling
		return nil
	}
	_, err := os.Stat(path)
	if err == nil {
		return nil
	}
	return fmt.Errorf("path: there is no file %q; write %q for a file of that name, without escapes, or %q for the file %q",
		name, name, strings.ReplaceAll(escaped, "%", "%25"), escaped)
}

// isLockFile reports whether a path is a file, or that of a lock that is not there yet: flock(1) would
// make a file of that name, and must not find a directory.
func isLockFile(path string) bool {
	st, err := os.Stat(path)
	if err == nil {
		return !st.IsDir()
	}
	return strings.HasSuffix(path, ".lock")
}
