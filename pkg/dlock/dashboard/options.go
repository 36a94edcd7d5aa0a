package dashboard

import (
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// An Option changes a Handler.
type Option func(*settings) error

type settings struct {
	evict    bool
	token    *[sha256.Size]byte // of the bearer token; nil without one
	hosts    []string           // names that are allowed with every port
	ports    []string           // names with the port that is allowed
	interval time.Duration
	maxLocks int
	log      clog.Logger
	operator func(*http.Request) string
}

const (
	defaultInterval = 500 * time.Millisecond
	minInterval     = 250 * time.Millisecond
	maxInterval     = time.Minute
	defaultMaxLocks = 5000
	minToken        = 16 // bytes, so that a token cannot be guessed
)

func collect(opts []Option) (settings, error) {
	s := settings{interval: defaultInterval, maxLocks: defaultMaxLocks, operator: func(*http.Request) string { return "" }}
	for _, o := range opts {
		if o == nil {
			return s, fmt.Errorf("%w: an option is nil", dlock.ErrInvalidConfig)
		}
		if err := o(&s); err != nil {
			return s, err
		}
	}
	return s, nil
}

// WithEvict lets a user of the page evict holders. Without it the page is read-only.
func WithEvict() Option {
	return func(s *settings) error {
		s.evict = true
		return nil
	}
}

// WithBearerToken requires this token for everything but the page itself, its assets, /openapi.json
// and /healthz, which contain no data. The page asks for it. It has at least 16 bytes.
func WithBearerToken(token string) Option {
	return func(s *settings) error {
		if len(token) < minToken || strings.ContainsFunc(token, notInToken) {
			return fmt.Errorf("%w: a bearer token has at least %d characters of ASCII and no space", dlock.ErrInvalidConfig, minToken)
		}
		sum := sha256.Sum256([]byte(token))
		s.token = &sum
		return nil
	}
}

// notInToken reports what the header Authorization cannot carry.
func notInToken(r rune) bool { return r <= ' ' || r > '~' }

// WithAllowedHosts adds names under which the page may be requested. A name without a port is allowed
// with every port. Without it these are localhost, loopback addresses, and the address of the connection. A service
// that mounts the page names the hosts of its own URLs here.
func WithAllowedHosts(hosts ...string) Option {
	return func(s *settings) error {
		for _, host := range hosts {
			name, port := splitHost(host)
			if name == "" || strings.ContainsAny(name, "/@*[] ") || strings.HasSuffix(host, ":") && port == "" {
				return fmt.Errorf("%w: %q is no host name", dlock.ErrInvalidConfig, host)
			}
			if port == "" {
				s.hosts = append(s.hosts, name)
				continue
			}
			if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
				return fmt.Errorf("%w: %q has no port from 1 to 65535", dlock.ErrInvalidConfig, host)
			}
			s.ports = append(s.ports, net.JoinHostPort(name, port))
			if port == "80" || port == "443" { // which browsers omit
				s.ports = append(s.ports, net.JoinHostPort(name, ""))
			}
		}
		return nil
	}
}

// WithInterval sets the time from one reading of the locks to the next. The default is 500 ms. If
// a reading takes longer than a fifth of it, the pause after it is longer.
func WithInterval(d time.Duration) Option {
	return func(s *settings) error {
		if d < minInterval || d > maxInterval {
			return fmt.Errorf("%w: interval %v is not between %v and %v", dlock.ErrInvalidConfig, d, minInterval, maxInterval)
		}
		s.interval = d
		return nil
	}
}

// WithMaxLocks sets how many locks of each source are read and shown. The default is 5,000. The
// page says if there are more.
func WithMaxLocks(n int) Option {
	return func(s *settings) error {
		if n < 1 || n > 100_000 {
			return fmt.Errorf("%w: %d locks are not between 1 and 100,000", dlock.ErrInvalidConfig, n)
		}
		s.maxLocks = n
		return nil
	}
}

// WithLogger sets where evictions and failures are logged. Without it they are not.
func WithLogger(l clog.Logger) Option {
	return func(s *settings) error {
		s.log = l.WithNamespace("dashboard")
		return nil
	}
}

// WithOperator sets how the user of a request is named in the log of evictions, for a service that
// has authenticated the request itself.
func WithOperator(name func(*http.Request) string) Option {
	return func(s *settings) error {
		if name == nil {
			return fmt.Errorf("%w: the function is nil", dlock.ErrInvalidConfig)
		}
		s.operator = name
		return nil
	}
}
