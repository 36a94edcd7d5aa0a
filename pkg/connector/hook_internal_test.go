package connector

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/clog"
)

// several is an error that panics if it is compared.
type several []error

func (several) Error() string { return "several" }

// The hooks receive errors of other authors' hooks, of any type.
func TestUncomparableError(t *testing.T) {
	r := redactor{link: newLink("redis", nil, time.Second, clog.Logger{}, "secret"), all: true}
	cmd := redis.NewCmd(t.Context(), "get", "k")
	err := r.ProcessHook(func(context.Context, redis.Cmder) error { return several{} })(t.Context(), cmd)
	var got several
	if !errors.As(err, &got) {
		t.Errorf("the error became %v", err)
	}
	cmd.SetErr(several{})
	err = r.ProcessPipelineHook(func(context.Context, []redis.Cmder) error { return several{} })(t.Context(), []redis.Cmder{cmd})
	if !errors.As(err, &got) || !errors.As(cmd.Err(), &got) {
		t.Errorf("the error became %v, that of the command %v", err, cmd.Err())
	}
}
