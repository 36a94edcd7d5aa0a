package fence

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
)

// A HandlerOption changes what NewHandler returns.
type HandlerOption func(*handler)

// WithResource names the resource of a request by the request itself, such as by its path. A
// request that names another one is answered with 400. Without this option, the client names the
// resource, and a client that names a wrong one is not fenced.
func WithResource(name func(*http.Request) string) HandlerOption {
	return func(h *handler) { h.resource, h.incomplete = name, h.incomplete || name == nil }
}

// WithUnfenced lets requests without a token pass if allow returns true for them. Without this
// option, all of them are answered with 428. To let readers pass:
//
//	fence.WithUnfenced(func(r *http.Request) bool { return r.Method == http.MethodGet })
func WithUnfenced(allow func(*http.Request) bool) HandlerOption {
	return func(h *handler) { h.unfenced, h.incomplete = allow, h.incomplete || allow == nil }
}

// NewHandler returns a handler that calls next only for requests whose token the checker accepts.
// The context of such a request carries the Holder: see FromContext. Other requests are answered as
// by Refuse.
//
// A token that is too great disables the resource for all holders, and checkers such as that of SQL
// store every name that they are asked about. So authenticate clients first: put the handler behind
// what does.
//
// The check comes before next, so a request that is delayed inside next can still write late. Close
// this window where the data is: let next fence its own write with the same token, and answer an
// error with Refuse.
//
//	ship := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
//		holder, _ := fence.FromContext(r.Context())
//		err := orders.Do(r.Context(), db, holder.Resource, holder.Token, write)
//		if err != nil {
//			fence.Refuse(w, err)
//		}
//	})
//	handler, err := fence.NewHandler(ship, orders.Checker(db))
func NewHandler(next http.Handler, checker Checker, opts ...HandlerOption) (http.Handler, error) {
	h := &handler{next: next, checker: checker}
	for _, opt := range opts {
		if opt == nil {
			return nil, &InputError{"option", "is nil"}
		}
		opt(h)
	}
	if h.incomplete {
		return nil, &InputError{"option", "has a function that is nil"}
	}
	if next == nil || checker == nil {
		return nil, &InputError{"next or checker", "is nil"}
	}
	return h, nil
}

type handler struct {
	next     http.Handler
	checker  Checker
	resource func(*http.Request) string
	unfenced func(*http.Request) bool
	// incomplete: an option lacks its function, and would be without effect.
	incomplete bool
}

var errNoToken = &InputError{HeaderToken, "is missing: send the token of the lock"}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	holder, ok, err := readHolder(r.Header)
	if !ok && h.unfenced != nil && h.unfenced(r) {
		h.next.ServeHTTP(w, r)
		return
	}
	if !ok {
		err = errNoToken
	}
	if err == nil && h.resource != nil {
		err = holder.mustBe(h.resource(r))
	}
	if err == nil {
		err = validate(holder.Resource, holder.Token)
	}
	if err != nil {
		Refuse(w, err)
		return
	}
	err = h.checker.Check(r.Context(), holder.Resource, holder.Token)
	switch {
	case err == nil:
		h.next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), checkedKey{}, holder)))
	case errors.Is(err, ErrStale):
		Refuse(w, err)
	default: // the request is valid, so the fault is here
		answerUnavailable(w)
	}
}

// mustBe sets the resource of a request that names none.
func (h *Holder) mustBe(resource string) error {
	if h.Resource == "" {
		h.Resource = resource
	}
	if h.Resource != resource {
		return &InputError{HeaderResource, "is not the resource of this request"}
	}
	return nil
}

// Refuse answers a request with an error of a check:
//
//   - 412 for ErrStale, with the header Fencing-Seen
//   - 428 for a request without a token
//   - 400 for ErrInvalid, if the token or the resource is invalid
//   - 503 for anything else, without the cause, which may be internal. The request may have taken
//     effect, as after a commit without an answer.
func Refuse(w http.ResponseWriter, err error) {
	var stale *StaleError
	var input *InputError
	switch {
	case errors.As(err, &stale):
		w.Header().Set(HeaderSeen, strconv.FormatInt(stale.Seen, 10))
		http.Error(w, stale.Error(), http.StatusPreconditionFailed)
	case errors.Is(err, ErrStale):
		w.Header().Set(HeaderSeen, "0")
		http.Error(w, ErrStale.Error(), http.StatusPreconditionFailed)
	case errors.Is(err, errNoToken):
		http.Error(w, err.Error(), http.StatusPreconditionRequired)
	case errors.As(err, &input) && slices.Contains(ofRequest, input.Argument):
		http.Error(w, input.Error(), http.StatusBadRequest)
	default:
		answerUnavailable(w)
	}
}

// ofRequest are the arguments that a request brings. Others, such as Dialect, are the server's.
var ofRequest = []string{"token", "resource", HeaderToken, HeaderResource}

func answerUnavailable(w http.ResponseWriter) {
	http.Error(w, "the request could not be completed", http.StatusServiceUnavailable)
}
