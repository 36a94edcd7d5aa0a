package peer

import (
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const etcdClient = "go.etcd.io/etcd/client/v3"

// dialEtcd returns a client with a connection of its own and without a log.
func dialEtcd(addr string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{"http://" + addr}, Logger: zap.NewNop()})
}
