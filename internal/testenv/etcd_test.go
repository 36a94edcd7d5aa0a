package testenv

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/servers"
)

func TestEtcdEndsWithTheTest(t *testing.T) {
	var nodes []*servers.Etcd
	t.Run("inner", func(t *testing.T) {
		alone, cluster := Etcd(t), EtcdCluster(t)
		nodes = append(cluster.Nodes(), alone)
	})
	if nodes == nil {
		t.Skip("etcd is not installed, so the inner test was skipped")
	}
	for _, node := range nodes {
		if node.Running() {
			t.Error("a server outlived its test")
		}
	}
}

func TestUnaskedEndOfEtcdFailsTheTest(t *testing.T) {
	Etcd(t) // skip here where there is none
	w := observe(t, func(tb testing.TB) {
		etcd := Etcd(tb)
		process, err := os.FindProcess(etcd.Pid())
		if err == nil {
			err = process.Kill()
		}
		if err != nil {
			tb.Fatal(err)
		}
		Eventually(tb, time.Minute, "the server ends", func() bool { return !etcd.Running() })
	})
	if !strings.Contains(w.failed, "ended by itself") {
		t.Errorf("failed %q", w.failed)
	}
}

func TestArgsReachEtcd(t *testing.T) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{Etcd(t, "--max-txn-ops", "1").Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_, err = client.Txn(t.Context()).Then(clientv3.OpGet("a"), clientv3.OpGet("b")).Commit()
	if err == nil || !strings.Contains(err.Error(), "too many operations") {
		t.Errorf("two operations: %v", err)
	}
}

func TestEtcdctl(t *testing.T) {
	etcd := Etcd(t)
	out, err := exec.CommandContext(t.Context(), Etcdctl(t), "--endpoints", etcd.Endpoint(), "put", "key", "value").CombinedOutput()
	if strings.TrimSpace(string(out)) != "OK" || err != nil {
		t.Errorf("etcdctl says %q, %v", out, err)
	}
}
