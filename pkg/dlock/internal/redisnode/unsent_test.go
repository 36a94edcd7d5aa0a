package redisnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

var testScript = NewScript("return 1", "")

// write does what go-redis does with a command.
func write(t *testing.T, c *Command) string {
	t.Helper()
	b, err := c.Args()[1].(*body).MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestWithdraw(t *testing.T) {
	ctx := context.Background()
	for _, whole := range []bool{false, true} {
		command := func() (*Command, string, string) {
			c := testScript.Command(ctx, []string{"k"}, "arg")
			if whole {
				return c.Whole(ctx), testScript.Source, string(noScript)
			}
			return c, testScript.Hash, string(noHash)
		}
		c, text, _ := command()
		if write(t, c) != text || c.Withdraw() {
			t.Error("a command that was written is withdrawn")
		}
		c.Rewind()
		for range 2 {
			if !c.Withdraw() {
				t.Error("a command that was refused cannot be withdrawn")
			}
		}
		c, _, inert := command()
		if !c.Withdraw() || write(t, c) != inert {
			t.Error("a command that was withdrawn is sent")
		}
		c.Rewind()
		if write(t, c.Whole(ctx)) != string(noScript) {
			t.Error("it comes back as a whole")
		}
	}
}

// What an error means depends on whether the command was written, not on its text.
func TestClassifyCommand(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	denied := redisError("WRONGPASS invalid")
	for _, tc := range []struct {
		name           string
		err            error
		unsent, sent   driver.Class
		kind, sentKind error
	}{
		{"refused", dial, driver.Transient, driver.Ambiguous, driver.ErrUnavailable, nil},
		{"cut", io.EOF, driver.Transient, driver.Ambiguous, driver.ErrUnavailable, nil},
		{"denied", denied, driver.Fatal, driver.Fatal, driver.ErrDenied, driver.ErrDenied},
		{"closed", redis.ErrClosed, driver.Fatal, driver.Ambiguous, driver.ErrUnavailable, nil},
		{"TLS", driver.Classify(errors.New("no trust"), driver.Fatal), driver.Fatal, driver.Fatal, driver.ErrUnavailable, nil},
		{"unknown master", fmt.Errorf("sentinels: %w", redis.Nil), driver.Transient, driver.Fatal, driver.ErrUnavailable, nil},
	} {
		c := testScript.Command(context.Background(), nil)
		err := c.Classify(tc.err)
		if driver.ClassOf(err) != tc.unsent || !errors.Is(err, tc.kind) || !errors.Is(err, tc.err) {
			t.Errorf("%s, not sent: %v, class %d", tc.name, err, driver.ClassOf(err))
		}
		write(t, c)
		err = c.Classify(tc.err)
		if driver.ClassOf(err) != tc.sent || errors.Is(err, driver.ErrUnavailable) || (tc.sentKind != nil && !errors.Is(err, tc.sentKind)) {
			t.Errorf("%s, sent: %v, class %d", tc.name, err, driver.ClassOf(err))
		}
	}
}

type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}

// An endingHook ends a pipeline without sending it.
type endingHook struct{ redis.Hook }

var errEnded = errors.New("ended by a hook")

func (endingHook) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (endingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (endingHook) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(context.Context, []redis.Cmder) error { return errEnded }
}

// go-redis gives the error of a hook to the pipeline only. Without it, a command seems to be answered.
func TestExecuteGivesEachCommandItsError(t *testing.T) {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nothing is sent
	defer func() { _ = client.Close() }()
	client.AddHook(endingHook{})
	pipe := client.Pipeline()
	for range 3 {
		_ = pipe.Process(ctx, testScript.Command(ctx, []string{"k"}))
	}
	cmds := Execute(ctx, pipe)
	if len(cmds) != 3 {
		t.Fatalf("%d commands", len(cmds))
	}
	for _, c := range cmds {
		if !errors.Is(c.Err(), errEnded) {
			t.Errorf("the error of a command is %v", c.Err())
		}
	}
}
