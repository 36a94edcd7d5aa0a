package fence_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/internal/fencetest"
	"github.com/ceyewan/genesis/pkg/dlock/fence"
)

// A service checks the token before its handler, and the handler again in the transaction that
// writes.
func newService(d *database) (http.Handler, error) {
	orders, db := d.sql, d.db
	put := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		value, err := io.ReadAll(r.Body)
		if err != nil {
			fence.Refuse(w, err)
			return
		}
		write := func(tx *sql.Tx) error { return d.put(r.Context(), tx, r.URL.Path[1:], string(value)) }
		holder, _ := fence.FromContext(r.Context())
		err = orders.Do(r.Context(), db, holder.Resource, holder.Token, write)
		if err != nil {
			fence.Refuse(w, err)
		}
	})
	return fence.NewHandler(put, orders.Checker(db))
}

func TestHTTPWithDatabase(t *testing.T) {
	t.Parallel()
	d := openSQLite(t)
	handler, err := newService(d)
	must(t, err)
	server, base := httptest.NewServer(handler), &http.Transport{}
	t.Cleanup(func() {
		base.CloseIdleConnections()
		server.Close()
	})
	client := &http.Client{Transport: &fence.Transport{Base: base}}
	fencetest.Run(t, fencetest.Resource{
		Fenced: func(ctx context.Context, name string, token int64, value string) error {
			ctx = fence.NewContext(ctx, fence.Holder{Resource: name, Token: token})
			req, err := http.NewRequestWithContext(ctx, http.MethodPut, server.URL+"/"+name, strings.NewReader(value))
			if err != nil {
				return err
			}
			resp, err := client.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("%s", resp.Status)
			}
			return err
		},
		Plain: func(ctx context.Context, name, value string) error { return d.put(ctx, d.db, name, value) },
		Read:  func(ctx context.Context, name string) (string, error) { return d.read(ctx, "value", "data", name) },
	})
}
