package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// sentinelAsk limits one request to one sentinel, which may be paused.
const sentinelAsk = 500 * time.Millisecond

// Master returns the master according to the first sentinel that answers. During a failover it may
// be a dead server.
func (s *Sentinel) Master(ctx context.Context) (*Redis, error) {
	var errs []error
	for _, sentinel := range s.sentinels {
		master, err := s.masterSeenBy(ctx, sentinel)
		if err == nil {
			return master, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no sentinel knows the master: %w", errors.Join(errs...))
}

func (s *Sentinel) masterSeenBy(ctx context.Context, sentinel *Redis) (*Redis, error) {
	var addr string
	err := askSentinel(ctx, sentinel, func(ctx context.Context, c *redis.SentinelClient) error {
		pair, err := c.GetMasterAddrByName(ctx, MasterName).Result()
		if err == nil {
			addr = net.JoinHostPort(pair[0], pair[1])
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if node := byAddr(s.data, addr); node != nil {
		return node, nil
	}
	return nil, fmt.Errorf("sentinel %s names a stranger: %s", sentinel.Addr(), addr)
}

func askSentinel(ctx context.Context, sentinel *Redis, ask func(context.Context, *redis.SentinelClient) error) error {
	if !sentinel.Running() {
		return fmt.Errorf("sentinel %s does not run", sentinel.Addr())
	}
	ctx, cancel := context.WithTimeout(ctx, sentinelAsk)
	defer cancel()
	client := redis.NewSentinelClient(sentinel.options(sentinel.Addr()))
	defer client.Close()
	return ask(ctx, client)
}

// Replicas returns all servers except the current master, including dead ones.
func (s *Sentinel) Replicas(ctx context.Context) ([]*Redis, error) {
	master, err := s.Master(ctx)
	if err != nil {
		return nil, err
	}
	var replicas []*Redis
	for _, node := range s.data {
		if node != master {
			replicas = append(replicas, node)
		}
	}
	return replicas, nil
}

// KillMaster kills the current master and returns it, for a later Restart. AwaitFailover returns
// when there is a new one.
func (s *Sentinel) KillMaster(ctx context.Context) (*Redis, error) {
	master, err := s.Master(ctx)
	if err != nil {
		return nil, err
	}
	return master, master.Kill()
}

// AwaitFailover waits until every running sentinel names the same master, which is not old, and
// that server agrees; it returns the new master. No sentinel may be paused.
func (s *Sentinel) AwaitFailover(ctx context.Context, old *Redis) (*Redis, error) {
	var master *Redis
	err := await(ctx, "failover from "+old.Addr(), func(ctx context.Context) (err error) {
		master, err = s.agreed(ctx)
		if err == nil && master == old {
			return errors.New("the old master is still named")
		}
		return err
	})
	return master, err
}

// agreed returns the master if all running sentinels name the same one and it knows that it is the
// master.
func (s *Sentinel) agreed(ctx context.Context) (*Redis, error) {
	var master *Redis
	for _, sentinel := range s.sentinels {
		if !sentinel.Running() {
			continue
		}
		seen, err := s.masterSeenBy(ctx, sentinel)
		if err != nil {
			return nil, err
		}
		if master != nil && seen != master {
			return nil, errors.New("the sentinels disagree")
		}
		master = seen
	}
	if master == nil || !master.Running() {
		return nil, errors.New("no sentinel or no master runs")
	}
	ctx, cancel := context.WithTimeout(ctx, sentinelAsk)
	defer cancel()
	info, err := master.info(ctx, "replication")
	if err != nil {
		return nil, err
	}
	if role := infoField(info, "role"); role != "master" {
		return nil, fmt.Errorf("%s is a %s", master.Addr(), role)
	}
	return master, nil
}

// awaitKnown waits until every sentinel sees a healthy master, all replicas
// with a working link to it, and all other sentinels.
func (s *Sentinel) awaitKnown(ctx context.Context) error {
	for _, sentinel := range s.sentinels {
		err := await(ctx, "sentinel "+sentinel.Addr(), func(ctx context.Context) error {
			return askSentinel(ctx, sentinel, s.known)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Sentinel) known(ctx context.Context, client *redis.SentinelClient) error {
	master, err := client.Master(ctx, MasterName).Result()
	if err != nil {
		return err
	}
	if got := master["flags"]; got != "master" {
		return fmt.Errorf("master is %s", got)
	}
	if got := master["num-other-sentinels"]; got != strconv.Itoa(len(s.sentinels)-1) {
		return fmt.Errorf("%s other sentinels known", got)
	}
	replicas, err := client.Replicas(ctx, MasterName).Result()
	if err != nil {
		return err
	}
	ready := 0
	for _, replica := range replicas {
		if replica["flags"] == "slave" && replica["master-link-status"] == "ok" {
			ready++
		}
	}
	if ready != len(s.data)-1 {
		return fmt.Errorf("%d replicas ready: %v", ready, replicas)
	}
	return nil
}
