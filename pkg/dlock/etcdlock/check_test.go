package etcdlock_test

import (
	"strconv"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// Endpoints of two clusters are two stores of locks.
func TestCheckTwoClusters(t *testing.T) {
	t.Parallel()
	one, other := testenv.Etcd(t), testenv.Etcd(t)
	wantFindings(t, locksAt(t, one.Endpoint()), map[string]dlock.Level{"cluster": dlock.LevelOK, "space": dlock.LevelOK})
	findings := wantFindings(t, locksAt(t, one.Endpoint(), other.Endpoint()), map[string]dlock.Level{"cluster": dlock.LevelUnsafe})
	if f := findingOf(t, findings, "cluster"); !strings.Contains(f.Detail, "2 clusters") {
		t.Errorf("%+v", f)
	}
}

// Check names a member that is nearly full before it stops accepting locks.
func TestCheckSpace(t *testing.T) {
	t.Parallel()
	// Each write is committed at once, so that the size is the true one whenever it is read.
	server := testenv.Etcd(t, "--quota-backend-bytes", "4194304", "--backend-batch-limit", "1")
	client, c := dial(t, server.Endpoint()), locksAt(t, server.Endpoint())
	wantFindings(t, c, map[string]dlock.Level{"space": dlock.LevelOK})
	for i := 0; used(t, client, server.Endpoint()) < 4194304*83/100; i++ {
		_, err := client.Put(t.Context(), "ballast/"+strconv.Itoa(i), strings.Repeat("y", 64<<10))
		check(t, err)
	}
	findings := wantFindings(t, c, map[string]dlock.Level{"alarms": dlock.LevelOK, "space": dlock.LevelWarning})
	if f := findingOf(t, findings, "space"); !strings.Contains(f.Detail, "% of the quota") {
		t.Errorf("%+v", f)
	}
}

func used(t *testing.T, client *clientv3.Client, endpoint string) int64 {
	t.Helper()
	st, err := client.Status(t.Context(), endpoint)
	check(t, err)
	return st.DbSize
}
