//go:build !filesonly

package cli

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock/dashboard"
)

// A ui is one call of dlock ui.
type ui struct {
	*app
	listen    string
	backends  []string
	hosts     []string
	tokenFile string
	evict     bool
	asJSON    bool
	interval  time.Duration
	maxLocks  int
}

const (
	defaultListen = "127.0.0.1:7077"
	shutdownTime  = 5 * time.Second
)

// pageCommands is the commands that need a web server.
func (w *app) pageCommands() []*cobra.Command { return []*cobra.Command{w.uiCommand()} }

func (w *app) uiCommand() *cobra.Command {
	u := &ui{app: w}
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Show the locks in a browser",
		Long: `Ui serves a page that shows the locks of one or several backends: who holds them and for
how long, who waits, and whether the backends are safe for locks. It writes its address to
standard output and runs until it gets INT or TERM.

The page is for this host only, and only reads. With --evict it can take a lock away from its
holder; evictions and their refusals are written to standard error. To listen on another address, a token is
needed, in ` + tokenEnv + ` or --token-file; the page asks for it. There is no TLS: put a proxy
with TLS in front, and name the host of its URL with --allow-host.`,
		Example: `  dlock ui
  dlock ui --backend redis://cache.internal --backend etcd://coord.internal
  dlock ui --evict
  dlock ui --listen 10.0.0.7:7077 --token-file /etc/dlock/ui-token`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return u.do(cmd) },
	}
	f := cmd.Flags()
	f.StringArrayVarP(&u.backends, "backend", "b", nil, "where locks are kept, as a `URL`; may be repeated (DLOCK_BACKEND)")
	f.StringVar(&u.listen, "listen", defaultListen, "the `address` to listen on; port 0 is a free one")
	f.StringVar(&u.tokenFile, "token-file", "", "a `file` with the token that the page asks for ("+tokenEnv+")")
	f.StringArrayVar(&u.hosts, "allow-host", nil, "a host `name` under which the page may be requested; may be repeated")
	f.BoolVar(&u.evict, "evict", false, "let the page evict holders")
	f.Var(newDuration(&u.interval, 500*time.Millisecond), "interval", "from one look at the locks to the next")
	f.IntVar(&u.maxLocks, "max-locks", 5000, "show at most `N` locks of each backend")
	f.BoolVar(&u.asJSON, "json", false, "write the address and the log as lines of JSON")
	return cmd
}

func (u *ui) do(cmd *cobra.Command) error {
	opts, err := u.options()
	if err != nil {
		return usage(cmd, "%w", err)
	}
	sessions, err := u.connectAll(cmd)
	defer func() {
		for _, s := range sessions {
			_ = s.close()
		}
	}()
	if err != nil {
		return err
	}
	sources := make([]dashboard.Source, len(sessions))
	for i, s := range sessions {
		sources[i] = dashboard.Source{Name: s.sourceName(), Client: s.client}
	}
	page, err := dashboard.New(sources, opts...)
	if err != nil {
		return usage(cmd, "%w", err)
	}
	defer func() { _ = page.Close() }()
	return u.serve(cmd.Context(), page)
}

// sourceName is how the page calls a backend. Two prefixes on one server are two backends.
func (s *session) sourceName() string {
	if s.Config.Prefix == "" {
		return s.Where
	}
	return s.Where + ", prefix " + s.Config.Prefix
}

// options checks the flags.
func (u *ui) options() ([]dashboard.Option, error) {
	token, err := u.token()
	if err != nil {
		return nil, err
	}
	if token == "" && !isLoopback(u.listen) {
		return nil, fmt.Errorf("--listen %s can be reached from other hosts: set a token of at least 16 characters in %s or --token-file", u.listen, tokenEnv)
	}
	opts := []dashboard.Option{
		dashboard.WithLogger(u.log()), dashboard.WithAllowedHosts(u.hosts...), dashboard.WithInterval(u.interval),
		dashboard.WithMaxLocks(u.maxLocks),
	}
	if token != "" {
		opts = append(opts, dashboard.WithBearerToken(token))
	}
	if u.evict {
		opts = append(opts, dashboard.WithEvict(), dashboard.WithOperator(func(*http.Request) string { return operator() }))
	}
	return opts, nil
}

// token reads the token. A flag would show it to every user of the host.
func (u *ui) token() (string, error) {
	if u.tokenFile == "" {
		return u.getenv(tokenEnv), nil
	}
	text, err := os.ReadFile(u.tokenFile)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", fmt.Errorf("--token-file %s is empty", u.tokenFile)
	}
	return token, nil
}

// isLoopback reports whether only this host can reach an address.
func isLoopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || (err == nil && addr.IsLoopback())
}

// log is where evictions are written, as dlock evict does.
func (u *ui) log() clog.Logger {
	cfg := clog.Config{Level: "warn", Format: "text", Output: u.stderr}
	if u.asJSON {
		cfg.Format = "json"
	}
	if u.verbose {
		cfg.Level = "debug"
	}
	return clog.New(&cfg)
}

// connectAll opens all backends. One that cannot be reached does not keep the page from showing
// the others, and it may come back.
func (u *ui) connectAll(cmd *cobra.Command) (all []*session, err error) {
	if len(u.backends) == 0 {
		u.backends = []string{""} // as the environment says
	}
	for _, url := range u.backends {
		u.backend = url
		b, err := u.open(cmd, u.log())
		if err != nil {
			return all, err
		}
		s := &session{Backend: b}
		all = append(all, s)
		if err := s.start(u.log(), patience); err != nil {
			return all, err
		}
	}
	return all, nil
}

// serve runs until a signal ends it.
func (u *ui) serve(ctx context.Context, page *dashboard.Handler) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", u.listen)
	if err != nil {
		return exitWith(ExitUsage, "--listen: %w", err)
	}
	signals := listen()
	defer signal.Stop(signals)
	server := &http.Server{Handler: page, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	if err := u.announce(l.Addr().String()); err != nil {
		_ = server.Close()
		<-failed
		return err
	}
	for {
		select {
		case err := <-failed:
			return exitWith(ExitBackend, "serving the page: %w", err)
		case s := <-signals:
			if !ends(s) {
				continue
			}
			shutDown(ctx, server, page)
			<-failed
			return endedBy(s)
		}
	}
}

// shutDown ends the streams first, or Shutdown would wait for them.
func shutDown(ctx context.Context, server *http.Server, page *dashboard.Handler) {
	_ = page.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		_ = server.Close()
	}
}

// announce writes the address of the page.
func (u *ui) announce(addr string) error {
	url := "http://" + reachable(addr) + "/"
	if u.asJSON {
		return writeJSON(u.stdout, map[string]string{"url": url})
	}
	return written(fmt.Fprintf(u.stdout, "The lock page is at %s (Ctrl-C ends it)\n", url))
}

// reachable returns an address that a browser on this host can use: none is at 0.0.0.0.
func reachable(listening string) string {
	at, err := netip.ParseAddrPort(listening)
	if err != nil || !at.Addr().IsUnspecified() {
		return listening
	}
	return net.JoinHostPort("localhost", strconv.Itoa(int(at.Port())))
}
