package builtin

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"

	api "k8s.io/kubernetes/pkg/apis/core"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	podrest "k8s.io/kubernetes/pkg/registry/core/pod/rest"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// Kubelets reach what answers for the pods of physical clusters.
type Kubelets interface {
	// Reach finds the pod of a physical cluster that a pod of a workspace shows, and returns how to connect to what answers for it,
	// and for nothing else, at the paths of a kubelet. Its errors are an API's. What was connected ends with ctx.
	Reach(ctx context.Context, shown metav1.Object) (dial func() net.Conn, err error)
}

// How many streams may be open at once on each server. A stream takes some ten goroutines and two connections. The first is more than
// somebody reads at once; the second leaves a workspace that has all of its own a part of its clusters only.
const (
	mostStreamsOfWorkspace = 100
	mostStreamsOfCluster   = 1000
)

// Connections to webhooks in pods are counted apart, so that who may read logs keeps nobody from writing. Of a webhook a few are kept between calls, for a few seconds:
// who finds no room waits for that.
const (
	mostHooksOfWorkspace = 50
	mostHooksOfCluster   = 1000
)

// addStreams adds the subresources of pods that kubelets answer. Upstream's check what is asked for, and speak with kubelets; of which
// pod, and which kubelet, they learn from the request's context (docs/design/0009-streams.md).
func addStreams(storage map[string]rest.Storage, from podstore.PodStorage, pods interface {
	rest.Getter
	rest.Lister
}, ways *Ways) connections {
	found, conns := foundPod{}, connections{ways, ways.open, from.PortForward.Authorizer, mostSilence}
	ways.pods = pods
	from.Log.KubeletConn = conns // which reads the pod again, to know its containers
	from.Exec.Store, from.Exec.KubeletConn = found, conns
	from.Attach.Store, from.Attach.KubeletConn = found, conns
	from.PortForward.Store, from.PortForward.KubeletConn = found, conns
	storage["pods/log"] = logs{from.Log, pods}
	storage["pods/exec"] = stream{from.Exec, pods}
	storage["pods/attach"] = stream{from.Attach, pods}
	storage["pods/portforward"] = stream{from.PortForward, pods}
	storage["pods/proxy"] = podProxy{from.Proxy, pods, conns}
	return conns
}

// stream is a subresource that takes over the connection: exec, attach, portforward.
type stream struct {
	connecter
	pods rest.Getter
}

func (s stream) Connect(ctx context.Context, name string, options runtime.Object, responder rest.Responder) (http.Handler, error) {
	ctx, err := find(ctx, s.pods, name)
	if err != nil {
		return nil, err
	}
	return s.connecter.Connect(ctx, name, options, responder)
}

type logs struct {
	*podrest.LogREST
	pods rest.Getter
}

func (l logs) Get(ctx context.Context, name string, options runtime.Object) (runtime.Object, error) {
	ctx, err := find(ctx, l.pods, name)
	if err != nil {
		return nil, err
	}
	return l.LogREST.Get(ctx, name, options)
}

type podKey struct{}

// find reads a pod, once for all that is decided of it, and refuses it unless a physical cluster shows it: nothing else of this server
// knows where a pod of a workspace runs. Least of all its Node and addresses, which a tenant can write.
func find(ctx context.Context, pods rest.Getter, name string) (context.Context, error) {
	found, err := pods.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	pod, ok := found.(*api.Pod)
	if !ok || inMirror(ctx) || pod.Labels[workloadv1alpha1.MirrorLabel] == "" {
		return nil, errElsewhere()
	}
	return context.WithValue(ctx, podKey{}, pod), nil
}

// foundPod is, to upstream, the store of a pod that was found.
type foundPod struct{}

func (foundPod) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	pod, ok := ctx.Value(podKey{}).(*api.Pod)
	if !ok || pod.Name != name {
		return nil, apierrors.NewInternalError(fmt.Errorf("pod %q was not looked for", name))
	}
	return pod, nil
}

// Ways lead to what answers for the pods that physical clusters show. What is open through them is counted together, whoever goes: logs,
// streams, proxies, webhooks, and who reads what pods use (server/resourcemetrics).
type Ways struct {
	kubelets Kubelets
	open     *openStreams
	hooks    *openStreams
	pods     rest.Lister // installed with the APIs, before anything is served
}

// TooManyOfWorkspace is the error of who has as much open as a workspace may have, in whatever physical clusters.
type TooManyOfWorkspace struct{ *apierrors.StatusError }

// NewWays returns those of a server.
func NewWays(kubelets Kubelets) *Ways {
	return &Ways{kubelets: kubelets, open: newOpenStreams("logs and streams", mostStreamsOfWorkspace, mostStreamsOfCluster, false), hooks: newOpenStreams("connections to webhooks", mostHooksOfWorkspace, mostHooksOfCluster, true)}
}

// To returns a transport to what answers for a pod of the request's logical cluster at the paths of a kubelet, and to nothing else, whatever
// host is asked for: over a connection of its own for each request. The way ends with ctx, and so does what is open through it.
func (w *Ways) To(ctx context.Context, pod *api.Pod) (*http.Transport, error) {
	return w.to(ctx, pod, w.open)
}

// to is To, counted among others.
func (w *Ways) to(ctx context.Context, pod *api.Pod, counted *openStreams) (*http.Transport, error) {
	workspace, ok := lcctx.ClusterFrom(ctx)
	mirror := logicalcluster.Name(pod.Labels[workloadv1alpha1.MirrorLabel])
	if !ok || workspace.Wildcard || workspace.Mirror || mirror == "" {
		return nil, errElsewhere()
	}
	if err := counted.begin(ctx, workspace.Name, mirror, pod.Spec.NodeName); err != nil {
		return nil, err
	}
	// A request's context ends with it, also when its connection was taken over.
	context.AfterFunc(ctx, func() { counted.end(workspace.Name, mirror) })
	dial, err := w.kubelets.Reach(ctx, pod)
	if err != nil {
		return nil, err
	}
	return &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			conn := dial()
			context.AfterFunc(ctx, func() { _ = conn.Close() }) // it is ours alone: nobody is left to be told
			return conn, nil
		},
		DisableKeepAlives: true,
	}, nil
}

// connections lead upstream the ways to pods.
type connections struct {
	*Ways
	counted *openStreams // those of the Ways that these are among
	may     authorizer.Authorizer
	silence time.Duration // how long a proxy lasts through which nothing goes
}

var _ kubeletclient.ConnectionInfoGetter = connections{}

// GetConnectionInfo returns how to reach the kubelet of the pod that was found, for as long as the request lasts.
func (c connections) GetConnectionInfo(ctx context.Context, node types.NodeName) (*kubeletclient.ConnectionInfo, error) {
	pod, ok := ctx.Value(podKey{}).(*api.Pod)
	if !ok || pod.Spec.NodeName != string(node) {
		return nil, apierrors.NewInternalError(fmt.Errorf("node %q has no pod that was looked for", node))
	}
	transport, err := c.to(ctx, pod, c.counted)
	if err != nil {
		return nil, err
	}
	return &kubeletclient.ConnectionInfo{
		Scheme: "http", Hostname: string(node), Port: "10250", // to be written into URLs; nothing is resolved
		Transport: transport, InsecureSkipTLSVerifyTransport: transport,
	}, nil
}

// openStreams counts the streams of workspaces and of mirrors, whose names are different, and those who look for pods behind Services.
type openStreams struct {
	what                   string // for people
	ofWorkspace, ofCluster int    // at most
	waits                  bool   // who finds no room, for as long as his context lasts

	mu    sync.Mutex // guards what follows
	of    map[logicalcluster.Name]int
	looks map[logicalcluster.Name]*looking
	freed chan struct{} // closed when some have ended

	looking *semaphore.Weighted // all of the server
}

// looking are the requests of a workspace that look for pods, or wait for it.
type looking struct {
	seats    *semaphore.Weighted
	requests int
}

func newOpenStreams(what string, ofWorkspace, ofCluster int, waits bool) *openStreams {
	return &openStreams{
		what: what, ofWorkspace: ofWorkspace, ofCluster: ofCluster, waits: waits,
		of: map[logicalcluster.Name]int{}, looks: map[logicalcluster.Name]*looking{}, freed: make(chan struct{}), looking: semaphore.NewWeighted(mostLooks),
	}
}

// mostLooks is how many requests look for pods at a time, mostLooksOfWorkspace how many of these of one workspace. A page of a browser asks for more at once: the
// others wait, and for no longer than lookWaits.
const (
	mostLooks            = 16
	mostLooksOfWorkspace = 4
	lookWaits            = 5 * time.Second
)

// look waits until it may look for a pod, which it does until what is returned is called.
func (o *openStreams) look(ctx context.Context, workspace logicalcluster.Name) (done func(), err error) {
	o.mu.Lock()
	own := o.looks[workspace]
	if own == nil {
		own = &looking{seats: semaphore.NewWeighted(mostLooksOfWorkspace)}
		o.looks[workspace] = own
	}
	own.requests++
	o.mu.Unlock()
	leave := func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if own.requests--; own.requests == 0 {
			delete(o.looks, workspace)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, lookWaits)
	defer cancel()
	if own.seats.Acquire(ctx, 1) == nil {
		if o.looking.Acquire(ctx, 1) == nil {
			return func() {
				o.looking.Release(1)
				own.seats.Release(1)
				leave()
			}, nil
		}
		own.seats.Release(1)
	}
	leave()
	return nil, apierrors.NewTooManyRequests(fmt.Sprintf("many requests look for the pods of Services at once, %d at most of a workspace: it has waited for %s", mostLooksOfWorkspace, lookWaits), 1)
}

// begin counts one more, if there is room.
func (o *openStreams) begin(ctx context.Context, workspace, mirror logicalcluster.Name, cluster string) error {
	for {
		freed, err := o.tryBegin(workspace, mirror, cluster)
		if err == nil || !o.waits {
			return err
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return err
		}
	}
}

// tryBegin counts one more, or returns why there is no room, and what is closed when there may be.
func (o *openStreams) tryBegin(workspace, mirror logicalcluster.Name, cluster string) (freed <-chan struct{}, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.of[workspace] >= o.ofWorkspace:
		return o.freed, TooManyOfWorkspace{apierrors.NewTooManyRequests(fmt.Sprintf("%d %s of the workspace are open, and no more may be", o.ofWorkspace, o.what), 1)}
	case o.of[mirror] >= o.ofCluster:
		return o.freed, apierrors.NewTooManyRequests(fmt.Sprintf("%d %s of physical cluster %q are open, and no more may be", o.ofCluster, o.what, cluster), 1)
	}
	o.of[workspace]++
	o.of[mirror]++
	return nil, nil
}

func (o *openStreams) end(workspace, mirror logicalcluster.Name) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, of := range []logicalcluster.Name{workspace, mirror} {
		if o.of[of]--; o.of[of] == 0 {
			delete(o.of, of)
		}
	}
	if o.waits {
		close(o.freed)
		o.freed = make(chan struct{})
	}
}
