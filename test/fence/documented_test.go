package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/fence"
	"github.com/ceyewan/genesis/pkg/dlock/fence/etcdfence"
	"github.com/ceyewan/genesis/pkg/dlock/fence/redisfence"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// The functions below are quoted by docs/fencing.md and by comments of package fence.

func shipInSQL(ctx context.Context, db *sql.DB, guard *dlock.Guard) error {
	orders := fence.SQL{Dialect: fence.PostgreSQL, Table: "fences"}
	err := orders.Do(ctx, db, "order:123", guard.Token(), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE orders SET state = 'shipped' WHERE id = 123")
		return err
	})
	if errors.Is(err, fence.ErrStale) {
		return err // another process has the lock: stop
	}
	return err
}

func shipInTransaction(ctx context.Context, tx *sql.Tx, orders fence.SQL, guard *dlock.Guard) error {
	if err := orders.Check(ctx, tx, "order:123", guard.Token()); err != nil {
		return err // roll back
	}
	_, err := tx.ExecContext(ctx, "UPDATE orders SET state = 'shipped' WHERE id = 123")
	return err
}

// shipScript counts what was shipped: KEYS stock, ARGV amount.
var shipScript = redisfence.NewScript(`return redis.call('DECRBY', KEYS[1], ARGV[1])`)

func shipInRedis(ctx context.Context, client redis.UniversalClient, guard *dlock.Guard) (int, error) {
	left, err := shipScript.Run(ctx, client, "{stock}:fence", guard.Token(), []string{"{stock}"}, 5).Int()
	if err != nil {
		return 0, err
	}
	err = redisfence.Set(ctx, client, "{stock}:fence", guard.Token(), "{stock}:state", "shipped", 0)
	return left, err
}

func shipInEtcd(ctx context.Context, client *clientv3.Client, guard *dlock.Guard) error {
	_, err := etcdfence.Commit(ctx, client, "fences/order:123", guard.Token(),
		clientv3.OpPut("orders/123/state", "shipped"), clientv3.OpDelete("orders/123/reserved"))
	return err
}

func shipByFile(ctx context.Context, path string, guard *dlock.Guard) error {
	return fence.WriteFile(ctx, path, []byte("shipped"), 0o600, guard.Token())
}

func shipByHTTP(ctx context.Context, url string, guard *dlock.Guard) (*http.Response, error) {
	client := &http.Client{Transport: &fence.Transport{}}
	ctx = fence.NewContext(ctx, fence.Holder{Resource: guard.Key(), Token: guard.Token()})
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, strings.NewReader("shipped"))
	if err != nil {
		return nil, err
	}
	return client.Do(req) // errors.Is(err, fence.ErrStale): another process has the lock
}

func newShippingHandler(orders fence.SQL, db *sql.DB, write func(*sql.Tx) error) (http.Handler, error) {
	ship := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		holder, _ := fence.FromContext(r.Context())
		err := orders.Do(r.Context(), db, holder.Resource, holder.Token, write)
		if err != nil {
			fence.Refuse(w, err)
		}
	})
	handler, err := fence.NewHandler(ship, orders.Checker(db))
	return handler, err
}

// guards returns a guard that was evicted without noticing, and the next one.
func guards(t *testing.T) (stale, current *dlock.Guard) {
	t.Helper()
	locks, err := dlock.New(&dlock.Config{}, dlock.WithBackend(memlock.New()), dlock.WithAdmin())
	must(t, err)
	t.Cleanup(func() { must(t, locks.Close()) })
	admin, err1 := locks.Admin()
	stale, err2 := locks.Acquire(t.Context(), "order:123", dlock.WithoutRenewal())
	must(t, err1, err2, admin.Evict(t.Context(), "order:123", stale.Token()))
	current, err = locks.Acquire(t.Context(), "order:123")
	must(t, err)
	return stale, current
}

// expect checks that the write of the current holder passes, and then that of the stale one not.
func expect(t *testing.T, write func(*dlock.Guard) error) {
	t.Helper()
	stale, current := guards(t)
	for range 2 {
		if err := write(current); err != nil {
			t.Errorf("the holder of the lock: %v", err)
		}
		if err := write(stale); !errors.Is(err, fence.ErrStale) {
			t.Errorf("the stale holder: %v", err)
		}
	}
}

func TestDocumentedSQL(t *testing.T) {
	t.Parallel()
	d := startPostgreSQL(t)
	_, err := d.db.ExecContext(t.Context(), "CREATE TABLE orders (id INT PRIMARY KEY, state TEXT); INSERT INTO orders VALUES (123, 'new')")
	must(t, err)
	expect(t, func(g *dlock.Guard) error { return shipInSQL(t.Context(), d.db, g) })
	orders := fence.SQL{Dialect: fence.PostgreSQL, Table: "shop.fences"}
	must(t, orders.Create(t.Context(), d.db))
	expect(t, func(g *dlock.Guard) error {
		tx, err := d.db.BeginTx(t.Context(), nil)
		must(t, err)
		defer func() { _ = tx.Rollback() }()
		if err := shipInTransaction(t.Context(), tx, orders, g); err != nil {
			return err
		}
		return tx.Commit()
	})
}

func TestDocumentedRedis(t *testing.T) {
	t.Parallel()
	client := testenv.Redis(t).Client()
	defer client.Close()
	expect(t, func(g *dlock.Guard) error {
		_, err := shipInRedis(t.Context(), client, g)
		return err
	})
	if left, err := client.Get(t.Context(), "{stock}").Int(); left != -10 || err != nil {
		t.Errorf("%d are left, %v", left, err)
	}
}

func TestDocumentedEtcd(t *testing.T) {
	t.Parallel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{testenv.Etcd(t).Endpoint()}, Logger: zap.NewNop()})
	must(t, err)
	defer client.Close()
	expect(t, func(g *dlock.Guard) error { return shipInEtcd(t.Context(), client, g) })
}

func TestDocumentedFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state")
	expect(t, func(g *dlock.Guard) error { return shipByFile(t.Context(), path, g) })
	if text, err := os.ReadFile(path); string(text) != "shipped" || err != nil {
		t.Errorf("the file has %q, %v", text, err)
	}
}

func TestDocumentedHTTP(t *testing.T) { // not parallel: it closes the connections of the default transport
	d := openSQLite(t)
	handler, err := newShippingHandler(d.sql, d.db, func(tx *sql.Tx) error { return d.put(t.Context(), tx, "order:123", "shipped") })
	must(t, err)
	server := httptest.NewServer(handler)
	defer server.Close()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	expect(t, func(g *dlock.Guard) error {
		resp, err := shipByHTTP(t.Context(), server.URL, g)
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			t.Errorf("status %s", resp.Status)
		}
		return resp.Body.Close()
	})
}
