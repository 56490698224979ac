package embeddedetcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/klog/v2"
)

const (
	// A single member needs no heartbeats to agree with itself; the election timeout is only how long it waits at start
	// before it elects itself. etcd's defaults (100 ms, 1 s) are for networks and would be most of our start time.
	tickMs     = 10
	electionMs = 100

	// etcd keeps this many raft entries in memory for followers that lag, which a single member does not have. With the
	// default of 5,000, a hundred writes of a 335 KB definition hold 37 MB of heap.
	snapshotCatchUpEntries = 200
	// snapshotCount is how many entries are replayed at most when the process starts.
	snapshotCount = 2000

	// progressEvery is how often a watch that has nothing to tell says how far it is, if it was asked to: before what its client knows
	// is compacted, after five minutes.
	progressEvery = time.Minute

	// DefaultQuotaBytes is the largest that etcd recommends.
	DefaultQuotaBytes = 8 << 30

	lockFile = "atoll.lock"
	dataDir  = "data"
)

// Options say how to start an etcd in this process.
type Options struct {
	// Dir is the data directory, made when missing. One process at a time may use it.
	Dir string
	// ClientPort and PeerPort, when not 0, open TLS listeners on loopback, for etcdctl and for taking the member into a
	// cluster. They need all of CertFile, KeyFile and CAFile; clients must show a certificate of that CA.
	ClientPort, PeerPort      int
	CertFile, KeyFile, CAFile string
	// QuotaBytes is the size of the store at which it refuses writes; 0 means DefaultQuotaBytes.
	QuotaBytes int64

	// Of tests; without them they are mostlyFreeFor and syncDir.
	mostlyFreeFor time.Duration
	syncDir       func(dir string) error
}

// Etcd is an open store.
type Etcd struct {
	// Client talks to the store: in process when embedded, else over gRPC. It is valid until Stop.
	Client *clientv3.Client

	stopOnce sync.Once
	stop     func() error
	stopErr  error
	failed   chan error // for what may be sent before anybody listens: one of the server, one of its file, one of the format
	// Of the checksums, and of the file; nil: others run the store.
	keeper *keeper
	space  *spaceHolder
}

// Stop closes the client and, if it runs in this process, the server, and releases the data directory. Callers stop
// whatever uses the client first. Further calls return the first result.
func (e *Etcd) Stop() error {
	e.stopOnce.Do(func() { e.stopErr = e.stop() })
	return e.stopErr
}

// Failed delivers an error if the store must not be used any more: the embedded server ended by itself, or another
// process gave the store another format.
func (e *Etcd) Failed() <-chan error { return e.failed }

// Damage returns an error if rows of the store are known not to be what was written. Of an external one that is not known here.
func (e *Etcd) Damage() error {
	if e.keeper == nil {
		return nil
	}
	return e.keeper.found()
}

// opened is an Etcd over a store whose format has been checked, which from now on watches that it stays. stop closes the
// client and what lies below. failed takes one error more than others send to it.
func opened(client *clientv3.Client, stop func() error, failed chan error) *Etcd {
	ctx, cancel := context.WithCancel(client.Ctx())
	e := &Etcd{Client: client, failed: failed}
	var holding sync.WaitGroup
	holding.Go(func() {
		if err := holdFormat(ctx, client); err != nil {
			e.failed <- err
		}
	})
	e.stop = func() error {
		cancel()
		holding.Wait()
		return stop()
	}
	return e
}

// Start starts an etcd in this process and returns when it serves. It refuses a directory that another process uses
// and a store that is damaged or of a format that this binary does not know.
func Start(ctx context.Context, o Options) (_ *Etcd, err error) {
	if o.Dir == "" {
		return nil, errors.New("start embedded etcd: no data directory given")
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("start embedded etcd: %w", err)
	}
	unlock, err := lockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			unlock()
		}
	}()

	if err := notRestoring(o.Dir); err != nil {
		return nil, err
	}
	cfg, err := config(o)
	if err != nil {
		return nil, fmt.Errorf("start embedded etcd in %s: %w", o.Dir, err)
	}
	started := time.Now()
	found, err := examine(klog.FromContext(ctx), o.Dir)
	if err != nil {
		return nil, fmt.Errorf("start embedded etcd in %s: %w", o.Dir, err)
	}
	server, err := startEtcd(cfg, o.Dir)
	if err != nil {
		return nil, fmt.Errorf("start embedded etcd in %s: %w", o.Dir, err)
	}
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		server.Close()
		return nil, fmt.Errorf("start embedded etcd in %s: %w", o.Dir, err)
	case <-ctx.Done():
		server.Close()
		return nil, fmt.Errorf("start embedded etcd in %s: not ready after %v: %w", o.Dir, time.Since(started).Round(time.Millisecond), ctx.Err())
	}

	sums := newKeeper(server.Server, o.Dir, found)
	err = sums.missing()
	space := &spaceHolder{
		server: server.Server, dir: o.Dir, sums: sums, snapshots: &sync.RWMutex{}, listens: o.ClientPort != 0 || o.PeerPort != 0, syncDir: syncDir,
		saving: thrift{after: cmp.Or(o.mostlyFreeFor, mostlyFreeFor)},
	}
	if o.syncDir != nil {
		space.syncDir = o.syncDir
	}
	if err == nil {
		err = space.open(ctx)
	}
	if err != nil {
		server.Close()
		return nil, fmt.Errorf("start embedded etcd in %s: %w", o.Dir, err)
	}
	client := newClient(server.Server, space.snapshots)
	holdCtx, endHolding := context.WithCancel(context.WithoutCancel(ctx))
	failed := make(chan error, 3)
	var holding sync.WaitGroup
	holding.Go(func() {
		if err := space.hold(holdCtx); err != nil {
			failed <- fmt.Errorf("the embedded etcd in %s may not be used any more: %w", o.Dir, err)
		}
	})
	holding.Go(func() { sums.run(holdCtx) })
	stop := func() error {
		endHolding()
		holding.Wait()
		// The server goes first: the streams of an in-process client end with it, while closing the client of a
		// running server waits for every watcher to be cancelled one by one.
		server.Close()
		closeErr := ignoreCanceled(client.Close())
		unlock()
		if closeErr != nil {
			return fmt.Errorf("stop embedded etcd in %s: %w", o.Dir, closeErr)
		}
		return nil
	}
	if err := checkFormat(ctx, client); err != nil {
		return nil, errors.Join(fmt.Errorf("open the store in %s: %w", o.Dir, err), stop())
	}
	klog.FromContext(ctx).Info("Embedded etcd serves", "dir", o.Dir, "after", time.Since(started).Round(time.Millisecond))
	etcd := opened(client, stop, failed)
	etcd.keeper, etcd.space = sums, space
	go func() {
		if err, ok := <-server.Err(); ok { // closed when the server is
			etcd.failed <- fmt.Errorf("embedded etcd ended: %w", err)
		}
	}()
	return etcd, nil
}

// startEtcd is embed.StartEtcd with its panics as errors: what it does with files that it cannot make sense of.
func startEtcd(cfg *embed.Config, dir string) (server *embed.Etcd, err error) {
	defer func() {
		if found := recover(); found != nil {
			err = errors.New(whyEnded(dir, fmt.Sprint(found), nil))
		}
	}()
	// Without its log etcd would begin a new one, and wait for ever for what it takes for applied already.
	store, logs := filepath.Join(cfg.Dir, "member", "snap", "db"), filepath.Join(cfg.Dir, "member", "wal", "*.wal")
	found, err := filepath.Glob(logs)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(store); err == nil && len(found) == 0 && !neverWritten(cfg.Dir) {
		return nil, errors.New(whyEnded(dir, "there is a store and no log", nil))
	}
	return embed.StartEtcd(cfg)
}

// config is the whole configuration of the member; it touches nothing.
func config(o Options) (*embed.Config, error) {
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(o.Dir, dataDir)
	cfg.Name = "atoll"
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	// fsync stays on: what was acknowledged survives kill -9 and power loss.
	cfg.UnsafeNoFsync = false
	cfg.TickMs, cfg.ElectionMs = tickMs, electionMs
	cfg.SnapshotCount, cfg.SnapshotCatchUpEntries = snapshotCount, snapshotCatchUpEntries
	cfg.QuotaBackendBytes = cmp.Or(o.QuotaBytes, DefaultQuotaBytes)
	// The API server compacts, because its caches must know what was compacted.
	cfg.AutoCompactionRetention = "0"
	cfg.WatchProgressNotifyInterval = progressEvery
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(newLogger(o.Dir))

	// The member's peer URL is a name only, in its own membership; nothing listens there.
	cfg.ListenPeerUrls, cfg.ListenClientUrls, cfg.ListenClientHttpUrls = nil, nil, nil
	cfg.AdvertiseClientUrls = nil
	if o.ClientPort == 0 && o.PeerPort == 0 {
		return cfg, nil
	}
	if o.CertFile == "" || o.KeyFile == "" || o.CAFile == "" {
		return nil, fmt.Errorf("client port %d and peer port %d need a certificate, a key and a CA: whoever reaches the port reads every Secret", o.ClientPort, o.PeerPort)
	}
	listen := func(port int) url.URL {
		return url.URL{Scheme: "https", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	}
	if o.ClientPort != 0 {
		cfg.ListenClientUrls = []url.URL{listen(o.ClientPort)}
		cfg.AdvertiseClientUrls = cfg.ListenClientUrls
		cfg.ClientTLSInfo.CertFile, cfg.ClientTLSInfo.KeyFile, cfg.ClientTLSInfo.TrustedCAFile = o.CertFile, o.KeyFile, o.CAFile
		cfg.ClientTLSInfo.ClientCertAuth = true
	}
	if o.PeerPort != 0 {
		cfg.ListenPeerUrls = []url.URL{listen(o.PeerPort)}
		cfg.PeerTLSInfo.CertFile, cfg.PeerTLSInfo.KeyFile, cfg.PeerTLSInfo.TrustedCAFile = o.CertFile, o.KeyFile, o.CAFile
		cfg.PeerTLSInfo.ClientCertAuth = true
	}
	return cfg, nil
}
