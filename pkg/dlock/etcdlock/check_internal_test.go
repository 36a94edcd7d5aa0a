package etcdlock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Check recommends a TTL of ten round trips, and at least five seconds. It warns if the servers are
// far away.
func TestCheckRecommendsATTL(t *testing.T) {
	t.Parallel()
	proxy := testenv.Proxy(t, testenv.Etcd(t).Addr())
	d, _ := openInternal(t, "http://"+proxy.Addr())
	for _, delay := range []time.Duration{0, 600 * time.Millisecond} {
		proxy.Delay(delay, 0)
		f, err := d.roundTrip(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		median := durationAfter(t, f.Detail, "median ")
		if median < delay {
			t.Errorf("a round trip of %v, with a delay of %v", median, delay)
		}
		if (f.Level == driver.Warning) != (median > slowTrip) {
			t.Errorf("level %v for %v", f.Level, median)
		}
		ttl, want := durationAfter(t, f.Fix, "choose a TTL of at least "), max(10*median, 5*time.Second)
		if off := (ttl - want).Abs(); off > 2*time.Millisecond { // both are rounded
			t.Errorf("%q for a round trip of %v, want %v", f.Fix, median, want)
		}
	}
}

func durationAfter(t *testing.T, text, prefix string) time.Duration {
	t.Helper()
	digits, ok := strings.CutPrefix(text, prefix)
	d, err := time.ParseDuration(digits)
	if !ok || err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return d
}

// A finding has a level, and its advice says what to do.
func wantFinding(t *testing.T, what any, f driver.Finding, level driver.Level, advice string) {
	t.Helper()
	if f.Level != level || !strings.Contains(f.Fix, advice) || (advice == "") != (f.Fix == "") {
		t.Errorf("%v: %v, want %v and advice with %q", what, f, level, advice)
	}
}

// Check knows the releases that are not safe.
func TestReleasesThatAreNotSafe(t *testing.T) {
	const old, leader = "nor maintained", "cut off"
	for version, fix := range map[string]string{
		"2.9.99": old, "3.3.27": old, "3.4.0": leader, "3.4.30": leader, "3.4.31": "", "3.5.0": leader, "3.5.12": leader,
		"3.5.13": "", "3.5.9-rc.1": leader, "3.6.0-rc.1": "", "3.6.0": "", "4.0.0": "", "": old,
	} {
		level := driver.OK
		if fix != "" {
			level = driver.Unsafe
		}
		wantFinding(t, version, judgeVersion(version), level, fix)
	}
}

// Check counts the members that vote, and the endpoints of the client.
func TestNumberOfMembers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		voters, learners, endpoints int
		level                       driver.Level
		fix                         string
	}{
		{1, 0, 1, driver.Warning, "three or five"},
		{2, 1, 2, driver.Warning, "three or five"},
		{3, 0, 2, driver.OK, ""},
		{3, 1, 2, driver.OK, ""},
		{3, 0, 1, driver.Warning, "all members"},
		{4, 0, 4, driver.Warning, "odd number"},
		{5, 0, 5, driver.OK, ""},
	} {
		client, err := clientv3.New(clientv3.Config{Endpoints: strings.Fields(strings.Repeat("127.0.0.1:1 ", c.endpoints)), Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		var members []*pb.Member
		for i := range c.voters + c.learners {
			members = append(members, &pb.Member{IsLearner: i >= c.voters})
		}
		wantFinding(t, c, (&etcdDriver{client: client}).members(members), c.level, c.fix)
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestEndpointsOfOneCluster(t *testing.T) {
	member := func(cluster uint64) *clientv3.StatusResponse {
		return (*clientv3.StatusResponse)(&pb.StatusResponse{Header: &pb.ResponseHeader{ClusterId: cluster}})
	}
	wantFinding(t, "one", oneCluster([]*clientv3.StatusResponse{member(7), member(7)}), driver.OK, "")
	wantFinding(t, "two", oneCluster([]*clientv3.StatusResponse{member(7), member(8), member(7)}), driver.Unsafe, "one cluster")
}

// fakeMaintenance answers with alarms, or an error.
type fakeMaintenance struct {
	clientv3.Maintenance
	alarms []pb.AlarmType
	err    error
}

func (m fakeMaintenance) AlarmList(context.Context) (*clientv3.AlarmResponse, error) {
	resp := &clientv3.AlarmResponse{}
	for _, a := range m.alarms {
		resp.Alarms = append(resp.Alarms, &pb.AlarmMember{Alarm: a})
	}
	return resp, m.err
}

// A user without the root role may not read alarms, which is no problem. Any other failure to read them is.
func TestAlarms(t *testing.T) {
	for _, c := range []struct {
		fakeMaintenance
		level driver.Level
		fix   string
	}{
		{fakeMaintenance{}, driver.OK, ""},
		{fakeMaintenance{alarms: []pb.AlarmType{pb.AlarmType_NOSPACE}}, driver.Unsafe, "disarm"},
		{fakeMaintenance{alarms: []pb.AlarmType{pb.AlarmType_CORRUPT}}, driver.Unsafe, "replace the corrupt"},
		{fakeMaintenance{err: rpctypes.ErrPermissionDenied}, driver.OK, ""},
		{fakeMaintenance{err: errors.New("broken")}, driver.Warning, "alarm list"},
	} {
		d := &etcdDriver{client: &clientv3.Client{Maintenance: c.fakeMaintenance}}
		f := d.alarms(t.Context())
		wantFinding(t, c.fakeMaintenance, f, c.level, c.fix)
		if (c.err != nil) != strings.Contains(f.Detail, "not known") {
			t.Errorf("%+v: %q", c.fakeMaintenance, f.Detail)
		}
	}
}
