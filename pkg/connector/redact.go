package connector

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// redact keeps passwords out of the errors of a client: a server may repeat what it was sent. Such
// an error loses the causes that contain the password, and keeps the others; an answer of Redis
// stays one. Fixed texts stay unchanged even if a password is a word in them: the text does not
// reveal the password, but a missing word would.
func (l *link) redact(err error) error {
	if err == nil {
		return nil
	}
	text := l.textWithout(err)
	if text == err.Error() {
		return err
	}
	r := &redacted{text: text}
	for _, leaf := range leaves(err) {
		shown := l.textWithout(leaf)
		_, isReply := leaf.(redis.Error) //nolint:errorlint // a leaf wraps nothing
		switch {
		case shown == leaf.Error():
			r.causes = append(r.causes, leaf)
		case isReply:
			r.causes = append(r.causes, redactedReply(shown))
		}
	}
	if class := driver.ClassOf(err); class != driver.Ambiguous {
		return driver.Classify(r, class)
	}
	return r
}

type redacted struct {
	text   string
	causes []error
}

func (r *redacted) Error() string   { return r.text }
func (r *redacted) Unwrap() []error { return r.causes }

// A redactedReply is still an answer of the server: locks and the client read its first word.
type redactedReply string

func (r redactedReply) Error() string { return string(r) }
func (r redactedReply) RedisError()   {}

// textWithout returns the text of an error without passwords.
func (l *link) textWithout(err error) string {
	text := err.Error()
	if isFixed(err) {
		return text
	}
	done := ""
	for _, cause := range causes(err) {
		before, after, found := strings.Cut(text, cause.Error())
		if found {
			done += l.hide(before) + l.textWithout(cause)
			text = after
		}
	}
	return done + l.hide(text)
}

// isFixed reports whether the text of an error is made on this host, or is one of a list, and so
// cannot repeat a password.
func isFixed(err error) bool {
	switch e := err.(type) { //nolint:errorlint // this one, not what it wraps
	case *net.OpError, *net.DNSError, *tls.CertificateVerificationError, tls.RecordHeaderError, tls.AlertError, syscall.Errno, rpctypes.EtcdError:
		return true
	case redis.Error:
		return slices.Contains(sentinels, err) || redirection.MatchString(e.Error())
	}
	return slices.Contains(sentinels, err)
}

// sentinels are errors with a fixed text.
var sentinels = []error{
	context.Canceled, context.DeadlineExceeded, os.ErrDeadlineExceeded, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
	redis.Nil, redis.TxFailedErr, redis.ErrClosed, redis.ErrPoolTimeout, redis.ErrPoolExhausted,
	ErrInvalidConfig, ErrDenied, ErrTLS, ErrUnreachable, ErrTimeout, ErrNotReady, ErrClosed,
}

// redirection is an answer of a cluster that the client must be able to parse.
var redirection = regexp.MustCompile(`^(MOVED|ASK) \d{1,5} \S*:\d{1,5}$`)

func causes(err error) []error {
	switch e := err.(type) { //nolint:errorlint // this one, not what it wraps
	case interface{ Unwrap() error }:
		if cause := e.Unwrap(); cause != nil {
			return []error{cause}
		}
	case interface{ Unwrap() []error }:
		return e.Unwrap()
	}
	return nil
}

// leaves returns the errors that wrap no other, or whose text is fixed.
func leaves(err error) []error {
	all := causes(err)
	if len(all) == 0 || isFixed(err) {
		return []error{err}
	}
	var found []error
	for _, cause := range all {
		found = append(found, leaves(cause)...)
	}
	return found
}
