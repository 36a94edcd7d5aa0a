package servers

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"
)

// startAll starts n servers concurrently. On an error it returns those that did start, for the
// caller to stop.
func startAll(ctx context.Context, n int, start func(context.Context) (*Redis, error)) ([]*Redis, error) {
	nodes, errs := make([]*Redis, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { nodes[i], errs[i] = start(ctx) })
	}
	wg.Wait()
	var up []*Redis
	for _, node := range nodes {
		if node != nil {
			up = append(up, node)
		}
	}
	return up, errors.Join(errs...)
}

// stopAll stops the servers concurrently.
func stopAll[S interface{ Stop() error }](nodes []S) error {
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, node := range nodes {
		wg.Go(func() { errs[i] = node.Stop() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func byAddr(nodes []*Redis, addr string) *Redis {
	for _, node := range nodes {
		if node.Addr() == addr {
			return node
		}
	}
	return nil
}

func addrs(nodes []*Redis) []string {
	var all []string
	for _, node := range nodes {
		all = append(all, node.Addr())
	}
	return all
}

// exec sends commands whose answers matter only if they are errors.
func (r *Redis) exec(ctx context.Context, commands ...[]any) error {
	client := r.Client()
	defer client.Close()
	for _, command := range commands {
		if err := client.Do(ctx, command...).Err(); err != nil && !errors.Is(err, redis.Nil) {
			return fmt.Errorf("%v at %s: %w", command, r.Addr(), err)
		}
	}
	return nil
}

func (r *Redis) info(ctx context.Context, section string) (string, error) {
	client := r.Client()
	defer client.Close()
	return client.Info(ctx, section).Result()
}

// onNode queries one server through a new client.
func onNode[T any](ctx context.Context, node *Redis, ask func(context.Context, *redis.Client) (T, error)) (T, error) {
	client := node.Client()
	defer client.Close()
	answer, err := ask(ctx, client)
	if err != nil {
		return answer, fmt.Errorf("redis %s: %w", node.Addr(), err)
	}
	return answer, nil
}

// onAny queries the running servers until one answers; a paused one does not use up the time of the
// others.
func onAny[T any](ctx context.Context, nodes []*Redis, ask func(context.Context, *redis.Client) (T, error)) (answer T, err error) {
	err = errors.New("no server runs")
	for _, node := range nodes {
		if !node.Running() {
			continue
		}
		timeout, cancel := context.WithTimeout(ctx, askTimeout)
		answer, err = onNode(timeout, node, ask)
		cancel()
		if err == nil {
			return answer, nil
		}
	}
	return answer, err
}
