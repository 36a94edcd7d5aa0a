package connector_test

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

func ExampleNewRedis() {
	conn, err := connector.NewRedis(&connector.RedisConfig{
		Addrs:      []string{"sentinel-a:26379", "sentinel-b:26379", "sentinel-c:26379"},
		MasterName: "mymaster",
		TLS:        &connector.TLSConfig{CAFile: "/etc/redis/ca.pem"},
	}, connector.WithRedisLockOptions(redislock.WithMinReplicas(1, 200*time.Millisecond)))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	locks, err := dlock.NewRedis(conn, &dlock.Config{Prefix: "orders:"})
	if err != nil {
		log.Print(err)
		return
	}
	defer locks.Close() // conn stays open
}

func ExampleEtcd_Connect() {
	conn, err := connector.NewEtcd(&connector.EtcdConfig{
		Endpoints: []string{"https://etcd-a:2379", "https://etcd-b:2379", "https://etcd-c:2379"},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	switch err := conn.Connect(context.Background()); {
	case errors.Is(err, connector.ErrDenied), errors.Is(err, connector.ErrTLS):
		log.Print("waiting will not help: ", err)
	case err != nil:
		log.Print("the first lock tries again: ", err)
	}
}
