package etcdlock

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A watchStream carries many watches, each for the deletion of one key, starting now.
type watchStream interface {
	create(id int64, key string) error
	drop(id int64) error
	askProgress() error // for any response, to see that the stream is alive
	receive() (*pb.WatchResponse, error)
}

// A rawWatchStream is etcd's own stream. The client's Watch would cost a goroutine for each key.
type rawWatchStream struct{ pb.Watch_WatchClient }

func openRawWatch(watcher pb.WatchClient) func(context.Context) (watchStream, error) {
	return func(ctx context.Context) (watchStream, error) {
		stream, err := watcher.Watch(ctx)
		if err != nil {
			return nil, err
		}
		return rawWatchStream{stream}, nil
	}
}

func (r rawWatchStream) create(id int64, key string) error {
	return r.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		WatchId: id, Key: []byte(key), Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT},
	}}})
}

func (r rawWatchStream) drop(id int64) error {
	return r.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: id}}})
}

func (r rawWatchStream) askProgress() error {
	return r.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
}

func (r rawWatchStream) receive() (*pb.WatchResponse, error) { return r.Recv() }

// clientWatches consists of single watches of the client, for a client without a connection.
type clientWatches struct {
	ctx       context.Context
	driver    *etcdDriver
	ends      map[int64]context.CancelFunc
	responses chan *pb.WatchResponse
}

func openClientWatches(d *etcdDriver) func(context.Context) (watchStream, error) {
	return func(ctx context.Context) (watchStream, error) {
		return &clientWatches{ctx: ctx, driver: d, ends: map[int64]context.CancelFunc{}, responses: make(chan *pb.WatchResponse)}, nil
	}
}

func (c *clientWatches) create(id int64, key string) error {
	ctx, cancel := context.WithCancel(c.ctx)
	c.ends[id] = cancel
	c.driver.work.Go(func() {
		for resp := range c.driver.client.Watch(ctx, key, clientv3.WithCreatedNotify(), clientv3.WithFilterPut()) {
			c.pass(ctx, id, resp)
		}
		if ctx.Err() == nil {
			c.pass(ctx, id, clientv3.WatchResponse{Canceled: true})
		}
	})
	return nil
}

func (c *clientWatches) pass(ctx context.Context, id int64, resp clientv3.WatchResponse) {
	out := &pb.WatchResponse{Header: resp.Header, WatchId: id, Created: resp.Created, Canceled: resp.Canceled, Events: resp.Events}
	if err := resp.Err(); err != nil {
		out.Canceled, out.CancelReason = true, err.Error()
	}
	select {
	case c.responses <- out:
	case <-ctx.Done():
	}
}

func (c *clientWatches) drop(id int64) error {
	c.ends[id]()
	delete(c.ends, id)
	return nil
}

// askProgress answers itself: the server is in this process.
func (c *clientWatches) askProgress() error {
	c.driver.work.Go(func() { c.pass(c.ctx, 0, clientv3.WatchResponse{}) })
	return nil
}

func (c *clientWatches) receive() (*pb.WatchResponse, error) {
	select {
	case resp := <-c.responses:
		return resp, nil
	case <-c.ctx.Done():
		return nil, c.ctx.Err()
	}
}
