package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

func exampleClient() *dlock.Client {
	c, err := dlock.New(&dlock.Config{Backend: "memory"}, dlock.WithBackend(memlock.New()), dlock.WithAdmin())
	if err != nil {
		panic(err)
	}
	return c
}

func ExampleNew() {
	c, err := dlock.New(&dlock.Config{Backend: "memory", DefaultTTL: 5 * time.Second}, dlock.WithBackend(memlock.New()))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(c.Close())
	// Output: <nil>
}

func ExampleClient_Lock() {
	c := exampleClient()
	defer func() { _ = c.Close() }()
	ctx := context.Background()
	if err := c.Lock(ctx, "order:123"); err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = c.Unlock(ctx, "order:123") }()
	fmt.Println("working")
	// Output: working
}

func ExampleClient_TryLock() {
	c, ctx := exampleClient(), context.Background()
	defer func() { _ = c.Close() }()
	guard, _ := c.Acquire(ctx, "nightly")
	ok, err := c.TryLock(ctx, "nightly")
	fmt.Println(ok, err)
	_ = guard.Unlock(ctx)
	ok, err = c.TryLock(ctx, "nightly")
	fmt.Println(ok, err)
	// Output:
	// false <nil>
	// true <nil>
}

func ExampleClient_Unlock() {
	c, ctx := exampleClient(), context.Background()
	defer func() { _ = c.Close() }()
	err := c.Unlock(ctx, "never locked")
	fmt.Println(errors.Is(err, dlock.ErrLockNotHeld))
	// Output: true
}

func ExampleClient_Acquire() {
	c, ctx := exampleClient(), context.Background()
	defer func() { _ = c.Close() }()
	guard, err := c.Acquire(ctx, "account:7", dlock.WithTTL(30*time.Second), dlock.WithWait(time.Minute))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = guard.Unlock(ctx) }()
	fmt.Println(guard.Key(), guard.Token(), guard.Context().Err())
	// Output: account:7 1 <nil>
}

func ExampleClient_TryAcquire() {
	c, ctx := exampleClient(), context.Background()
	defer func() { _ = c.Close() }()
	_, _ = c.Acquire(ctx, "k", dlock.WithInfo(dlock.Info{Owner: "api-7"}))
	_, err := c.TryAcquire(ctx, "k")
	var e *dlock.Error
	if errors.Is(err, dlock.ErrLockHeldByOther) && errors.As(err, &e) {
		fmt.Println("held by", e.Holder.Info.Owner)
	}
	// Output: held by api-7
}

func ExampleClient_Do() {
	c, ctx := exampleClient(), context.Background()
	defer func() { _ = c.Close() }()
	err := c.Do(ctx, "report", func(ctx context.Context) error {
		guard, _ := dlock.FromContext(ctx)
		fmt.Println("token", guard.Token())
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// token 1
	// <nil>
}

func ExampleClient_Held() {
	c, ctx := exampleClient(), context.Background()
	defer func() { _ = c.Close() }()
	_ = c.Lock(ctx, "k")
	guard, ok := c.Held("k")
	fmt.Println(guard.Token(), ok)
	// Output: 1 true
}

func ExampleOwnerContext() {
	c, _ := dlock.New(&dlock.Config{EnableReentrant: true}, dlock.WithBackend(memlock.New()))
	defer func() { _ = c.Close() }()
	ctx := dlock.OwnerContext(context.Background())
	fmt.Println(c.Lock(ctx, "k"), c.Lock(ctx, "k"))
	fmt.Println(errors.Is(c.Lock(context.Background(), "k"), dlock.ErrLockAlreadyHeld))
	fmt.Println(c.Unlock(ctx, "k"), c.Unlock(ctx, "k"))
	// Output:
	// <nil> <nil>
	// true
	// <nil> <nil>
}

func ExampleGuard_Extend() {
	c, ctx := exampleClient(), context.Background()
	defer func() { _ = c.Close() }()
	guard, _ := c.Acquire(ctx, "k", dlock.WithTTL(time.Second), dlock.WithoutRenewal())
	fmt.Println(guard.Extend(ctx, time.Minute), guard.Remaining() > 50*time.Second)
	// Output: <nil> true
}

func ExampleGuard_WithContext() {
	c := exampleClient()
	defer func() { _ = c.Close() }()
	guard, _ := c.Acquire(context.Background(), "k")
	request, cancelRequest := context.WithCancel(context.Background())
	ctx, cancel := guard.WithContext(request) // ends with the request, or with the lock
	defer cancel()
	cancelRequest()
	<-ctx.Done()
	fmt.Println(ctx.Err(), guard.Unlock(context.Background()))
	// Output: context canceled <nil>
}

func ExampleAdmin_Evict() {
	c, ctx := exampleClient(), context.Background()
	defer func() { _ = c.Close() }()
	guard, _ := c.Acquire(ctx, "k")
	admin, _ := c.Admin()
	claims, _ := admin.Inspect(ctx, "k")
	fmt.Println(admin.Evict(ctx, "k", claims[0].Token))
	<-guard.Done()
	fmt.Println(errors.Is(context.Cause(guard.Context()), dlock.ErrOwnershipLost))
	// Output:
	// <nil>
	// true
}
