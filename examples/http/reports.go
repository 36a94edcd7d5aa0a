package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// reports builds a report for each request, under a lock of the report's name.
type reports struct {
	locks *dlock.Client
	build func(ctx context.Context, name string) error
}

func (s *reports) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	// The wait is short: who waits keeps a connection open.
	guard, err := s.locks.Acquire(r.Context(), "report:"+name, dlock.WithWait(time.Second))
	if err != nil {
		refuse(w, err)
		return
	}
	// The work ends with the request, if the client goes away, or with the lock.
	ctx, cancel := guard.WithContext(r.Context())
	defer cancel()
	err = s.build(ctx, name)
	// Unlock releases though the client has gone, and tells of a loss that the work
	// did not notice.
	switch uerr := guard.Unlock(r.Context()); {
	case errors.Is(uerr, dlock.ErrOwnershipLost):
		refuse(w, uerr)
	case err != nil:
		http.Error(w, "the report could not be built", http.StatusInternalServerError)
	default:
		fmt.Fprintln(w, "built", name)
	}
}

// refuse says why there was no lock, and when to come again.
func refuse(w http.ResponseWriter, err error) {
	status, text, retry := http.StatusServiceUnavailable, "no lock can be had now", "5" // the server is silent or not ready
	switch {
	case errors.Is(err, dlock.ErrLockHeldByOther): // nothing is wrong
		status, text, retry = http.StatusConflict, "somebody builds this report now", "1"
	case errors.Is(err, dlock.ErrOwnershipLost): // another may have built it at the same time
		text, retry = "the lock was lost, the report may be incomplete", "1"
	case errors.Is(err, dlock.ErrInvalidKey):
		http.Error(w, "no report has such a name", http.StatusBadRequest)
		return
	}
	w.Header().Set("Retry-After", retry)
	http.Error(w, text, status)
}
