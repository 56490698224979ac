package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/grpclog"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/term"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"atoll.dev/atoll/client"
	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	"atoll.dev/atoll/internal/cli"
	"atoll.dev/atoll/internal/memory"
	"atoll.dev/atoll/server"
	"atoll.dev/atoll/server/fairness"
	"atoll.dev/atoll/workspaces"
)

// etcdOptions say which etcd to use.
type etcdOptions struct {
	external             embeddedetcd.ExternalOptions
	clientPort, peerPort int
	quotaBytes           int64
}

// validate returns every fault, each naming the flag and its value.
func (o *etcdOptions) validate() []error {
	var errs []error
	for _, endpoint := range o.external.Endpoints {
		scheme, address, found := strings.Cut(endpoint, "://")
		if !found {
			scheme, address = "http", endpoint
		}
		host, port, err := net.SplitHostPort(strings.TrimSuffix(address, "/"))
		switch {
		case strings.HasPrefix(scheme, "unix"):
		case scheme != "http" && scheme != "https", err != nil, host == "", port == "":
			errs = append(errs, fmt.Errorf("--etcd-servers %q: want a URL with a port, as https://10.0.0.1:2379", endpoint))
		}
	}
	if len(o.external.Endpoints) > 0 {
		return errs
	}
	if o.quotaBytes < minQuotaBytes {
		errs = append(errs, fmt.Errorf("--embedded-etcd-quota-bytes %d: want at least %d", o.quotaBytes, minQuotaBytes))
	}
	for _, given := range []struct{ flag, file string }{
		{"--etcd-cafile", o.external.CAFile}, {"--etcd-certfile", o.external.CertFile}, {"--etcd-keyfile", o.external.KeyFile},
	} {
		if given.file != "" {
			errs = append(errs, fmt.Errorf("%s %q: it is for an external etcd, and --etcd-servers names none", given.flag, given.file))
		}
	}
	return errs
}

// startOptions are the flags of `atoll start`.
type startOptions struct {
	server *server.Options
	etcd   etcdOptions
	logs   *logsapi.LoggingConfiguration
	// exitWithParent stops the server when its standard input ends, as it does when the process that started it dies.
	exitWithParent bool
	streams        genericiooptions.IOStreams
}

func newStartCommand(streams genericiooptions.IOStreams) *cobra.Command {
	utilruntime.Must(logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate))
	o := &startOptions{server: server.NewOptions(), logs: logsapi.NewLoggingConfiguration(), streams: streams}
	cmd := &cobra.Command{
		Use:   "start",
		Short: "Run the server: API, controllers, and the syncers of clusters added by kubeconfig",
		Long: `Run the server in the foreground until it is interrupted.

Everything it keeps is in --root-directory. The administrator's kubeconfig is written to
admin.kubeconfig there; the other commands find it by themselves in the current directory.`,
		Example: `  # Start with everything in .atoll
  atoll start

  # A second server on the same machine
  atoll start --root-directory /tmp/other --secure-port 0

  # Keep the data in an external etcd
  atoll start --etcd-servers https://10.0.0.1:2379 --etcd-cafile ca.crt --etcd-certfile client.crt --etcd-keyfile client.key`,
		Args:         exactArgs(0),
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			output := &logsapi.LoggingOptions{ErrorStream: os.Stderr, InfoStream: os.Stdout}
			if o.logs.Verbosity == 0 {
				output.ErrorStream = server.Quiet(os.Stderr)
			}
			server.QuietErrors()
			if err := logsapi.ValidateAndApplyWithOptions(o.logs, output, utilfeature.DefaultFeatureGate); err != nil {
				return err
			}
			if !klog.V(2).Enabled() {
				// gRPC warns of each attempt to connect. Whether an etcd answers is told by who connects to it (embeddedetcd.Connect).
				grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, os.Stderr))
			}
			if err := errors.Join(append(o.server.Validate(), o.etcd.validate()...)...); err != nil {
				return err
			}
			for _, warning := range o.server.Readable(server.FileOfFlag{Flag: "--etcd-keyfile", File: o.etcd.external.KeyFile}) {
				if _, err := fmt.Fprintln(o.streams.ErrOut, "Warning: "+warning); err != nil {
					return err
				}
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			if o.exitWithParent {
				go func() {
					_, _ = io.Copy(io.Discard, o.streams.In) // any end will do
					stop()
				}()
			}
			return o.run(ctx)
		},
	}
	fss := cliflag.NamedFlagSets{}
	o.server.AddFlags(&fss)
	fss.FlagSet("serving").BoolVar(&o.exitWithParent, "exit-with-parent", false, "Stop when standard input ends, so that nothing is left running when the program that started this one dies.")
	fs := fss.FlagSet("etcd")
	fs.StringSliceVar(&o.etcd.external.Endpoints, "etcd-servers", nil, "URLs of an external etcd, comma separated; without it an etcd runs in this process.")
	fs.StringVar(&o.etcd.external.CAFile, "etcd-cafile", "", "Certificate authority of the external etcd.")
	fs.StringVar(&o.etcd.external.CertFile, "etcd-certfile", "", "Client certificate for the external etcd.")
	fs.StringVar(&o.etcd.external.KeyFile, "etcd-keyfile", "", "Key of --etcd-certfile.")
	fs.IntVar(&o.etcd.clientPort, "embedded-etcd-client-port", 0, "Port on which the embedded etcd serves etcdctl on loopback, with client certificates of this server; 0 serves none.")
	fs.IntVar(&o.etcd.peerPort, "embedded-etcd-peer-port", 0, "Port on which the embedded etcd listens for peers on loopback; 0 listens on none.")
	o.etcd.quotaBytes = embeddedetcd.DefaultQuotaBytes
	fs.Var(server.Bytes(&o.etcd.quotaBytes), "embedded-etcd-quota-bytes", "Size of the embedded etcd's store at which it takes nothing new until something is deleted. etcd recommends at most 8 GiB.")
	fs = fss.FlagSet("features")
	utilfeature.DefaultMutableFeatureGate.AddFlag(fs)
	logsapi.AddFlags(o.logs, fss.FlagSet("logs"))
	for _, set := range fss.FlagSets {
		cmd.Flags().AddFlagSet(set)
	}
	cols, _, _ := term.TerminalSize(streams.Out)
	cliflag.SetUsageAndHelpFunc(cmd, fss, cols)
	return cmd
}

// run starts everything and blocks until ctx ends or a part fails.
func (o *startOptions) run(ctx context.Context) error {
	defer logs.FlushLogs()
	began := time.Now()
	fairness.UseSpareThreads()
	fairness.UseShortSlices()
	headroom := memory.NewHeadroom(0)
	defer headroom.End()
	// Where a store is already, its own lock says better who is in the way.
	if _, err := os.Stat(etcdDirectory(o.server.RootDirectory)); os.IsNotExist(err) {
		if err := server.CanListen(o.server); err != nil {
			return err
		}
	}
	etcd, err := o.openEtcd(ctx)
	if err != nil {
		return err
	}
	headroom.Set(o.headroomOfStart(ctx, etcd))
	err = o.serve(ctx, etcd, began, headroom)
	// The API server is gone: nothing uses etcd any more.
	return errors.Join(err, etcd.Stop())
}

// minQuotaBytes is twice the file of the store of an empty server.
const minQuotaBytes = 32 << 20

// etcdDirectory is where the embedded etcd keeps its data.
func etcdDirectory(root string) string { return filepath.Join(root, "etcd") }

func (o *startOptions) openEtcd(ctx context.Context) (*embeddedetcd.Etcd, error) {
	if len(o.etcd.external.Endpoints) > 0 {
		return embeddedetcd.Connect(ctx, o.etcd.external)
	}
	embedded := embeddedetcd.Options{
		Dir: etcdDirectory(o.server.RootDirectory), ClientPort: o.etcd.clientPort, PeerPort: o.etcd.peerPort,
		QuotaBytes: o.etcd.quotaBytes,
	}
	if embedded.ClientPort != 0 || embedded.PeerPort != 0 {
		files, err := server.EtcdTLS(o.server)
		if err != nil {
			return nil, err
		}
		embedded.CertFile, embedded.KeyFile, embedded.CAFile = files.Cert, files.Key, files.CA
	}
	return embeddedetcd.Start(ctx, embedded)
}

// headroomOfStart is the heap's headroom while caches fill, in bytes: as much as there is to be read.
func (o *startOptions) headroomOfStart(ctx context.Context, etcd *embeddedetcd.Etcd) uint64 {
	if len(o.etcd.external.Endpoints) > 0 {
		return memory.ServerHeadroom
	}
	status, err := etcd.Client.Status(ctx, "")
	if err != nil {
		return memory.ServerHeadroom // it is about speed alone
	}
	return min(uint64(status.DbSizeInUse), memory.ServerHeadroom)
}

func (o *startOptions) serve(ctx context.Context, etcd *embeddedetcd.Etcd, began time.Time, headroom *memory.Headroom) (err error) {
	if o.server.SharedStore = len(o.etcd.external.Endpoints) > 0; !o.server.SharedStore {
		o.server.StoreDamage = etcd.Damage
	}
	o.server.CompareAuthorities = true
	s, err := server.New(ctx, o.server, etcd.Client)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	clients, err := client.New(s.LoopbackConfig())
	if err != nil {
		return err
	}
	clients.Objects = s.Everywhere(clients.Objects)
	informers, err := client.NewInformers(clients)
	if err != nil {
		return err
	}
	// Those of every server. Where others may lead, what a term makes goes with it, so it has informers of its own.
	var present crew
	var placer server.Placer
	var lead []controller
	leader := aloneLeads(s.RaiseLevel)
	if o.server.SharedStore {
		leader = newLeadership(clients.Kube, strings.TrimPrefix(s.URL(), "https://"), s.RaiseLevel)
	} else if lead, placer, err = ofTheLeader(s, clients, informers, leader); err != nil {
		return err
	}
	all, err := everywhere(s, clients, informers, placer)
	if err != nil {
		return err
	}
	present.wanted.Store(int32(len(all) + len(lead)))
	term := func(ctx context.Context) error { return present.run(ctx, lead) }
	if o.server.SharedStore {
		fenced, err := client.New(leader.fence(s.LoopbackConfig()))
		if err != nil {
			return err
		}
		fenced.Objects = s.Everywhere(fenced.Objects)
		term = func(ctx context.Context) error { return newTerm(ctx, s, fenced, leader, &present) }
	}
	var ready atomic.Bool
	if err := s.AddReadyCheck("workspaces", func() error {
		if !ready.Load() {
			return errors.New("the root workspace and the informers are not ready yet")
		}
		return nil
	}); err != nil {
		return err
	}
	if err := s.AddReadyCheck("controllers", present.ready); err != nil {
		return err
	}

	bootstrapped := make(chan struct{}) // there is a place for the leader's Lease
	group, ctx := errgroup.WithContext(ctx)
	// The leader's controllers end before the API server that they write to. What requests depend on goes on while there are any.
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	learning, stopLearning := context.WithCancel(context.WithoutCancel(ctx))
	learned := make(chan struct{})
	if err := s.BeforeItTurnsAway(func() { stopLearning(); <-learned }); err != nil {
		stopLearning()
		stopServing()
		return err
	}
	group.Go(func() error {
		defer stopLearning() // if it has not come so far
		return s.Run(serving)
	})
	group.Go(func() error {
		defer close(learned)
		var learners errgroup.Group
		learners.Go(func() error { informers.Run(learning); return nil })
		learners.Go(func() error { return present.run(learning, all) })
		return learners.Wait()
	})
	group.Go(func() error { memory.ReleaseWhenIdle(ctx, clock.RealClock{}); return nil })
	group.Go(func() error {
		defer stopServing()
		select {
		case <-bootstrapped:
			return leader.run(ctx, term)
		case <-ctx.Done():
			return nil
		}
	})
	group.Go(func() error {
		if err := s.WaitReady(ctx); err != nil {
			return err
		}
		if err := workspaces.Bootstrap(ctx, clients, s.URL()); err != nil {
			return err
		}
		close(bootstrapped)
		if err := informers.WaitSynced(ctx); err != nil {
			return err
		}
		headroom.Set(memory.ServerHeadroom)
		ready.Store(true)
		registered := len(informers.SyncTargets.All()) > 0
		fmt.Fprint(o.streams.Out, greeting(self, time.Since(began), s.URL(), o.server.AdminKubeconfig(), registered))
		return nil
	})
	group.Go(func() error {
		select {
		case err := <-etcd.Failed():
			return err
		case <-ctx.Done():
			return nil
		}
	})
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// newTerm runs the leader's controllers with informers of their own until ctx ends or one fails. They begin as in a server that
// has just started, and nothing of them is left afterwards.
func newTerm(ctx context.Context, s *server.Server, fenced *client.Clients, leader *leadership, present *crew) error {
	informers, err := client.NewInformers(fenced)
	if err != nil {
		return err
	}
	all, _, err := ofTheLeader(s, fenced, informers, leader)
	if err != nil {
		return err
	}
	present.wanted.Add(int32(len(all)))
	defer present.wanted.Add(-int32(len(all)))
	working, ctx := errgroup.WithContext(ctx)
	working.Go(func() error { informers.Run(ctx); return nil })
	working.Go(func() error { return present.run(ctx, all) })
	return working.Wait()
}

// greeting says that the server is ready, and what to do next: to begin, or where physical clusters are registered already, to look what
// is there. The commands find no kubeconfig by themselves but the usual one.
func greeting(self string, took time.Duration, url, kubeconfig string, registered bool) string {
	first, last := "", "\nkubectl works as well: export KUBECONFIG="+kubeconfig
	if !cli.FindsByItself(kubeconfig) {
		if absolute, err := filepath.Abs(kubeconfig); err == nil {
			kubeconfig = absolute // another terminal may be elsewhere
		}
		first, last = "  export KUBECONFIG="+kubeconfig+"\n", "\nkubectl works as well."
	}
	next := `  %[1]s cluster add east --kubeconfig east.kubeconfig      # register a physical cluster
  %[1]s workspace create shop --enter                      # make a workspace and go there
  %[1]s kubectl create deployment web --image=nginx        # it runs on a cluster`
	if registered {
		next = `  %[1]s cluster list      # the physical clusters, and how they are
  %[1]s workspace tree    # the workspaces`
	}
	return fmt.Sprintf(`Atoll is ready after %s at %s

Next, in another terminal:
%s%s
%s
`, took.Round(10*time.Millisecond), url, first, fmt.Sprintf(next, self), last)
}
