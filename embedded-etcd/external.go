package embeddedetcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"k8s.io/klog/v2"
)

const (
	// A member that does not answer any more, without a word, is left for another after 10 + 5 s; until then what is asked of it
	// waits, and watches that it serves are silent. Upstream's API server allows 30 + 10 s. Neither the client nor an etcd
	// takes much less than 10 s.
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
	dialTimeout      = 20 * time.Second
	// An etcd that is well answers in a fraction of this. Who starts a server on one that does not is told so, while it goes on to
	// try: etcd may be starting, too.
	toldAfter = 2 * time.Second

	// balancing of requests between members: each has its turn, as the client of etcd has it anyway.
	balancing = `{"loadBalancingPolicy": "round_robin"}`
)

// ExternalOptions say how to reach an etcd that somebody else runs.
type ExternalOptions struct {
	// Endpoints are URLs, for instance https://10.0.0.1:2379. At least one.
	Endpoints []string
	// CertFile, KeyFile and CAFile are PEM files; all empty for plain text.
	CertFile, KeyFile, CAFile string
}

// Connect opens a client to an external etcd and returns when the store has answered once, for which it waits 20 s at most. It
// refuses a store of a format that this binary does not know. The log says when etcd is waited for, and later when no member of it
// answers any more, and when one does again.
func Connect(ctx context.Context, o ExternalOptions) (*Etcd, error) {
	if len(o.Endpoints) == 0 {
		return nil, errors.New("connect to etcd: no endpoints given")
	}
	cfg := clientv3.Config{
		Endpoints:            o.Endpoints,
		DialKeepAliveTime:    keepaliveTime,
		DialKeepAliveTimeout: keepaliveTimeout,
		Logger:               zap.NewNop(), // errors come back from the calls
		DialOptions: []grpc.DialOption{
			// Wait for a connection, and if there is none say why: a call would only say that its time is over.
			//lint:ignore SA1019 the client dials in the way that knows it
			grpc.WithReturnConnectionError(),
			// What the client chooses by itself, but a moment after it has begun to connect: it then gives the first connection up and
			// makes another, and each good start would warn of one that failed.
			grpc.WithDefaultServiceConfig(balancing),
		},
	}
	if o.CertFile != "" || o.KeyFile != "" || o.CAFile != "" {
		tls, err := transport.TLSInfo{CertFile: o.CertFile, KeyFile: o.KeyFile, TrustedCAFile: o.CAFile}.ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("connect to etcd at %s: %w", strings.Join(o.Endpoints, ","), err)
		}
		cfg.TLS = tls
	}
	endpoints, logger := strings.Join(o.Endpoints, ","), klog.FromContext(ctx)
	patience := dialTimeout
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, max(time.Until(deadline), time.Millisecond))
	}
	// The client lives on when ctx has ended, but does not go on dialling.
	clientCtx, cancelClient := context.WithCancel(context.WithoutCancel(ctx))
	cfg.Context = clientCtx
	goOn := context.AfterFunc(ctx, cancelClient)
	cfg.DialTimeout = min(patience, toldAfter)
	client, err := clientv3.New(cfg)
	if why, waited := unanswered(err, o); waited && patience > toldAfter && ctx.Err() == nil {
		logger.Info("Waiting for etcd", "endpoints", endpoints, "atMost", patience, "because", why)
		cfg.DialTimeout = patience - toldAfter
		client, err = clientv3.New(cfg)
	}
	if err != nil {
		goOn()
		cancelClient()
		why, _ := unanswered(err, o)
		return nil, fmt.Errorf("connect to etcd at %s: %w", endpoints, why)
	}
	if !goOn() {
		return nil, errors.Join(fmt.Errorf("connect to etcd at %s: %w", endpoints, ctx.Err()), ignoreCanceled(client.Close()))
	}
	var telling sync.WaitGroup
	telling.Go(func() { tellOfOutages(clientCtx, client.ActiveConnection(), endpoints) })
	stop := func() error {
		defer telling.Wait()
		defer cancelClient()
		return client.Close()
	}
	first, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if err = notFull(first, client); err == nil {
		err = checkFormat(first, client)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the store at %s: %w", endpoints, err), stop())
	}
	return opened(client, stop, make(chan error, 1)), nil
}

// notFull returns an error if an etcd takes no writes because it is full: a server writes before it serves. The first member that answers
// says; one that does not counts as not full: what it refuses is told by who asks.
func notFull(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	endpoints := client.Endpoints()
	answers := make(chan *clientv3.StatusResponse, len(endpoints))
	for _, endpoint := range endpoints {
		go func() {
			status, _ := client.Status(ctx, endpoint) // nil of one that is away
			answers <- status
		}()
	}
	for range endpoints {
		status := <-answers
		if status == nil {
			continue
		}
		if !slices.ContainsFunc(status.Errors, func(alarm string) bool { return strings.Contains(alarm, pb.AlarmType_NOSPACE.String()) }) {
			return nil
		}
		return fmt.Errorf("the etcd is full: %d bytes are in use, and it may have %d. Compact and defragment it, or give it more (etcd's --quota-backend-bytes), then end its alarm "+
			"(`etcdctl alarm disarm`), start again and delete what is not needed; nothing that was acknowledged is lost", status.DbSizeInUse, status.DbSizeQuota)
	}
	return nil
}

// tellOfOutages logs, until ctx ends, when there is no connection to any member of the etcd any more, and when there is one again. gRPC
// would warn of every attempt.
func tellOfOutages(ctx context.Context, conn *grpc.ClientConn, endpoints string) {
	away := false
	for {
		state := conn.GetState()
		switch {
		case state == connectivity.Shutdown:
			return
		case state == connectivity.TransientFailure && !away:
			away = true
			klog.FromContext(ctx).Info("No member of etcd answers any more; trying again and again", "endpoints", endpoints)
		case state == connectivity.Ready && away:
			away = false
			klog.FromContext(ctx).Info("A member of etcd answers again", "endpoints", endpoints)
		}
		if !conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// unanswered puts into words what the client says of an etcd, and whether that is that it did not reach it while it had time:
//
//	context deadline exceeded
//	context deadline exceeded: connection error: desc = "transport: Error while dialing: dial tcp ..."
//	context canceled: write tcp ...: write: broken pipe
func unanswered(err error, o ExternalOptions) (why error, waited bool) {
	if err == nil {
		return nil, false
	}
	words := err.Error()
	if words == context.DeadlineExceeded.Error() {
		words, waited = "no answer: is the address right, and does nothing on the way keep this machine out?", true
	}
	for _, ended := range []error{context.DeadlineExceeded, context.Canceled} {
		if rest, found := strings.CutPrefix(words, ended.Error()+": "); found {
			words, waited = rest, true
		}
	}
	if !waited {
		return err, false
	}
	if _, quoted, found := strings.Cut(words, "desc = "); found {
		if unquoted, err := strconv.Unquote(quoted); err == nil {
			words = unquoted
		}
	}
	words = strings.TrimPrefix(strings.TrimPrefix(words, "transport: "), "Error while dialing: ")
	if strings.Contains(words, syscall.ECONNREFUSED.Error()) {
		words += ": is it running there?"
	}
	if o.CertFile == "" && o.CAFile != "" {
		// Whether the refusal itself or the connection that it breaks is seen first is chance.
		words += " (no client certificate is given, and an etcd may require one)"
	}
	return errors.New(words), true
}

// ignoreCanceled drops the error with which a client closes whose context has ended.
func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
