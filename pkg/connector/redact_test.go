package connector_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// unknownHello returns the answer of a Redis that does not know HELLO: it repeats 128 bytes of the
// arguments, and has blanks for line ends.
func unknownHello(password string) string {
	args := ""
	for _, a := range []string{"3", "AUTH", "default", password} {
		if len(args) < 128 {
			args += fmt.Sprintf("`%.*s`, ", 128-len(args), a)
		}
	}
	args = strings.NewReplacer("\r", " ", "\n", " ").Replace(args)
	return "-ERR unknown command `HELLO`, with args beginning with: " + args + "\r\n"
}

// hides asserts that there is an error and that it shows nothing of a password.
func hides(t *testing.T, err error, part string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	if text := allTexts(err); strings.Contains(text, part) {
		t.Errorf("the password is in %s", text)
	}
}

// However a server repeats the password, it is not shown.
func TestFormsOfAPassword(t *testing.T) {
	t.Parallel()
	const part = "s3cr3t"
	long, quoted := strings.Repeat(part+"pw", 20), part+"\"pw\\x"
	for name, tc := range map[string]struct {
		password, reply string
		kind            error
	}{
		"NOAUTH":            {part + "-pw", "-NOAUTH bad password 's3cr3t-pw'\r\n", connector.ErrDenied},
		"WRONGPASS":         {part + "-pw", "-WRONGPASS bad password 's3cr3t-pw'\r\n", connector.ErrDenied},
		"NOPERM":            {part + "-pw", "-NOPERM bad password 's3cr3t-pw'\r\n", connector.ErrDenied},
		"LOADING":           {part + "-pw", "-LOADING bad password 's3cr3t-pw'\r\n", connector.ErrNotReady},
		"MISCONF":           {part + "-pw", "-MISCONF bad password 's3cr3t-pw'\r\n", connector.ErrNotReady},
		"quoted":            {quoted, "HTTP/1.1 400 " + quoted + "\r\n", nil},
		"quoted and cut":    {long, "HTTP/1.1 400 " + long + "\r\n", nil},
		"arguments and cut": {long, unknownHello(long), nil},
		"line end":          {part + "pw\n", unknownHello(part + "pw\n"), nil},
		"trimmed":           {" " + part + "pw\n", "-ERR no such thing as s3cr3tpw\r\n", nil},
		"across a phrase":   {part + " NOPERM x", "-ERR s3cr3t NOPERM x\r\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newRedis(t, connector.RedisConfig{Addr: answering(t, tc.reply), Password: tc.password})
			err := c.Connect(t.Context())
			hides(t, err, part)
			if tc.kind != nil && !errors.Is(err, tc.kind) {
				t.Errorf("no %v: %v", tc.kind, err)
			}
			hides(t, c.Client().Get(t.Context(), "k").Err(), part)
		})
	}
}

// If one password is the beginning of another, both are hidden.
func TestPasswordBeginsAsAnother(t *testing.T) {
	t.Parallel()
	addr := answering(t, "-ERR no such user, or `s3cr3t-more`\r\n")
	for _, pw := range [][2]string{{"s3cr3t", "s3cr3t-more"}, {"s3cr3t-more", "s3cr3t"}} {
		c := newRedis(t, connector.RedisConfig{Addrs: []string{addr}, MasterName: "m", Password: pw[0], SentinelPassword: pw[1]})
		err := c.Connect(t.Context())
		hides(t, err, "s3cr3t")
		hides(t, err, "-more")
		hides(t, c.LockClient().Ping(t.Context()).Err(), "-more")
	}
}

// The errors and the log of locks do not show the password either.
func TestLockHidesPassword(t *testing.T) {
	t.Parallel()
	const pw = "s3cr3t-pw"
	for name, reply := range map[string]string{"unknown command": unknownHello(pw), "denied": "-WRONGPASS no user with " + pw + "\r\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addrs := []string{answering(t, reply), answering(t, reply), answering(t, reply)}
			log, text := debugLog()
			one := newRedis(t, connector.RedisConfig{Addr: addrs[0], Password: pw}, connector.WithLogger(log))
			cluster := newRedis(t, connector.RedisConfig{Addrs: addrs, Password: pw}, connector.WithLogger(log))
			several, err := connector.NewRedlock(&connector.RedlockConfig{Addrs: addrs, Password: pw}, connector.WithLogger(log))
			if err != nil {
				t.Fatal(err)
			}
			closeOnce(t, several)
			cfg := &dlock.Config{MaxRetries: 2}
			for kind, open := range map[string]func() (*dlock.Client, error){
				"one":     func() (*dlock.Client, error) { return dlock.NewRedis(one, cfg, dlock.WithLogger(log)) },
				"cluster": func() (*dlock.Client, error) { return dlock.NewRedis(cluster, cfg, dlock.WithLogger(log)) },
				"redlock": func() (*dlock.Client, error) { return dlock.NewRedlock(several, cfg, dlock.WithLogger(log)) },
			} {
				client, err := open()
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				_, err = client.TryLock(ctx, "k")
				cancel()
				hides(t, err, "s3cr3t")
				if name == "denied" && kind == "one" && !errors.Is(err, dlock.ErrDenied) {
					t.Errorf("%s: not denied: %v", kind, err)
				}
				if err := client.Close(); err != nil {
					t.Logf("%s: close: %v", kind, err)
				}
			}
			if strings.Contains(text(), "s3cr3t") {
				t.Errorf("the password is in the log: %s", text())
			}
		})
	}
}

// If the password is a word of an answer, locks still understand the answer.
func TestLocksUnderstandRedactedAnswers(t *testing.T) {
	t.Parallel()
	for _, pw := range []string{"user", "pair", "WRONGPASS", "e", "authenticate"} {
		c := newRedis(t, connector.RedisConfig{Addr: redisWithUsers(t).Addr(), Password: pw})
		client, err := dlock.NewRedis(c, &dlock.Config{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.TryLock(t.Context(), "k")
		if !errors.Is(err, dlock.ErrDenied) || !strings.Contains(err.Error(), "WRONGPASS invalid username-password pair") {
			t.Errorf("%s: %v", pw, err)
		}
		_ = client.Close()
	}
}

// Answers to the user's own commands stay unchanged; answers of the client for locks do not.
func TestUsersAnswersStay(t *testing.T) {
	t.Parallel()
	c := newRedis(t, connector.RedisConfig{Addr: redisWithUsers(t).Addr(), Password: password})
	for client, stays := range map[redis.UniversalClient]bool{c.Client(): true, c.LockClient(): false} {
		pipe := client.Pipeline()
		pipe.Do(t.Context(), "no-such-command", password)
		cmds, _ := pipe.Exec(t.Context())
		for _, err := range []error{client.Do(t.Context(), "no-such-command", password).Err(), cmds[0].Err()} {
			var reply redis.Error
			if !errors.As(err, &reply) || !redis.HasErrorPrefix(err, "unknown command") {
				t.Errorf("no answer of a server: %v", err)
			}
			if strings.Contains(allTexts(err), password) != stays {
				t.Errorf("stays %v: %v", stays, err)
			}
		}
	}
}

// The end of a connection is recognized even if the password is a word in its error.
func TestPasswordIsEOF(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 100))
			_ = c.Close()
		}
	}()
	for _, pw := range []string{"x9", "EOF", "E"} {
		c := newRedis(t, connector.RedisConfig{Addr: l.Addr().String(), Password: pw})
		if err := c.Connect(t.Context()); !errors.Is(err, connector.ErrUnreachable) {
			t.Errorf("%s: %v", pw, err)
		}
	}
}
