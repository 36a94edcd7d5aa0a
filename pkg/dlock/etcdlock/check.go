package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Check examines the members that the client knows for states that make locks unsafe. It needs no
// permissions, except that reading alarms needs the root role if etcd has authentication enabled.
func (d *etcdDriver) Check(ctx context.Context) ([]driver.Finding, error) {
	var all []driver.Finding
	var reached []*clientv3.StatusResponse
	for _, endpoint := range d.client.Endpoints() {
		f, st, err := d.checkMember(ctx, endpoint)
		if err == nil {
			reached = append(reached, st)
		} else if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		all = append(all, f)
	}
	if len(reached) == 0 {
		return nil, fmt.Errorf("%w: no member answers", driver.ErrUnavailable)
	}
	all = append(all, oneCluster(reached), space(reached))
	limited, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), clusterTimeout)
	defer cancel()
	whole, err := d.checkCluster(limited)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		err = fmt.Errorf("%w: no answer within %v", driver.ErrNotReady, clusterTimeout)
	}
	return append(all, whole...), err
}

// checkCluster examines what needs the agreement of the members.
func (d *etcdDriver) checkCluster(ctx context.Context) ([]driver.Finding, error) {
	members, err := d.client.MemberList(ctx)
	if err != nil {
		return nil, classify(err)
	}
	trip, err := d.roundTrip(ctx)
	if err != nil {
		return nil, classify(err)
	}
	return []driver.Finding{d.members(members.Members), d.alarms(ctx), trip}, nil
}

// memberTimeout limits the answer of a single member, clusterTimeout that of the whole cluster.
const (
	memberTimeout  = 2 * time.Second
	clusterTimeout = 5 * time.Second
)

func (d *etcdDriver) checkMember(ctx context.Context, endpoint string) (driver.Finding, *clientv3.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	st, err := d.client.Status(ctx, endpoint)
	if err != nil {
		return driver.Finding{
			Level: driver.Warning, Name: "member", Detail: endpoint + " does not answer: " + err.Error(),
			Fix: "see to it that the member runs and can be reached, or take it out of the client's endpoints",
		}, nil, err
	}
	f := judgeVersion(st.Version)
	f.Detail = endpoint + " runs " + f.Detail
	if st.Leader == 0 && f.Level == driver.OK {
		f.Level, f.Detail, f.Fix = driver.Unsafe, f.Detail+" and has no leader", "restore the quorum: without it no lock is granted, renewed or released"
	}
	return f, st, nil
}

// oneCluster finds endpoints of different clusters: each cluster would grant every lock.
func oneCluster(members []*clientv3.StatusResponse) driver.Finding {
	var ids []uint64
	for _, st := range members {
		if !slices.Contains(ids, st.Header.ClusterId) {
			ids = append(ids, st.Header.ClusterId)
		}
	}
	f := driver.Finding{Name: "cluster", Detail: "the endpoints belong to one cluster"}
	if n := len(ids); n > 1 {
		f.Level, f.Detail = driver.Unsafe, fmt.Sprintf("the endpoints belong to %d clusters", n)
		f.Fix = "give the client the endpoints of one cluster: each of them gives the same lock to another client"
	}
	return f
}

// nearlyFull is the share of its quota from which a member gets a warning.
const nearlyFull = 0.8

// space reports how near the fullest member is to the alarm that stops all locks. A server before
// 3.6 does not report its quota.
func space(members []*clientv3.StatusResponse) driver.Finding {
	var fullest float64
	for _, st := range members {
		if st.DbSizeQuota > 0 {
			fullest = max(fullest, float64(st.DbSize)/float64(st.DbSizeQuota))
		}
	}
	f := driver.Finding{Name: "space", Detail: fmt.Sprintf("%.0f%% of the quota in use", 100*fullest)}
	switch {
	case fullest == 0:
		f.Detail = "the quota is not known"
	case fullest > nearlyFull:
		f.Level, f.Fix = driver.Warning, "compact and defragment, or raise the quota: a full member takes no locks"
	}
	return f
}

// judgeVersion knows the releases in which a former leader could revoke live leases.
func judgeVersion(version string) driver.Finding {
	f := driver.Finding{Name: "version", Detail: "etcd " + version}
	part := strings.SplitN(version, ".", 3)
	number := [3]int{}
	for i := range part {
		digits, _, _ := strings.Cut(part[i], "-")
		number[i], _ = strconv.Atoi(digits)
	}
	switch {
	case slices.Compare(number[:], []int{3, 4, 0}) < 0:
		f.Level, f.Fix = driver.Unsafe, "use etcd 3.5.13 or newer: this one is neither tested nor maintained"
	case number[1] == 4 && number[2] < 31, number[1] == 5 && number[2] < 13:
		f.Level, f.Fix = driver.Unsafe, "use etcd 3.4.31, 3.5.13 or newer: before, a leader that was cut off could revoke the leases of living holders"
	}
	return f
}

func (d *etcdDriver) members(all []*pb.Member) driver.Finding {
	voters := 0
	for _, m := range all {
		if !m.IsLearner {
			voters++
		}
	}
	endpoints := len(d.client.Endpoints())
	f := driver.Finding{Name: "members", Detail: fmt.Sprintf("%d voting members, %d endpoints in the client", voters, endpoints)}
	switch {
	case voters < 3:
		f.Level, f.Fix = driver.Warning, "run three or five members: with fewer, the loss of one stops all locks"
	case voters%2 == 0:
		f.Level, f.Fix = driver.Warning, "run an odd number of members: one more does not survive more failures"
	case endpoints < 2:
		f.Level, f.Fix = driver.Warning, "give the client the endpoints of all members: if the one it knows is cut off, so are its locks"
	}
	return f
}

func (d *etcdDriver) alarms(ctx context.Context) driver.Finding {
	f := driver.Finding{Name: "alarms", Detail: "none"}
	resp, err := d.client.AlarmList(ctx)
	if err != nil {
		f.Detail = "not known: " + err.Error()
		if !errors.Is(classify(err), driver.ErrDenied) {
			f.Level, f.Fix = driver.Warning, "look with: etcdctl alarm list"
		}
		return f
	}
	for _, a := range resp.Alarms {
		f.Level, f.Detail = driver.Unsafe, a.Alarm.String()
		f.Fix = "compact and defragment, raise the quota, then: etcdctl alarm disarm"
		if a.Alarm == pb.AlarmType_CORRUPT {
			f.Fix = "members differ in their data: replace the corrupt one"
		}
	}
	return f
}

// slowTrip is the round trip from which the usual TTL of a few seconds is less than ten round
// trips.
const slowTrip = 200 * time.Millisecond

// roundTrip measures reads that need the agreement of the cluster.
func (d *etcdDriver) roundTrip(ctx context.Context) (driver.Finding, error) {
	var trips []time.Duration
	for range 5 {
		start := time.Now()
		if _, err := d.client.Get(ctx, d.tombstoneKey("check"), clientv3.WithCountOnly()); err != nil {
			return driver.Finding{}, err
		}
		trips = append(trips, time.Since(start))
	}
	slices.Sort(trips)
	median := trips[len(trips)/2]
	f := driver.Finding{Name: "round-trip", Detail: "median " + median.Round(time.Microsecond).String()}
	f.Fix = "choose a TTL of at least " + max(10*median, 5*time.Second).Round(time.Millisecond).String()
	if median > slowTrip {
		f.Level = driver.Warning
	}
	return f, nil
}
