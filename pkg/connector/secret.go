package connector

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// hidden stands for a password wherever a configuration is shown.
const hidden = "[hidden]"

func hide(secret string) string {
	if secret == "" {
		return ""
	}
	return hidden
}

// hideUsers takes user and password out of addresses that are URLs. Such an
// address is invalid, and may yet be printed.
func hideUsers(addrs []string) []string {
	var shown []string
	for _, a := range addrs {
		shown = append(shown, hideUser(a))
	}
	return shown
}

func hideUser(addr string) string {
	if i := strings.LastIndexByte(addr, '@'); i >= 0 {
		return hidden + addr[i:]
	}
	return addr
}

// redact keeps passwords out of what a client returned: a server may well repeat what it was
// sent. Such an error loses the causes that have the password in them, and keeps the others.
// Texts that are always the same stay, though a password may be a word of theirs: they do not
// tell it, while a word that is missing from them would.
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
		if l.textWithout(leaf) == leaf.Error() {
			r.causes = append(r.causes, leaf)
		}
	}
	return r
}

type redacted struct {
	text   string
	causes []error
}

func (r *redacted) Error() string   { return r.text }
func (r *redacted) Unwrap() []error { return r.causes }

// textWithout is the text of an error without passwords.
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

func (l *link) hide(text string) string {
	for _, s := range l.secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, hidden)
		}
	}
	return text
}

// isFixed reports whether the text of an error is made on this host, or is one of a list, and
// so cannot repeat a password.
func isFixed(err error) bool {
	switch e := err.(type) { //nolint:errorlint // this one, not what it wraps
	case *net.OpError, *net.DNSError, *tls.CertificateVerificationError, syscall.Errno, rpctypes.EtcdError:
		return true
	case redis.Error:
		word, _, _ := strings.Cut(e.Error(), " ")
		return redisKinds[word] != nil
	}
	return err == context.Canceled || err == context.DeadlineExceeded //nolint:errorlint // as above
}

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

// leaves are the errors that wrap no other, or whose text is fixed.
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
