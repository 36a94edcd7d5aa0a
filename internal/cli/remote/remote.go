// Package remote is the backends of the command dlock that need a client: Redis in
// all its forms, redlock, and etcd.
package remote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/cli"
	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// Schemes are the backends by the scheme of their URL.
func Schemes() map[string]cli.Scheme {
	redis.SetLogger(silent{}) // what it prints of a failed dial, our errors say
	return map[string]cli.Scheme{
		"redis":           openRedis,
		"rediss":          openRedis,
		"redis+sentinel":  openSentinel,
		"rediss+sentinel": openSentinel,
		"redis+cluster":   openCluster,
		"rediss+cluster":  openCluster,
		"redlock":         openRedlock,
		"etcd":            openEtcd,
		"etcds":           openEtcd,
		cli.ConfigScheme:  openConfig,
	}
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// openRedis is redis://user@host:6379/0.
func openRedis(u *cli.URL, log clog.Logger) (*cli.Backend, error) {
	if len(u.Hosts) > 1 {
		return nil, errors.New("host: redis:// is one server; see redis+sentinel:// and redis+cluster://")
	}
	cfg := &connector.RedisConfig{Addr: u.WithPort("6379")[0]}
	var err error
	if cfg.DB, err = database(u.Path); err != nil {
		return nil, err
	}
	return finishRedis(u, cfg, log)
}

// openSentinel is redis+sentinel://user@h1,h2/mymaster/0.
func openSentinel(u *cli.URL, log clog.Logger) (*cli.Backend, error) {
	master, db, _ := strings.Cut(u.Path, "/")
	if master == "" {
		return nil, errors.New("path: the name of the master is missing, as in redis+sentinel://h1,h2/mymaster")
	}
	cfg := &connector.RedisConfig{Addrs: u.WithPort("26379"), MasterName: master}
	var err error
	if cfg.DB, err = database(db); err != nil {
		return nil, err
	}
	return finishRedis(u, cfg, log)
}

// openCluster is redis+cluster://h1,h2.
func openCluster(u *cli.URL, log clog.Logger) (*cli.Backend, error) {
	if u.Path != "" {
		return nil, errors.New("path: a cluster has no databases")
	}
	return finishRedis(u, &connector.RedisConfig{Addrs: u.WithPort("6379"), Cluster: true}, log)
}

func database(path string) (int, error) {
	if path == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(path)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("path: database %q is no number", path)
	}
	return n, nil
}

func finishRedis(u *cli.URL, cfg *connector.RedisConfig, log clog.Logger) (*cli.Backend, error) {
	password, err := secret(u)
	if err != nil {
		return nil, err
	}
	cfg.Username, cfg.Password = u.User, password
	if u.User != "" && password == "" {
		return nil, errors.New("user: there is no password for it (DLOCK_PASSWORD, or ?password_file=)")
	}
	cfg.TLS = secured(u, strings.HasPrefix(u.Scheme, "rediss"))
	var locks []redislock.Option
	if n := u.Int("min_replicas"); n > 0 {
		locks = append(locks, redislock.WithMinReplicas(n, time.Second))
	}
	conn, err := connector.NewRedis(cfg, connector.WithLogger(log), connector.WithRedisLockOptions(locks...))
	if err != nil {
		return nil, err
	}
	b := ofRedis(conn)
	b.Where, b.Config.Prefix = where(u), u.Param("prefix")
	return b, nil
}

func ofRedis(conn *connector.Redis) *cli.Backend {
	b := &cli.Backend{Name: "redis", Where: conn.String(), Opener: conn.RedisLocks(), Connect: conn.Connect, Close: conn.Close}
	b.Count = traffic(conn.LockClient())
	return b
}

// openRedlock is redlock://user@h1,h2,h3/0.
func openRedlock(u *cli.URL, log clog.Logger) (*cli.Backend, error) {
	password, err := secret(u)
	if err != nil {
		return nil, err
	}
	cfg := &connector.RedlockConfig{Addrs: u.WithPort("6379"), Username: u.User, Password: password, TLS: secured(u, false)}
	if cfg.DB, err = database(u.Path); err != nil {
		return nil, err
	}
	conn, err := connector.NewRedlock(cfg, connector.WithLogger(log))
	if err != nil {
		return nil, err
	}
	b := ofRedlock(conn)
	b.Where, b.Config.Prefix = where(u), u.Param("prefix")
	return b, nil
}

func ofRedlock(conn *connector.Redlock) *cli.Backend {
	b := &cli.Backend{Name: "redlock", Where: conn.String(), Opener: conn.RedlockLocks(), Connect: conn.Connect, Close: conn.Close}
	b.Count, b.Forget = traffic(conn.LockClients()...), forget(conn.LockClients()...)
	return b
}

// openEtcd is etcd://h1,h2.
func openEtcd(u *cli.URL, log clog.Logger) (*cli.Backend, error) {
	if u.Path != "" {
		return nil, errors.New("path: etcd has none; a prefix is a parameter")
	}
	password, err := secret(u)
	if err != nil {
		return nil, err
	}
	cfg := &connector.EtcdConfig{
		Endpoints: u.WithPort("2379"), Username: u.User, Password: password, TLS: secured(u, u.Scheme == "etcds"),
	}
	if u.User == "" {
		cfg.Password = "" // DLOCK_PASSWORD may be meant for others
	}
	conn, err := connector.NewEtcd(cfg, connector.WithLogger(log))
	if err != nil {
		return nil, err
	}
	b := ofEtcd(conn)
	b.Where, b.Config.Prefix = where(u), u.Param("prefix")
	return b, nil
}

func ofEtcd(conn *connector.Etcd) *cli.Backend {
	return &cli.Backend{Name: "etcd", Where: conn.String(), Opener: conn.EtcdLocks(), Connect: conn.Connect, Close: conn.Close}
}

// secret is the password of a URL, wherever it is.
func secret(u *cli.URL) (string, error) {
	file := u.Param("password_file")
	if file == "" {
		return u.Password, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("parameter password_file: %w", err)
	}
	return strings.TrimRight(string(text), "\r\n"), nil
}

// secured is TLS as the parameters say; nil is none.
func secured(u *cli.URL, implied bool) *connector.TLSConfig {
	t := connector.TLSConfig{
		Enabled: u.Bool("tls") || implied, CAFile: u.Param("ca"), CertFile: u.Param("cert"), KeyFile: u.Param("key"),
		ServerName: u.Param("server_name"), InsecureSkipVerify: u.Bool("insecure"),
	}
	if t == (connector.TLSConfig{}) {
		return nil
	}
	return &t
}

// where is a URL without its secrets.
func where(u *cli.URL) string {
	at := u.Scheme + "://"
	if u.User != "" {
		at += u.User + "@"
	}
	at += strings.Join(u.Hosts, ",")
	if u.Path != "" {
		at += "/" + u.Path
	}
	return at
}
