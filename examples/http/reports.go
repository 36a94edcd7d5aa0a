package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// reports builds a report for each request, under a lock named after the report.
type reports struct {
	locks *dlock.Client
	wait  time.Duration // short, because a waiting request keeps its connection open
	build func(ctx context.Context, name string) error
}

func (s *reports) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	guard, err := s.locks.Acquire(r.Context(), "report:"+name, dlock.WithWait(s.wait))
	if err != nil {
		refuse(w, err)
		return
	}
	// The work stops when the client disconnects or the lock is lost.
	ctx, cancel := guard.WithContext(r.Context())
	defer cancel()
	err = s.build(ctx, name)
	// Unlock releases the lock even if the client has disconnected, and reports a loss that
	// the work did not notice.
	switch uerr := guard.Unlock(r.Context()); {
	case errors.Is(uerr, dlock.ErrOwnershipLost):
		refuse(w, uerr)
	case err != nil:
		http.Error(w, "the report could not be built", http.StatusInternalServerError)
	default:
		fmt.Fprintln(w, "built", name)
	}
}

// refuse reports why there is no lock, and when to retry.
func refuse(w http.ResponseWriter, err error) {
	status, text, retry := http.StatusServiceUnavailable, "no lock can be had now", "5" // the backend does not answer or is not ready
	switch {
	case errors.Is(err, dlock.ErrLockHeldByOther): // not a failure
		status, text, retry = http.StatusConflict, "this report is being built", "1"
	case errors.Is(err, dlock.ErrOwnershipLost): // another request may have built it at the same time
		text, retry = "the lock was lost, the report may be incomplete", "1"
	case errors.Is(err, dlock.ErrInvalidKey):
		http.Error(w, "no report has such a name", http.StatusBadRequest)
		return
	}
	w.Header().Set("Retry-After", retry)
	http.Error(w, text, status)
}
