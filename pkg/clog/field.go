package clog

import (
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"github.com/ceyewan/genesis/pkg/xerrors"
)

// A Field is one key and value of a log line.
type Field = slog.Attr

// String returns a field with a string value.
func String(key, value string) Field { return slog.String(key, value) }

// Strings returns a field with a list of strings.
func Strings(key string, values []string) Field { return slog.Any(key, values) }

// Int returns a field with an int value.
func Int(key string, value int) Field { return slog.Int(key, value) }

// Int64 returns a field with an int64 value.
func Int64(key string, value int64) Field { return slog.Int64(key, value) }

// Uint64 returns a field with a uint64 value.
func Uint64(key string, value uint64) Field { return slog.Uint64(key, value) }

// Float64 returns a field with a float64 value.
func Float64(key string, value float64) Field { return slog.Float64(key, value) }

// Bool returns a field with a bool value.
func Bool(key string, value bool) Field { return slog.Bool(key, value) }

// Duration returns a field with a duration value.
func Duration(key string, value time.Duration) Field { return slog.Duration(key, value) }

// Time returns a field with a time value.
func Time(key string, value time.Time) Field { return slog.Time(key, value) }

// Any returns a field with a value of any type.
func Any(key string, value any) Field { return slog.Any(key, value) }

// Error returns the field "error"; for a nil err its text is empty. As in slog, if the Error method
// panics, for instance on a nil pointer, the field says so.
func Error(err error) Field {
	if err == nil {
		return slog.String("error", "")
	}
	return slog.String("error", textOf(err))
}

func textOf(err error) (text string) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		text = fmt.Sprintf("!PANIC: %v", p)
		if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && v.IsNil() {
			text = "<nil>"
		}
	}()
	return err.Error()
}

// Code returns the field "code" with the result of xerrors.CodeOf for err. If there is no code, the
// field does not appear.
func Code(err error) (field Field) {
	defer func() {
		if recover() != nil { // an error of another package, usually a nil pointer
			field = Field{}
		}
	}()
	code := xerrors.CodeOf(err)
	if code == "" {
		return Field{}
	}
	return slog.String("code", code)
}
