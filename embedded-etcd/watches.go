package embeddedetcd

import (
	"context"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"google.golang.org/grpc"
)

// newClient is v3client.New with watches that do not end up waiting for each other.
//
// One goroutine of etcd's client reads what a stream of watches answers, and asks for what it wants on it. Over a network there is room for
// hundreds of requests on the way; in a process there is none, and for answers there is room for 16. So if some twenty watches end before the
// first answer is read, which takes one busy CPU, the client waits for the server to take the next request, and the server for the client to
// read: no watch of the stream tells anything any more (https://github.com/etcd-io/etcd/issues/18879).
func newClient(server *etcdserver.EtcdServer, snapshots *sync.RWMutex) *clientv3.Client {
	client := v3client.New(server)
	client.Watcher = clientv3.NewWatchFromWatchClient(watchClient{adapter.WatchServerToWatchClient(v3rpc.NewWatchServer(server))}, client)
	client.Maintenance = maintenance{client.Maintenance, snapshots}
	return client
}

// watchClient opens streams whose Send does not wait.
type watchClient struct{ pb.WatchClient }

func (c watchClient) Watch(ctx context.Context, opts ...grpc.CallOption) (pb.Watch_WatchClient, error) {
	stream, err := c.WatchClient.Watch(ctx, opts...)
	if err != nil {
		return nil, err
	}
	return &watchStream{Watch_WatchClient: stream}, nil
}

// watchStream keeps requests, in their order, until the server takes them.
type watchStream struct {
	pb.Watch_WatchClient

	mu      sync.Mutex
	waiting []*pb.WatchRequest
	sending bool // somebody sends what waits
}

func (s *watchStream) Send(request *pb.WatchRequest) error {
	if err := s.Context().Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, request)
	if !s.sending {
		s.sending = true
		go s.send()
	}
	return nil
}

// send ends when nothing waits any more, or the stream has ended, which its reader is told.
func (s *watchStream) send() {
	for {
		s.mu.Lock()
		if len(s.waiting) == 0 {
			s.sending = false
			s.mu.Unlock()
			return
		}
		requests := s.waiting
		s.waiting = nil
		s.mu.Unlock()
		for _, request := range requests {
			if s.Watch_WatchClient.Send(request) != nil {
				return
			}
		}
	}
}
