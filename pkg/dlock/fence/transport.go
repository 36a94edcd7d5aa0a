package fence

import (
	"io"
	"net/http"
	"strconv"
)

// Transport is an http.RoundTripper that sends the token of a request's Holder to a server behind
// NewHandler. A request without a Holder is sent as it is.
//
// If the server refuses the token, RoundTrip returns a *StaleError instead of the answer, so that
// no caller takes a refused write for a success. An http.Client wraps it; errors.Is(err, ErrStale)
// finds it. A redirect is a request of its own, and carries the token too.
type Transport struct {
	// Base sends the requests. Nil: http.DefaultTransport.
	Base http.RoundTripper
	// Holder returns the Holder of a request, and false if there is none. Nil: the Holder of the
	// request's context, as set by NewContext. To use the innermost lock that the context was made
	// under:
	//
	//	holder := func(r *http.Request) (fence.Holder, bool) {
	//		guard, ok := dlock.FromContext(r.Context())
	//		if !ok {
	//			return fence.Holder{}, false
	//		}
	//		return fence.Holder{Resource: guard.Key(), Token: guard.Token()}, true
	//	}
	//	client := &http.Client{Transport: &fence.Transport{Holder: holder}}
	Holder func(*http.Request) (Holder, bool)
}

// RoundTrip sends the request with its token.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	holder, ok := t.holder(r)
	if !ok {
		return t.base().RoundTrip(r)
	}
	if err := validate(holder.Resource, holder.Token); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // a RoundTripper closes it in any case
		}
		return nil, err
	}
	sent := r.Clone(r.Context()) // a RoundTripper may not change the request
	if sent.Header == nil {
		sent.Header = http.Header{}
	}
	holder.writeTo(sent.Header)
	resp, err := t.base().RoundTrip(sent)
	if err != nil {
		return nil, err
	}
	if err := CheckResponse(resp, holder); err != nil {
		_, _ = io.CopyN(io.Discard, resp.Body, 4<<10) // so that the connection can be used again
		_ = resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// CloseIdleConnections closes those of Base, as http.Client.CloseIdleConnections asks for.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

func (t *Transport) holder(r *http.Request) (Holder, bool) {
	if t.Holder != nil {
		return t.Holder(r)
	}
	return toSend(r.Context())
}

func (t *Transport) base() http.RoundTripper {
	if t.Base != nil {
		return t.Base
	}
	return http.DefaultTransport
}

// CheckResponse returns a *StaleError if the answer says that the token of the holder is stale. It
// is for clients that send the headers by themselves.
func CheckResponse(resp *http.Response, holder Holder) error {
	if resp.StatusCode != http.StatusPreconditionFailed || len(resp.Header.Values(HeaderSeen)) == 0 {
		return nil
	}
	seen, err := strconv.ParseInt(resp.Header.Get(HeaderSeen), 10, 64)
	if err != nil {
		seen = 0 // it is stale all the same
	}
	return &StaleError{holder.Resource, holder.Token, max(seen, 0)}
}
