package syncer

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
)

// Kubelets reach what answers for the pods that physical clusters show. Every server has its own: a request is answered where it comes
// in, whoever runs the Syncers. They keep nothing but the tunnels of syncers outside: what a stream needs is read when it begins.
type Kubelets struct {
	clients *client.Clients
	tunnels tunnels
}

// NewKubelets returns the Kubelets of a server.
func NewKubelets(clients *client.Clients) *Kubelets { return &Kubelets{clients: clients} }

// Hold keeps a connection that the syncer of a mirror has opened, to ask it for logs and streams of its pods, until that or ctx ends, or
// the syncer has opened another. That it is this mirror's was decided before.
func (k *Kubelets) Hold(ctx context.Context, mirror logicalcluster.Name, conn net.Conn) error {
	klog.FromContext(ctx).Info("Logs and streams of a physical cluster go through the connection of its syncer", "mirror", mirror, "from", conn.RemoteAddr())
	err := k.tunnels.hold(ctx, mirror, conn)
	klog.FromContext(ctx).Info("The connection of a syncer has ended", "mirror", mirror, "reason", err)
	return err
}

// Holds says whether there is such a connection.
func (k *Kubelets) Holds(mirror logicalcluster.Name) bool { return k.tunnels.get(mirror) != nil }

// Reach finds the pod that a pod of a workspace shows, and returns how to connect to what answers for it at the paths of a kubelet. Its
// errors are an API's, and name the physical cluster. What was connected ends with ctx.
func (k *Kubelets) Reach(ctx context.Context, shown metav1.Object) (func() net.Conn, error) {
	mirror := logicalcluster.Name(shown.GetLabels()[workloadv1alpha1.MirrorLabel])
	target, err := targetOf(ctx, k.clients.Objects, mirror)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if target == nil {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("the physical cluster of pod %q is not there any more", shown.GetName()))
	}
	unavailable := func(format string, args ...any) error {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("physical cluster %q ", target.Name) + fmt.Sprintf(format, args...))
	}
	ready := meta.FindStatusCondition(target.Status.Conditions, workloadv1alpha1.SyncTargetReady)
	switch {
	case ready == nil:
		return nil, unavailable("is not connected yet")
	case ready.Status != metav1.ConditionTrue:
		return nil, unavailable("is not Ready (%s)", ready.Reason) // what its message names is for the owner of the cluster
	}
	pod := podShownBy(shown)
	kubelet, err := k.kubelet(ctx, target)
	switch {
	case errors.Is(err, errPull):
		tunnel := k.tunnels.get(mirror)
		if tunnel == nil {
			return nil, unavailable("has no connection for logs and streams to this server: its syncer (pull) opens one within minutes, unless it is of an earlier version")
		}
		return tunnel.reach(ctx, target.Name, pod)
	case err != nil:
		klog.FromContext(ctx).Info("No way to the pods of a physical cluster", "cluster", target.Name, "err", err)
		return nil, unavailable("cannot be reached with the kubeconfig that the server has")
	}
	if err := kubelet.find(ctx, pod); err != nil {
		return nil, err
	}
	return func() net.Conn {
		ours, theirs := net.Pipe()
		go kubelet.serveConn(ctx, theirs, pod)
		return ours
	}, nil
}

// errPull is that the server itself has no way to a physical cluster.
var errPull = errors.New("the physical cluster is synced from within")

// kubelet returns that of a SyncTarget, with the kubeconfig that is there now.
func (k *Kubelets) kubelet(ctx context.Context, target *workloadv1alpha1.SyncTarget) (*kubelet, error) {
	at, ok := secretOf(target)
	if !ok {
		return nil, errPull
	}
	secret, err := k.clients.Kube.CoreV1().Secrets(at.Namespace).Get(client.In(ctx, at.Cluster), at.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read its kubeconfig: %w", err)
	}
	physical, err := physicalConfig(secret.Data["kubeconfig"])
	if err != nil {
		return nil, err
	}
	return newKubelet(target.Name, target.UID, physical)
}
