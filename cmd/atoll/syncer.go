package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/syncer"
)

// Times of the leader election among the replicas of a syncer. A physical cluster that does not answer for a while, as
// during an upgrade, changes no leader, and the leader can still tell the hub so (after 40 s). Its work is told to end
// lockTimeout + retryPeriod + renewDeadline after it last wrote the Lease at most, which leaves 5 s to end it before
// another takes the Lease.
const (
	leaseDuration = 60 * time.Second
	renewDeadline = 45 * time.Second
	retryPeriod   = 5 * time.Second
	// lockTimeout bounds each request for the Lease, with whatever wait a server asks for.
	lockTimeout = 5 * time.Second
)

// syncerOptions are the flags of `atoll syncer`.
type syncerOptions struct {
	bootstrapKubeconfig, kubeconfig string
	namespace, credentialSecret     string
	logs                            *logsapi.LoggingConfiguration
	streams                         genericiooptions.IOStreams
}

func newSyncerCommand(streams genericiooptions.IOStreams) *cobra.Command {
	o := &syncerOptions{logs: logsapi.NewLoggingConfiguration(), streams: streams}
	cmd := &cobra.Command{
		Use:   "syncer",
		Short: "Run the syncer of one physical cluster, in that cluster",
		Long: `Sync the physical cluster that this runs in with its mirror in an Atoll, over outbound connections alone. "atoll cluster
add NAME --manifest" writes the manifest that runs it as a Deployment: of its replicas one works, the others wait.

It first identifies itself with the token of --bootstrap-kubeconfig, which is good once, and gets a client certificate for
it. The certificate is kept in --credential-secret and renews itself.`,
		Example: `  # In a Pod
  atoll syncer --bootstrap-kubeconfig /etc/atoll/kubeconfig --credential-secret atoll-syncer-west

  # Elsewhere, with a kubeconfig of the physical cluster
  atoll syncer --bootstrap-kubeconfig bootstrap.kubeconfig --credential-secret atoll-syncer-west --kubeconfig west.kubeconfig`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			output := &logsapi.LoggingOptions{ErrorStream: os.Stderr, InfoStream: os.Stdout}
			if err := logsapi.ValidateAndApplyWithOptions(o.logs, output, utilfeature.DefaultFeatureGate); err != nil {
				return err
			}
			defer logs.FlushLogs()
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return o.run(ctx)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&o.bootstrapKubeconfig, "bootstrap-kubeconfig", "", "Kubeconfig with the address of the mirror and the bootstrap token (required).")
	fs.StringVar(&o.credentialSecret, "credential-secret", "", "Name of the Secret that keeps the client certificate, and of the Lease of the leader election (required).")
	fs.StringVar(&o.namespace, "namespace", workloadv1alpha1.HeartbeatNamespace, "Namespace of both.")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "Kubeconfig of the physical cluster (default: the cluster of the Pod that this runs in).")
	logsapi.AddFlags(o.logs, fs)
	for _, required := range []string{"bootstrap-kubeconfig", "credential-secret"} {
		if err := cmd.MarkFlagRequired(required); err != nil {
			panic(err) // the flag is defined above
		}
	}
	return cmd
}

// physical returns how the physical cluster is reached.
func (o *syncerOptions) physical() (*rest.Config, error) {
	if o.kubeconfig != "" {
		cfg, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("kubeconfig %s: %w", o.kubeconfig, err)
		}
		return cfg, nil
	}
	cfg, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, errors.New("this does not run in a Pod: name the physical cluster's kubeconfig with --kubeconfig")
	}
	if err != nil {
		return nil, fmt.Errorf("read the Pod's own access to its cluster: %w", err)
	}
	return cfg, nil
}

// run syncs whenever this is the leader, until ctx ends or something is wrong that time does not mend.
func (o *syncerOptions) run(ctx context.Context) error {
	hub, err := clientcmd.BuildConfigFromFlags("", o.bootstrapKubeconfig)
	if err != nil {
		return fmt.Errorf("bootstrap kubeconfig %s: %w", o.bootstrapKubeconfig, err)
	}
	physical, err := o.physical()
	if err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(physical)
	if err != nil {
		return fmt.Errorf("make a client for the physical cluster: %w", err)
	}
	// One for all terms as the leader: what could not be kept yet is still known in the next.
	credential, err := syncer.NewCredential(hub, kube.CoreV1().Secrets(o.namespace), o.credentialSecret)
	if err != nil {
		return err
	}
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("find the name of this host: %w", err)
	}
	identity := hostname + "_" + string(uuid.NewUUID())
	for ctx.Err() == nil {
		lock, err := resourcelock.New(resourcelock.LeasesResourceLock, o.namespace, o.credentialSecret, kube.CoreV1(), kube.CoordinationV1(),
			resourcelock.ResourceLockConfig{Identity: identity})
		if err != nil {
			return fmt.Errorf("make the lock of the leader election: %w", err)
		}
		err = lead(ctx, lock, func(ctx context.Context, mayWrite func() error) error {
			return work(ctx, credential, physical, mayWrite)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// find returns the SyncTarget that a mirror is for: its twin is the only one there. While the hub cannot be reached, or does not
// know who asks, it tries again.
func find(ctx context.Context, mirror *rest.Config) (name, uid string, err error) {
	client, err := dynamic.NewForConfig(mirror)
	if err != nil {
		return "", "", fmt.Errorf("make a client for the mirror: %w", err)
	}
	var list *unstructured.UnstructuredList
	for told := ""; ; {
		list, err = client.Resource(workloadv1alpha1.GroupVersion.WithResource("synctargets")).List(ctx, metav1.ListOptions{Limit: 2})
		if err == nil || apierrors.IsForbidden(err) || ctx.Err() != nil {
			break
		}
		if err.Error() != told {
			told = err.Error()
			klog.FromContext(ctx).Info("The hub does not answer, will try again", "hub", mirror.Host, "err", err)
		}
		select {
		case <-time.After(retryPeriod):
		case <-ctx.Done():
		}
	}
	if err != nil {
		return "", "", fmt.Errorf("find out in %s which cluster this is: %w", mirror.Host, err)
	}
	if len(list.Items) != 1 {
		return "", "", fmt.Errorf("find out in %s which cluster this is: it holds %d SyncTargets, want 1", mirror.Host, len(list.Items))
	}
	twin := &workloadv1alpha1.SyncTarget{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[0].Object, twin); err != nil {
		return "", "", fmt.Errorf("read the SyncTarget of %s: %w", mirror.Host, err)
	}
	return twin.Name, twin.Labels[workloadv1alpha1.SyncTargetLabel], nil
}

// work opens the credential and runs the Syncer until ctx ends.
func work(ctx context.Context, credential *syncer.Credential, physical *rest.Config, mayWrite func() error) error {
	err := credential.Open(ctx)
	if errors.Is(err, syncer.ErrBootstrapRefused) {
		return fmt.Errorf("%w; write a new manifest where the cluster was added: atoll cluster add NAME --manifest", err)
	}
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	err = credential.Use(ctx, func(ctx context.Context, mirror *rest.Config) error {
		return runSyncer(ctx, mirror, physical, credential.API(), mayWrite)
	})
	if errors.Is(err, syncer.ErrCertificateRefused) {
		return fmt.Errorf("%w. What runs here goes on. Remove this syncer, or write a new manifest where the cluster was added: atoll cluster add NAME --manifest", err)
	}
	return err
}

// runSyncer runs the Syncer of the SyncTarget that a mirror is for until ctx ends.
func runSyncer(ctx context.Context, mirror, physical *rest.Config, api *syncer.API, mayWrite func() error) error {
	name, uid, err := find(ctx, mirror)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	s, err := syncer.New(syncer.Config{
		Name: name, UID: uid, Mirror: mirror, Physical: physical, Clock: clock.RealClock{}, MayWrite: mayWrite, API: api,
	})
	if err != nil {
		return err
	}
	tunnels, err := syncer.NewTunnels(syncer.TunnelsConfig{Name: name, UID: uid, Mirror: mirror, Physical: physical})
	if err != nil {
		return err
	}
	logger := klog.FromContext(ctx).WithValues("syncTarget", name)
	logger.Info("Syncer starts", "hub", mirror.Host)
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, logger))
	var tunnelling sync.WaitGroup
	defer tunnelling.Wait()
	defer cancel()
	tunnelling.Go(func() { tunnels.Run(ctx) })
	return s.Run(ctx)
}
