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

// Check looks at the members that the client knows for what makes locks unsafe. It
// needs no rights but, for the alarms, those of root where etcd has users.
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
	bounded, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), clusterBound)
	defer cancel()
	whole, err := d.checkCluster(bounded)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		err = fmt.Errorf("%w: no answer within %v", driver.ErrNotReady, clusterBound)
	}
	return append(all, whole...), err
}

// checkCluster looks at what takes the agreement of the members.
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

// memberBound is how long a single member may take to answer, clusterBound all of
// them together.
const (
	memberBound  = 2 * time.Second
	clusterBound = 5 * time.Second
)

func (d *etcdDriver) checkMember(ctx context.Context, endpoint string) (driver.Finding, *clientv3.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, memberBound)
	defer cancel()
	st, err := d.client.Status(ctx, endpoint)
	if err != nil {
		return driver.Finding{
			Level: driver.Warning, Name: "member", Detail: endpoint + " does not answer: " + err.Error(),
			Cure: "see to it that the member runs and can be reached, or take it out of the client's endpoints",
		}, nil, err
	}
	f := judgeVersion(st.Version)
	f.Detail = endpoint + " runs " + f.Detail
	if st.Leader == 0 && f.Level == driver.OK {
		f.Level, f.Detail, f.Cure = driver.Unsafe, f.Detail+" and has no leader", "restore the quorum: without it no lock is granted, renewed or released"
	}
	return f, st, nil
}

// oneCluster finds endpoints that do not belong together: each of their clusters
// would give out every lock.
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
		f.Cure = "give the client the endpoints of one cluster: each of them gives the same lock to somebody else"
	}
	return f
}

// nearlyFull is how much of its quota a member may use before it is worth a word.
const nearlyFull = 0.8

// space judges how near the fullest member is to the alarm that stops all locks. A
// server before 3.6 does not tell its quota.
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
		f.Level, f.Cure = driver.Warning, "compact and defragment, or raise the quota: a full member takes no locks"
	}
	return f
}

// judgeVersion knows the releases in which a leader that has lost its office could
// revoke leases that live.
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
		f.Level, f.Cure = driver.Unsafe, "use etcd 3.5.13 or newer: this one is neither tested nor maintained"
	case number[1] == 4 && number[2] < 31, number[1] == 5 && number[2] < 13:
		f.Level, f.Cure = driver.Unsafe, "use etcd 3.4.31, 3.5.13 or newer: before, a leader that was cut off could revoke the leases of living holders"
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
		f.Level, f.Cure = driver.Warning, "run three or five members: with fewer, the loss of one stops all locks"
	case voters%2 == 0:
		f.Level, f.Cure = driver.Warning, "run an odd number of members: one more does not survive more failures"
	case endpoints < 2:
		f.Level, f.Cure = driver.Warning, "give the client the endpoints of all members: if the one it knows is cut off, so are its locks"
	}
	return f
}

func (d *etcdDriver) alarms(ctx context.Context) driver.Finding {
	f := driver.Finding{Name: "alarms", Detail: "none"}
	resp, err := d.client.AlarmList(ctx)
	if err != nil {
		f.Detail = "not known: " + err.Error()
		if !errors.Is(classify(err), driver.ErrDenied) {
			f.Level, f.Cure = driver.Warning, "look with: etcdctl alarm list"
		}
		return f
	}
	for _, a := range resp.Alarms {
		f.Level, f.Detail = driver.Unsafe, a.Alarm.String()
		f.Cure = "compact and defragment, raise the quota, then: etcdctl alarm disarm"
		if a.Alarm == pb.AlarmType_CORRUPT {
			f.Cure = "members differ in their data: replace the corrupt one"
		}
	}
	return f
}

// slowTrip is a round trip with which the usual TTL of some seconds is less than
// ten of them.
const slowTrip = 200 * time.Millisecond

// roundTrip measures reads that need the agreement of the cluster.
func (d *etcdDriver) roundTrip(ctx context.Context) (driver.Finding, error) {
	var trips []time.Duration
	for range 5 {
		start := time.Now()
		if _, err := d.client.Get(ctx, d.barKey("check"), clientv3.WithCountOnly()); err != nil {
			return driver.Finding{}, err
		}
		trips = append(trips, time.Since(start))
	}
	slices.Sort(trips)
	median := trips[len(trips)/2]
	f := driver.Finding{Name: "round-trip", Detail: "median " + median.Round(time.Microsecond).String()}
	f.Cure = "choose a TTL of at least " + max(10*median, 5*time.Second).Round(time.Millisecond).String()
	if median > slowTrip {
		f.Level = driver.Warning
	}
	return f, nil
}
