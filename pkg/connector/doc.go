// Package connector makes clients of Redis and etcd from plain configuration, and
// owns them: nobody else closes them.
//
//	conn, err := connector.NewRedis(&connector.RedisConfig{Addr: "localhost:6379"})
//	if err != nil {
//		return err
//	}
//	defer conn.Close()
//	locks, err := dlock.NewRedis(conn, &dlock.Config{Prefix: "orders:"})
//
// A constructor checks the configuration and touches no network. The client dials
// when it is first used; Connect is there for those who want to know at once
// whether that will work, and what is wrong if it will not.
//
// The package links both clients. Who wants only one of them gives his own to
// redislock.New, redlock.New or etcdlock.New.
package connector
