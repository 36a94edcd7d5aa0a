package connector_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/ceyewan/genesis/pkg/connector"
)

// words are passwords that are also words in errors.
var words = []string{"etcd", "redis", "connect", "connector", "canceled", "refused", "tcp", "server", "invalid", "127", "e"}

// If the password is a word in an error, the error keeps its kind, its cause and its text: a
// missing word would reveal the password.
func TestPasswordIsAWord(t *testing.T) {
	t.Parallel()
	silent := unused(t)
	closed := redisWithUsers(t)
	for _, word := range words {
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			for _, c := range []conn{
				newEtcd(t, connector.EtcdConfig{Endpoints: []string{silent}, Username: "root", Password: word, ConnectTimeout: long}),
				newRedis(t, connector.RedisConfig{Addr: silent, Password: word, ConnectTimeout: long}),
				newRedis(t, connector.RedisConfig{Addrs: []string{silent}, MasterName: "m", SentinelPassword: word, ConnectTimeout: long}),
			} {
				err := refused(t, c, connector.ErrUnreachable, atOnce)
				if !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), silent) {
					t.Errorf("no cause: %v", err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if err := c.Connect(ctx); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "context canceled") {
					t.Errorf("no cause: %v", err)
				}
			}
			err := refused(t, newRedis(t, connector.RedisConfig{Addr: closed.Addr(), Password: word, ConnectTimeout: long}), connector.ErrDenied, atOnce)
			if !strings.Contains(err.Error(), "WRONGPASS invalid username-password pair") {
				t.Errorf("no cause: %v", err)
			}
		})
	}
}

// The same with a refusal of etcd, whose texts are all known.
func TestPasswordIsAWordOfEtcd(t *testing.T) {
	t.Parallel()
	server := etcdWithUsers(t)
	for _, word := range []string{"etcdserver", "authentication"} {
		c := newEtcd(t, connector.EtcdConfig{Endpoints: []string{server.Endpoint()}, Username: "locks", Password: word, ConnectTimeout: long})
		if err := refused(t, c, connector.ErrDenied, atOnce); !strings.Contains(err.Error(), "authentication failed") {
			t.Errorf("no cause: %v", err)
		}
	}
}

// parrot answers every line with an error that repeats it, as Redis before version 7 does with the
// arguments of an unknown command.
func parrot(t *testing.T, reply string) string {
	t.Helper()
	return answering(t, fmt.Sprintf(reply, password))
}

// answering gives the same answer to every command.
func answering(t *testing.T, reply string) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for lines := bufio.NewScanner(c); lines.Scan(); {
					if strings.HasPrefix(lines.Text(), "*") {
						fmt.Fprint(c, reply)
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// If a server repeats the password, no error in the chain shows it.
func TestServerRepeatsPassword(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]string{
		"unknown command":   "-ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'default' '%s'\r\n",
		"first word":        "-%s is wrong\r\n",
		"not even an error": "+%s\r\n",
		"no Redis":          "HTTP/1.1 400 %s\r\n",
		"number":            ":%s\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newRedis(t, connector.RedisConfig{Addr: parrot(t, reply), Password: password})
			err := c.Connect(t.Context())
			if err == nil { // a status is good enough for the client
				return
			}
			if text := allTexts(err); strings.Contains(text, password) {
				t.Errorf("password in %s", text)
			}
			if name == "unknown command" && !strings.Contains(err.Error(), "ERR unknown command") {
				t.Errorf("no cause: %v", err)
			}
		})
	}
}

// allTexts returns the texts of an error and of everything that it wraps.
func allTexts(err error) string {
	text := fmt.Sprintf("%v %+v %#v\n", err, err, err)
	switch e := err.(type) { //nolint:errorlint // one level at a time
	case interface{ Unwrap() error }:
		if e.Unwrap() != nil {
			text += allTexts(e.Unwrap())
		}
	case interface{ Unwrap() []error }:
		for _, cause := range e.Unwrap() {
			text += allTexts(cause)
		}
	}
	return text
}
