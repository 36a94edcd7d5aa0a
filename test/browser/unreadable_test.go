package browser

import (
	"net/url"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// When the backend is down, a lock is not shown as free, and what was read before says so.
func TestLockOfBackendThatIsDown(t *testing.T) {
	server := testenv.Redis(t)
	conn := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer conn.Close()
	c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(redislock.New(conn)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.TryAcquire(t.Context(), "held", dlock.WithTTL(time.Hour), dlock.WithoutRenewal()); err != nil {
		t.Fatal(err)
	}
	backend := "redis://" + server.Addr()
	page := serve(t, nil, "--backend", backend) + "#/lock/" + url.QueryEscape(backend)
	held, free := openTab(t, light, page+"/held"), openTab(t, light, page+"/free")
	free.expect("502")
	const answer = `document.querySelector(".answer")?.textContent`
	held.await("the holder", answer+`?.startsWith("Held by")`)
	free.await("a free lock", answer+` === "The lock is free."`)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	held.await("what was last read", `/When last read, \d+ s ago:Held by/.test(`+answer+`)`)
	free.await("that it is not known", answer+`.includes("it is not known whether the lock is free") && !document.getElementById("view-lock").innerText.includes("None")`)
	if err := server.Restart(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	free.await("a free lock again", answer+` === "The lock is free." && document.getElementById("view-lock").innerText.includes("Holders")`)
	held.await("a new answer", `!/last read/.test(`+answer+`)`)
}
