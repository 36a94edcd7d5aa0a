package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/ceyewan/genesis/internal/lockreader"
	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// An eviction is the body of a request to take a lock away from its holder.
type eviction struct {
	Source  string `json:"source"`
	Key     string `json:"key"`
	Token   string `json:"token"`   // of the holder that the user saw
	Confirm string `json:"confirm"` // the key, typed by the user
}

const (
	maxBody     = 16 << 10
	bodyTimeout = 10 * time.Second
)

// evict takes a lock away. It needs a body of JSON, which no form of another site can send.
func (h *Handler) evict(w http.ResponseWriter, r *http.Request) {
	if !h.settings.evict {
		fail(w, http.StatusForbidden, "evict_off", "this page is read-only: the operator enables evictions with --evict or WithEvict")
		return
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		fail(w, http.StatusUnsupportedMediaType, "not_json", "the Content-Type must be application/json")
		return
	}
	var e eviction
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	body.DisallowUnknownFields()
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // some writers of tests and proxies have none
	err := body.Decode(&e)
	_ = control.SetReadDeadline(time.Time{})
	if err != nil {
		fail(w, http.StatusBadRequest, "bad_body", "the body is no eviction: "+err.Error())
		return
	}
	token := number(e.Token)
	switch {
	case token < 1:
		fail(w, http.StatusBadRequest, "bad_token", "the token of the holder is missing")
		return
	case e.Confirm != e.Key || e.Key == "":
		fail(w, http.StatusBadRequest, "not_confirmed", "the confirmation differs from the key")
		return
	}
	p := h.named(w, e.Source)
	if p == nil {
		return
	}
	leave, ok := h.enter(w)
	if !ok {
		fail(w, http.StatusServiceUnavailable, "closed", "the page is closed")
		return
	}
	defer leave()
	a := &attempt{Handler: h, poller: p, key: e.Key, token: token, by: h.settings.operator(r), addr: r.RemoteAddr}
	a.evict(w, r)
}

// number reads a token; 0 if it is none.
func number(token string) int64 {
	n, err := strconv.ParseInt(token, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// An attempt is one eviction. Who makes it is asked first: a function of the service must not fail
// between the eviction and its record.
type attempt struct {
	*Handler
	poller   *poller
	key      string
	token    int64
	by, addr string
}

func (a *attempt) evict(w http.ResponseWriter, r *http.Request) {
	p, key, token := a.poller, a.key, a.token
	ctx, cancel := context.WithTimeout(r.Context(), lockreader.Timeout)
	defer cancel()
	defer a.whenClosed(cancel)()
	victim, held, err := p.holder(ctx, key, token)
	switch {
	case err != nil && !lockreader.IsUsage(err):
		a.record(resultRefused, victim.Info, err)
		fail(w, http.StatusBadGateway, "backend", "the backend failed, and nothing was changed: "+err.Error())
		return
	case err != nil:
	case !held:
		err = fmt.Errorf("%w with token %d", dlock.ErrLockNotHeld, token)
	default:
		if cannot := lockreader.CannotEvict(p.client.Backend(), key, victim.Token, victim.Info); cannot != nil {
			a.record(resultRefused, victim.Info, cannot)
			fail(w, http.StatusUnprocessableEntity, "cannot_evict", cannot.Error())
			return
		}
		p.tally.evictCalls.Add(1)
		err = p.admin.Evict(ctx, key, token)
	}
	switch {
	case err == nil:
		a.record(resultEvicted, victim.Info, nil)
		answer(w, http.StatusOK, map[string]string{"result": "evicted"})
	case errors.Is(err, dlock.ErrLockNotHeld):
		a.record(resultRefused, victim.Info, err)
		fail(w, http.StatusConflict, "stale_token", "the lock has passed on since you saw it: nothing was changed")
	case lockreader.IsUsage(err):
		a.record(resultRefused, victim.Info, err)
		fail(w, http.StatusUnprocessableEntity, "cannot_evict", err.Error())
	default:
		a.record(resultUnknown, victim.Info, err)
		fail(w, http.StatusBadGateway, "backend", "the backend failed, and the holder may have been evicted: "+err.Error())
	}
}

// holder finds the holder that has the token.
func (p *poller) holder(ctx context.Context, key string, token int64) (found dlock.Claim, held bool, err error) {
	claims, err := p.reader.Inspect(ctx, key)
	for i := range claims {
		c := &claims[i]
		if c.Phase != dlock.PhaseHeld {
			continue
		}
		if p.client.Backend() == dlock.BackendFile || (token >= c.Token && token <= max(c.Token, c.LastToken)) {
			return *c, true, nil
		}
	}
	return found, false, err
}

// The results of an eviction, as lockreader.EvictionRecord names them.
const (
	resultEvicted = "evicted"
	resultRefused = "refused"
	resultUnknown = "unknown"
)

// record logs and counts the attempt. The command dlock logs it the same way.
func (a *attempt) record(result string, victim dlock.Info, err error) {
	a.poller.tally.eviction(result)
	fields := append(lockreader.EvictionRecord(result, a.poller.name, a.key, a.token, victim),
		clog.String("by", a.by), clog.String("by_addr", a.addr))
	if err != nil {
		fields = append(fields, clog.Error(err))
	}
	a.settings.log.Warn(lockreader.EvictionMessage, fields...)
}
