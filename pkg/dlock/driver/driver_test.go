package driver_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

func TestNames(t *testing.T) {
	for value, want := range map[fmt.Stringer]string{
		driver.Unknown: "unknown", driver.Queued: "queued", driver.Held: "held", driver.Gone: "gone", driver.Phase(9): "Phase(9)",
		driver.Exclusive: "exclusive", driver.Shared: "shared", driver.Permit: "permit", driver.Mode(9): "Mode(9)",
		driver.OK: "ok", driver.Warning: "warning", driver.Unsafe: "unsafe", driver.Level(9): "Level(9)",
	} {
		if value.String() != want {
			t.Errorf("%q, want %q", value, want)
		}
	}
}

func TestClassOf(t *testing.T) {
	plain := errors.New("plain")
	for _, tc := range []struct {
		err  error
		want driver.Class
	}{
		{plain, driver.Ambiguous},
		{driver.Classify(plain, driver.Transient), driver.Transient},
		{fmt.Errorf("wrapped: %w", driver.Classify(plain, driver.Fatal)), driver.Fatal},
		{fmt.Errorf("wrapped: %w", driver.ErrInvalidKey), driver.Fatal},
		{driver.ErrInvalidTTL, driver.Fatal},
		{driver.ErrUnsupported, driver.Fatal},
	} {
		if got := driver.ClassOf(tc.err); got != tc.want {
			t.Errorf("ClassOf(%v) = %v, want %v", tc.err, got, tc.want)
		}
	}
	if !errors.Is(driver.Classify(plain, driver.Fatal), plain) || driver.Classify(nil, driver.Fatal) != nil {
		t.Error("Classify hides the error, or makes one of nil")
	}
}

func TestLeases(t *testing.T) {
	if driver.Heartbeat(time.Second) != time.Second || driver.Heartbeat(time.Minute) != 3*time.Second {
		t.Error("Heartbeat")
	}
	if driver.TombstoneTTL(time.Second) != time.Minute || driver.TombstoneTTL(time.Hour) != time.Hour {
		t.Error("TombstoneTTL")
	}
	if caps := (driver.Caps{Modes: []driver.Mode{driver.Shared}}); !caps.Supports(driver.Shared) || caps.Supports(driver.Permit) {
		t.Error("Supports")
	}
}

// The ID of a claim is the right to release it, and appears in no output.
func TestClaimHidesItsID(t *testing.T) {
	const secret = "0123456789abcdef"
	c := driver.Claim{ID: secret, Phase: driver.Held, Token: 7, Info: driver.Info{Owner: "api", Host: "h", PID: 3}}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("claim", "claim", c)
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	shown := log.String() + string(text) + c.String() + fmt.Sprint(c) + fmt.Sprintf("%v %+v", c, c)
	if strings.Contains(shown, secret) || !strings.Contains(shown, `"token":7`) || !strings.Contains(c.String(), "held exclusive token 7 by api@h pid 3") {
		t.Error(shown)
	}
}

// A closed client does not determine the outcome of the call.
func TestClosedIsAmbiguous(t *testing.T) {
	for _, err := range []error{driver.ErrClosed, driver.ErrUnavailable, driver.ErrNotReady, driver.ErrDenied} {
		if c := driver.ClassOf(err); c != driver.Ambiguous {
			t.Errorf("%v is of class %d", err, c)
		}
	}
}
