package fence_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/pkg/dlock/fence"
)

type checkerFunc func(ctx context.Context, resource string, token int64) error

func (f checkerFunc) Check(ctx context.Context, resource string, token int64) error {
	return f(ctx, resource, token)
}

// answering is a checker that has seen token 50 of order:1, and has an error for some other resources.
func answering(t *testing.T) fence.Checker {
	t.Helper()
	var memory fence.Memory
	if err := memory.Check(t.Context(), "order:1", 50); err != nil {
		t.Fatal(err)
	}
	return checkerFunc(func(ctx context.Context, resource string, token int64) error {
		switch resource {
		case "broken":
			return errors.New("database at 10.0.0.7 is down")
		case "misconfigured":
			return &fence.InputError{Argument: "Dialect", Reason: "of 10.0.0.7 is not known"}
		case "pedantic":
			return &fence.InputError{Argument: "token", Reason: "of 10.0.0.7"}
		case "custom":
			return fmt.Errorf("mine: %w", fence.ErrStale)
		}
		return memory.Check(ctx, resource, token)
	})
}

// answers are requests by their headers, and what a handler with the checker answering says.
var answers = map[string]struct {
	token, resource []string
	status          int
	seen            string
	holder          fence.Holder // as the next handler sees it
}{
	"accepted":        {[]string{"50"}, []string{"order:1"}, 200, "", fence.Holder{Resource: "order:1", Token: 50}},
	"unusual name":    {[]string{"9223372036854775807"}, []string{"%E5%BA%93%20%2F%25"}, 200, "", fence.Holder{Resource: "库 /%", Token: 1<<63 - 1}},
	"stale":           {[]string{"49"}, []string{"order:1"}, 412, "50", fence.Holder{}},
	"own stale error": {[]string{"49"}, []string{"custom"}, 412, "0", fence.Holder{}},
	"no token":        {nil, []string{"order:1"}, 428, "", fence.Holder{}},
	"no headers":      {nil, nil, 428, "", fence.Holder{}},
	"no resource":     {[]string{"1"}, nil, 400, "", fence.Holder{}},
	"empty token":     {[]string{""}, []string{"order:1"}, 400, "", fence.Holder{}},
	"no number":       {[]string{"0x10"}, []string{"order:1"}, 400, "", fence.Holder{}},
	"zero":            {[]string{"0"}, []string{"order:1"}, 400, "", fence.Holder{}},
	"negative":        {[]string{"-5"}, []string{"order:1"}, 400, "", fence.Holder{}},
	"too great":       {[]string{"9223372036854775808"}, []string{"order:1"}, 400, "", fence.Holder{}},
	"two tokens":      {[]string{"1", "60"}, []string{"order:1"}, 400, "", fence.Holder{}},
	"two resources":   {[]string{"60"}, []string{"order:1", "order:2"}, 400, "", fence.Holder{}},
	"bad encoding":    {[]string{"60"}, []string{"%zz"}, 400, "", fence.Holder{}},
	"control":         {[]string{"60"}, []string{"a%00b"}, 400, "", fence.Holder{}},
	"no UTF-8":        {[]string{"60"}, []string{"%ff"}, 400, "", fence.Holder{}},
	"long":            {[]string{"60"}, []string{strings.Repeat("a", 1025)}, 400, "", fence.Holder{}},
	"broken checker":  {[]string{"60"}, []string{"broken"}, 503, "", fence.Holder{}},
	"misconfigured":   {[]string{"60"}, []string{"misconfigured"}, 503, "", fence.Holder{}},
	"pedantic":        {[]string{"60"}, []string{"pedantic"}, 503, "", fence.Holder{}},
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	var seen []fence.Holder
	handler, err := fence.NewHandler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		holder, _ := fence.FromContext(r.Context())
		seen = append(seen, holder)
	}), answering(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range answers {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/", nil)
		if c.token != nil {
			req.Header[fence.HeaderToken] = c.token
		}
		req.Header[fence.HeaderResource] = c.resource
		w := httptest.NewRecorder()
		seen = nil
		handler.ServeHTTP(w, req)
		if w.Code != c.status || w.Header().Get(fence.HeaderSeen) != c.seen {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
		if strings.Contains(w.Body.String(), "10.0.0.7") {
			t.Errorf("%s: the answer names an internal cause", name)
		}
		if c.status != 200 && len(seen) > 0 {
			t.Errorf("%s: the handler ran for a refused request", name)
		}
		if c.status == 200 && (len(seen) != 1 || seen[0] != c.holder) {
			t.Errorf("%s: the handler sees %v", name, seen)
		}
	}
}
