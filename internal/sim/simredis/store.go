package simredis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/ceyewan/genesis/internal/sim"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A Store keeps the locks of a simulation on real servers.
type Store struct {
	sim     *sim.Simulation
	open    func([]redis.UniversalClient) driver.Opener
	servers []*Server
	clients []redis.UniversalClient
	admin   driver.Driver
}

// NewStore empties the servers and makes a Store of them. open makes a backend of a client
// for each.
func NewStore(s *sim.Simulation, addrs []string, open func([]redis.UniversalClient) driver.Opener) (*Store, error) {
	m := &Store{sim: s, open: open}
	for _, addr := range addrs {
		server, err := New(s, addr)
		if err != nil {
			return nil, err
		}
		server.Called = m.look
		m.servers = append(m.servers, server)
	}
	var err error
	m.admin, err = m.direct().Open(driver.Options{})
	return m, err
}

// Server is one of the servers.
func (m *Store) Server(i int) *Server { return m.servers[i] }

func (m *Store) look(keys string) {
	for _, known := range sim.Keys() {
		if strings.Contains(keys, known) {
			m.sim.Look(known)
		}
	}
}

// direct is a backend past the network.
func (m *Store) direct() driver.Opener {
	var all []redis.UniversalClient
	for i, s := range m.servers {
		all = append(all, m.client(i, s.Direct()))
	}
	return m.open(all)
}

func (m *Store) client(node int, dial Dialer) *redis.Client {
	r := m.sim.Draw("client", len(m.clients))
	c := redis.NewClient(&redis.Options{
		Addr: fmt.Sprintf("simulated-%d:6379", node), Dialer: dial, DisableIdentity: true, MaxRetries: -1 + r.IntN(2)*4,
		ContextTimeoutEnabled: r.IntN(4) > 0, DialTimeout: 2 * time.Second, DialerRetries: 1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	m.clients = append(m.clients, c)
	return c
}

// Backend is reached in one of two ways. In even runs whole calls of the driver are
// delayed, lost and repeated, and each then is alone at the server. In odd runs connections
// are, and the client's pool and pipelines take part.
func (m *Store) Backend(string) driver.Opener {
	if m.sim.Seed%2 == 0 {
		return m.sim.Remote(m.direct())
	}
	var all []redis.UniversalClient
	for i, s := range m.servers {
		all = append(all, m.client(i, s.Over(m.sim.NextLink())))
	}
	return m.open(all)
}

// Claims are what is stored under a key.
func (m *Store) Claims(key string) []driver.Claim {
	claims, err := m.admin.(driver.Admin).Inspect(context.Background(), key)
	if err != nil {
		panic(err) // nothing stands between
	}
	return claims
}

// Evict removes a claim.
func (m *Store) Evict(key, id string, token int64) {
	_, _ = m.admin.(driver.Admin).Evict(context.Background(), key, id, token)
}

// Advance moves the servers' clocks ahead of the Clients'.
func (m *Store) Advance(d time.Duration) {
	for _, s := range m.servers {
		s.Advance(d)
	}
}

// Close ends the Store. An error makes the simulation void.
func (m *Store) Close() error {
	_ = m.admin.Close()
	for _, c := range m.clients {
		_ = c.Close()
	}
	var all []error
	for _, s := range m.servers {
		all = append(all, s.Close())
	}
	return errors.Join(all...)
}
