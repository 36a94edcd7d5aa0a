// Package connector creates Redis and etcd clients from plain configuration, and owns them: only
// the connector closes them.
//
//	conn, err := connector.NewRedis(&connector.RedisConfig{Addr: "localhost:6379"})
//	if err != nil {
//		return err
//	}
//	defer conn.Close()
//	locks, err := dlock.NewRedis(conn, &dlock.Config{Prefix: "orders:"})
//
// A constructor checks the configuration and touches no network. The client dials when it is first
// used. Connect tells at once whether that will work, and what is wrong if it will not.
//
// The package links both clients. To link only one of them, pass your own client to redislock.New,
// redlock.New or etcdlock.New.
package connector
