package fence

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Errors of this package and of the packages below it; test with errors.Is.
var (
	// ErrStale: the resource has seen a greater token. Nothing was written. Another process holds
	// the lock: stop. The error is a *StaleError.
	ErrStale = errors.New("stale fencing token")
	// ErrInvalid: an argument is out of range. Nothing was sent. The error is an *InputError.
	ErrInvalid = errors.New("invalid argument")
	// ErrDamaged: the place that should hold the greatest token holds something else. Nothing was
	// written, because the fence cannot be compared.
	ErrDamaged = errors.New("the fence holds no token")
	// ErrTransactionEnded: the transaction of SQL.Do ended before its commit, by a statement that
	// commits (DDL on MySQL) or by an error that rolled it back and that the function did not return.
	// What the function wrote after that was not fenced, and may be stored.
	ErrTransactionEnded = errors.New("the transaction ended before its commit")
)

// A StaleError says which token was refused, and why. errors.Is(err, ErrStale) finds it.
type StaleError struct {
	Resource string
	Token    int64 // of the refused writer
	Seen     int64 // the greatest token that the resource has seen; 0 if that is not known
}

func (e *StaleError) Error() string {
	seen := "a greater one"
	if e.Seen > 0 {
		seen = fmt.Sprint(e.Seen)
	}
	return fmt.Sprintf("fence %q: token %d is stale, the resource has seen %s: another process has the lock, stop writing", e.Resource, e.Token, seen)
}

// Is reports whether target is ErrStale.
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// Code returns the stable code of the error, for logs and metrics.
func (e *StaleError) Code() string { return "stale_token" }

// An InputError says which argument was refused before anything was sent. errors.Is(err,
// ErrInvalid) finds it.
type InputError struct {
	Argument string // such as "token"
	Reason   string
}

func (e *InputError) Error() string { return fmt.Sprintf("fence: %s %s", e.Argument, e.Reason) }

// Is reports whether target is ErrInvalid.
func (e *InputError) Is(target error) bool { return target == ErrInvalid }

// Code returns the stable code of the error, for logs and metrics.
func (e *InputError) Code() string { return "invalid_argument" }

// maxResource is the longest name of a resource in bytes, which is that of a lock.
const maxResource = 1024

// ValidateToken returns an *InputError for a token that no lock gives.
func ValidateToken(token int64) error {
	if token > 0 {
		return nil
	}
	return &InputError{"token", fmt.Sprintf("is %d, and every token is positive: pass Guard.Token() of a lock that is held", token)}
}

// validate checks a name and a token.
func validate(resource string, token int64) error {
	var reason string
	switch {
	case resource == "":
		reason = "is empty"
	case len(resource) > maxResource:
		reason = fmt.Sprintf("has %d bytes, more than %d", len(resource), maxResource)
	case !utf8.ValidString(resource) || strings.ContainsFunc(resource, unicode.IsControl):
		reason = fmt.Sprintf("%q is not UTF-8 without control characters", resource)
	default:
		return ValidateToken(token)
	}
	return &InputError{"resource", reason}
}
