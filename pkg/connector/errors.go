package connector

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// Errors of this package. Test with errors.Is; xerrors.CodeOf returns the codes. Each error also
// wraps its cause.
var (
	// ErrConfigNil: no configuration was given.
	ErrConfigNil = xerrors.ErrConfigNil
	// ErrInvalidConfig: a field or an option is out of range, a file cannot be read, or the server
	// does not match the configuration.
	ErrInvalidConfig = xerrors.ErrInvalidConfig
	// ErrDenied: the server refuses the credentials or the operation.
	ErrDenied = driver.ErrDenied
	// ErrTLS: one side does not trust the other, or does not use TLS. A lock call on Redis ends at
	// once with this error, because a retry is useless.
	ErrTLS = xerrors.NewOf(driver.ErrUnavailable, "tls", "no TLS connection")
	// ErrUnreachable: the host is unknown, or nothing accepts connections there.
	ErrUnreachable = xerrors.NewOf(driver.ErrUnavailable, "unreachable", "server cannot be reached")
	// ErrTimeout: there was no answer in time.
	ErrTimeout = xerrors.NewOf(driver.ErrUnavailable, "timeout", "no answer in time")
	// ErrNotReady: the server answers but cannot serve now.
	ErrNotReady = driver.ErrNotReady
	// ErrClosed: the connector is closed.
	ErrClosed = driver.ErrClosed
)

func invalid(field, format string, args ...any) error {
	return fmt.Errorf("%w: %s %w", ErrInvalidConfig, field, fmt.Errorf(format, args...))
}

// typed wraps err with its kind. An error that already has a kind keeps it.
func typed(err, kind error) error {
	if err == nil || kind == nil || xerrors.CodeOf(err) != "" {
		return err
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// netKind returns what a network error means, or nil if err is not a network error.
func netKind(err error) error {
	var op *net.OpError
	var slow interface{ Timeout() bool }
	switch {
	case errors.Is(err, context.Canceled):
		return nil
	case isTLS(err):
		return ErrTLS
	case errors.As(err, &slow) && slow.Timeout():
		return ErrTimeout
	case errors.As(err, &op), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return ErrUnreachable
	}
	return nil
}

// isTLS recognizes the errors of crypto/tls that are not network errors.
func isTLS(err error) bool {
	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var op *net.OpError
	return errors.As(err, &cert) || errors.As(err, &record) ||
		errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error") // an alert
}
