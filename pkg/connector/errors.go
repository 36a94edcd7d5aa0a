package connector

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/ceyewan/genesis/pkg/xerrors"
)

// What can go wrong. Test with errors.Is; xerrors.CodeOf returns the codes. The
// cause is wrapped as well.
var (
	// ErrConfigNil: no configuration was given.
	ErrConfigNil = xerrors.New("config_nil", "config is nil")
	// ErrInvalidConfig: a field or an option is out of range, a file cannot be
	// read, or the server does not fit to what was configured.
	ErrInvalidConfig = xerrors.New("invalid_config", "invalid configuration")
	// ErrDenied: the server does not let us in.
	ErrDenied = xerrors.New("denied", "access denied")
	// ErrTLS: one side does not trust the other, or does not speak TLS. A lock
	// call on Redis that meets it ends at once, since asking again is useless.
	ErrTLS = xerrors.New("tls", "no TLS connection")
	// ErrUnreachable: the host is not known, or nothing there takes connections.
	ErrUnreachable = xerrors.New("unreachable", "server cannot be reached")
	// ErrTimeout: there was no answer in time.
	ErrTimeout = xerrors.New("timeout", "no answer in time")
	// ErrNotReady: the server answers, and cannot serve now.
	ErrNotReady = xerrors.New("not_ready", "server is not ready")
	// ErrClosed: the connector is closed.
	ErrClosed = xerrors.New("closed", "connector is closed")
)

func invalid(field, format string, args ...any) error {
	return fmt.Errorf("%w: %s %w", ErrInvalidConfig, field, fmt.Errorf(format, args...))
}

// typed wraps err with its kind; an error that has one keeps it.
func typed(err, kind error) error {
	if err == nil || kind == nil || xerrors.CodeOf(err) != "" {
		return err
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// netKind says what an error of the network means, nil if it is none.
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

// isTLS knows what crypto/tls returns when it is not the network that failed.
func isTLS(err error) bool {
	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var op *net.OpError
	return errors.As(err, &cert) || errors.As(err, &record) ||
		errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error") // an alert
}
