package etcdlock

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A watch that the client could not continue has ended, and the reason is known: changes of its key
// are no longer seen.
func TestFailedWatchHasEnded(t *testing.T) {
	c := &clientWatches{responses: make(chan *pb.WatchResponse, 1)}
	for _, tt := range []struct {
		resp  clientv3.WatchResponse
		ended bool
	}{
		{clientv3.WatchResponse{}, false},
		{clientv3.WatchResponse{Created: true}, false},
		{clientv3.WatchResponse{CompactRevision: 5}, true},
		{clientv3.WatchResponse{Canceled: true}, true},
	} {
		c.pass(t.Context(), 7, tt.resp)
		got := <-c.responses
		if got.WatchId != 7 || got.Created != tt.resp.Created || got.Canceled != tt.ended || (got.CancelReason != "") != tt.ended {
			t.Errorf("%+v is passed on as %+v", tt.resp, got)
		}
	}
}
