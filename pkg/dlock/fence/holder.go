package fence

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
)

// A Holder is the writer of a request: the resource that it locked, and its token.
type Holder struct {
	Resource string
	Token    int64
}

// The Holder of a request to send, and that of a request whose token was checked. They differ, so
// that a handler that calls another service does not forward the token of its client.
type (
	holderKey  struct{}
	checkedKey struct{}
)

// NewContext returns a context that carries a Holder, for requests that go through a Transport.
func NewContext(ctx context.Context, h Holder) context.Context {
	return context.WithValue(ctx, holderKey{}, h)
}

// FromContext returns the Holder of a request: in a handler behind NewHandler, the writer whose
// token has been checked, otherwise the one that NewContext has set. A Transport sends only the
// latter: to forward a token that was received, pass it to NewContext.
func FromContext(ctx context.Context) (Holder, bool) {
	h, ok := ctx.Value(checkedKey{}).(Holder)
	if ok {
		return h, true
	}
	return toSend(ctx)
}

// toSend returns the Holder that NewContext has set.
func toSend(ctx context.Context) (Holder, bool) {
	h, ok := ctx.Value(holderKey{}).(Holder)
	return h, ok
}

// Headers of requests and answers.
const (
	// HeaderToken is the token of a request, in decimal.
	HeaderToken = "Fencing-Token"
	// HeaderResource is the name of the resource of a request, percent-encoded as in a path.
	HeaderResource = "Fencing-Resource"
	// HeaderSeen marks the answer to a stale request. It is the greatest token that the resource
	// has seen, or 0 if that is not known.
	HeaderSeen = "Fencing-Seen"
)

func (h Holder) writeTo(header http.Header) {
	header.Set(HeaderToken, strconv.FormatInt(h.Token, 10))
	header.Set(HeaderResource, url.PathEscape(h.Resource))
}

// readHolder returns the Holder of a request, or false if it has no token.
func readHolder(header http.Header) (h Holder, ok bool, err error) {
	tokens, resources := header.Values(HeaderToken), header.Values(HeaderResource)
	if len(tokens) == 0 {
		return h, false, nil
	}
	if len(tokens) > 1 || len(resources) > 1 {
		return h, true, &InputError{HeaderToken, "and " + HeaderResource + " may be sent once"}
	}
	h.Token, err = strconv.ParseInt(tokens[0], 10, 64)
	if err != nil {
		return h, true, &InputError{HeaderToken, fmt.Sprintf("%q is not a decimal number of 64 bits", tokens[0])}
	}
	h.Resource, err = url.PathUnescape(header.Get(HeaderResource))
	if err != nil {
		return h, true, &InputError{HeaderResource, fmt.Sprintf("%q is not percent-encoded", header.Get(HeaderResource))}
	}
	return h, true, nil
}
