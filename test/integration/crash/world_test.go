package crash

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	"atoll.dev/atoll/server"
	"atoll.dev/atoll/server/namespaces"
	"atoll.dev/atoll/syncer"
	"atoll.dev/atoll/test/framework"
	"atoll.dev/atoll/workspaces"
)

// patience is how long something may take that takes a second or two on a machine with nothing else to do. Where many others want the
// same processors, to look once at all that there is has taken more than 10 s.
const patience = 4 * time.Minute

var clusterNames = []string{"east", "west"}

// cluster is a physical cluster, shared by all worlds.
type cluster struct {
	name    string
	config  *rest.Config
	kube    kubernetes.Interface
	dynamic dynamic.Interface
	audit   string
}

// RESTConfig is a copy of the administrator's.
func (c *cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.config) }

// startFleet starts the physical clusters.
func startFleet(t *testing.T) map[string]*cluster {
	fleet := map[string]*cluster{}
	for _, name := range clusterNames {
		p := framework.StartPhysical(t, name, framework.PhysicalNodes(1))
		c := &cluster{name: name, config: p.RESTConfig(), audit: p.AuditLog}
		var err error
		c.kube, err = kubernetes.NewForConfig(c.config)
		must(t, err)
		c.dynamic, err = dynamic.NewForConfig(c.config)
		must(t, err)
		fleet[name] = c
	}
	return fleet
}

// world is a server in this process with every controller, and SyncTargets for the physical clusters. What is not under
// a fault runs undisturbed.
type world struct {
	t          *testing.T
	ctx        context.Context
	server     *server.Server
	namespaces *namespaces.Controller
	etcd       *clientv3.Client
	clients    *client.Clients // an administrator's
	fleet      map[string]*cluster
	targets    map[string]*workloadv1alpha1.SyncTarget
	fast       clock.WithTicker
	later      *steppedClock        // a step of a run sets it, and the next run begins at the present
	logs       map[string]*auditLog // by side

	mu    sync.Mutex // guards all below
	lives map[string]*life
	ended []string // lives
	born  int
	runs  int
}

// life is one incarnation of a controller, from its start to its end.
type life struct {
	*line
	stop context.CancelFunc
	done chan struct{}
	err  error // after done
}

// anywhere is a placer to which everything would run somewhere.
type anywhere struct{ framework.NoPods }

func (anywhere) WhyNowhere(logicalcluster.Name, schema.GroupResource, string, string, map[string]string) string {
	return ""
}

func (anywhere) RefusedPods(logicalcluster.Name, schema.GroupResource, string, ctrlclient.Object) ([]string, error) {
	return nil, nil
}

func (anywhere) MissingClasses(logicalcluster.Name, schema.GroupResource, string, ctrlclient.Object) []string {
	return nil
}

func (anywhere) PlacedOn(types.UID) (placements, workspaces int) { return 0, 0 }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// starting is held by the world that starts: a start takes all there is of the machine, and those that run need some of it.
var starting sync.Mutex

func newWorld(t *testing.T, fleet map[string]*cluster) *world {
	t.Helper()
	starting.Lock()
	defer starting.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	dir := t.TempDir()
	etcd, err := embeddedetcd.Start(ctx, embeddedetcd.Options{Dir: filepath.Join(dir, "etcd")})
	must(t, err)
	policy := filepath.Join(dir, "audit-policy.yaml")
	must(t, os.WriteFile(policy, []byte(hubPolicy), 0o600))
	o := server.NewOptions()
	o.RootDirectory, o.SecurePort, o.BindAddress = dir, 0, net.IPv4(127, 0, 0, 1)
	o.Audit.PolicyFile, o.Audit.LogOptions.Path = policy, filepath.Join(dir, "audit.log")
	s, err := server.New(ctx, o, etcd.Client)
	must(t, err)
	clients, err := client.New(s.LoopbackConfig())
	must(t, err)
	informers, err := client.NewInformers(clients)
	must(t, err)
	directory, err := workspaces.NewDirectory(clients, informers)
	must(t, err)
	// It lets syncers in, as in every server on an etcd; the requests that it cannot answer another one does, which may be under a fault.
	readOnly := rest.CopyConfig(s.LoopbackConfig())
	readOnly.Wrap(func(next http.RoundTripper) http.RoundTripper { return reader{next} })
	reads, err := client.New(readOnly)
	must(t, err)
	credentials, err := syncer.NewCredentials(syncer.CredentialsConfig{Clients: reads, Informers: informers, Sign: s.SignSyncer, Clock: clock.RealClock{}})
	must(t, err)
	s.Join(directory, anywhere{}, credentials, anywhere{})
	// It says what a namespace holds, and does nothing: the one that does is in the house.
	ns, err := namespaces.New(clients, informers, namespaces.Options{RootCA: s.CACertificate(), Read: s.Read, Custom: s.CustomIn})
	must(t, err)
	stopped, stop := context.WithCancel(ctx)
	stop()
	if err := ns.Run(stopped); err == nil {
		t.Fatal("the controller of namespaces that is to do nothing has run")
	}
	manager, err := syncer.NewManager(syncer.ManagerConfig{
		Clients: clients, Informers: informers, Clock: clock.RealClock{}, DeleteData: s.DeleteCluster,
		// Nobody gives a kubeconfig: the syncers are started here, over lines.
		MirrorConfig: func(logicalcluster.Name, types.UID) (*rest.Config, error) { return nil, errors.New("not here") },
		MayWrite:     func() error { return errors.New("not here") },
	})
	must(t, err)

	w := &world{
		t: t, ctx: ctx, server: s, namespaces: ns, etcd: etcd.Client, clients: clients, fleet: fleet, lives: map[string]*life{},
		targets: map[string]*workloadv1alpha1.SyncTarget{}, fast: fastClock{began: time.Now(), times: hurry}, later: newSteppedClock(),
		logs: map[string]*auditLog{hubSide: {path: o.Audit.LogOptions.Path}},
	}
	for name, c := range fleet {
		w.logs[name] = &auditLog{path: c.audit}
	}
	serving, stopServing := context.WithCancel(context.Background())
	var servers, steady sync.WaitGroup
	servers.Go(func() {
		if err := s.Run(serving); err != nil {
			t.Errorf("server: %v", err)
		}
	})
	steady.Go(func() { informers.Run(ctx) })
	for _, c := range []interface{ Run(context.Context) error }{manager, credentials} {
		steady.Go(func() {
			if err := c.Run(ctx); err != nil && ctx.Err() == nil {
				t.Errorf("%T: %v", c, err)
			}
		})
	}
	t.Cleanup(func() {
		w.mu.Lock()
		lives := w.lives
		w.lives = map[string]*life{}
		w.mu.Unlock()
		for _, l := range lives {
			w.end(l)
		}
		w.nothingLeft()
		cancel()
		steady.Wait()
		stopServing()
		servers.Wait()
		must(t, etcd.Stop())
	})
	must(t, s.WaitReady(ctx))
	must(t, workspaces.Bootstrap(ctx, clients, s.URL()))
	must(t, informers.WaitSynced(ctx))
	for _, name := range clusterNames {
		w.register(&workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, name := range everyone {
		w.start(subjectOf(name), nil)
	}
	for _, name := range clusterNames {
		framework.Eventually(t, patience, "SyncTarget "+name+" is Ready", func() string {
			target := &workloadv1alpha1.SyncTarget{}
			must(t, clients.Objects.Get(client.In(ctx, workspaces.Root), types.NamespacedName{Name: name}, target))
			if !meta.IsStatusConditionTrue(target.Status.Conditions, workloadv1alpha1.SyncTargetReady) {
				return fmt.Sprintf("%+v", target.Status)
			}
			return ""
		})
	}
	return w
}

// register makes the SyncTarget of a physical cluster and waits for its mirror.
func (w *world) register(target *workloadv1alpha1.SyncTarget) {
	w.t.Helper()
	home, name := client.In(w.ctx, workspaces.Root), target.Name
	must(w.t, w.clients.Objects.Create(home, target))
	framework.Eventually(w.t, patience, "SyncTarget "+name+" has a mirror", func() string {
		must(w.t, w.clients.Objects.Get(home, ctrlclient.ObjectKeyFromObject(target), target))
		if target.Status.Mirror == "" {
			return "none"
		}
		ns := &corev1.Namespace{}
		if err := w.clients.Objects.Get(client.In(w.ctx, logicalcluster.Name(target.Status.Mirror)),
			types.NamespacedName{Name: workloadv1alpha1.HeartbeatNamespace}, ns); err != nil {
			return err.Error()
		}
		return ""
	})
	w.targets[name] = target
}

func (w *world) mirror(name string) logicalcluster.Name {
	return logicalcluster.Name(w.targets[name].Status.Mirror)
}

// role is whom a subject stands for among everyone.
func role(s subject) string {
	if s.role != "" {
		return s.role
	}
	return s.name
}

// sees says whether a controller is shown what happens.
func (w *world) sees(role string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lives[role].filter == nil
}

// start begins a new life of a controller, after the one before it has ended. under puts the fault on its line, and
// may be nil.
func (w *world) start(s subject, under func(*line)) *life {
	w.mu.Lock()
	before := w.lives[role(s)]
	w.born++
	name := fmt.Sprintf("%s-%d-%d", role(s), time.Now().UnixMilli()%1e9, w.born)
	w.mu.Unlock()
	if before != nil {
		w.end(before)
	}
	counts := s.counts
	if counts == nil {
		counts = func(write) bool { return true }
	}
	l := newLine(name, counts)
	if under != nil {
		under(l)
	}
	ctx, stop := context.WithCancel(w.ctx)
	now := &life{line: l, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(now.done)
		// Whatever it starts inherits the label.
		pprof.Do(ctx, pprof.Labels("life", name), func(ctx context.Context) {
			run, err := s.make(w, l)
			if err == nil {
				err = run(ctx)
			}
			if ctx.Err() == nil && !l.isCrashed() {
				now.err = fmt.Errorf("%s ended by itself: %w", name, err)
			}
		})
	}()
	w.mu.Lock()
	w.lives[role(s)] = now
	w.mu.Unlock()
	return now
}

// end stops a life. That nothing of it goes on, nothingLeft looks.
func (w *world) end(l *life) {
	l.stop()
	select {
	case <-l.done:
	case <-time.After(patience):
		w.t.Errorf("%s did not stop in %s", l.name, patience)
		return
	}
	if l.err != nil {
		w.t.Error(l.err)
	}
	w.mu.Lock()
	w.ended = append(w.ended, l.name)
	w.mu.Unlock()
}

// nothingLeft waits until no goroutine of an ended life runs.
func (w *world) nothingLeft() {
	w.mu.Lock()
	ended := w.ended
	w.ended = nil
	w.mu.Unlock()
	deadline := time.Now().Add(patience)
	for {
		left := goroutines(w.t, ended)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			w.t.Errorf("of what has stopped run still:\n%s", strings.Join(left, "\n\n"))
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// goroutines returns the stacks of what lives started and is still there.
func goroutines(t testing.TB, names []string) []string {
	var text strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&text, 1); err != nil {
		t.Error(err)
	}
	var found []string
	for stack := range strings.SplitSeq(text.String(), "\n\n") {
		// Connections belong to all lives: client-go keeps one for all clients of a server.
		if strings.Contains(stack, "net/http.(*persistConn)") || strings.Contains(stack, "net/http2.(*clientConnReadLoop)") {
			continue
		}
		if slices.ContainsFunc(names, func(name string) bool { return strings.Contains(stack, `"life":"`+name+`"`) }) {
			found = append(found, stack)
		}
	}
	return found
}

// present is what all sides are. Of the pods of mirrors, which are a view of workspaces' pods, the server lists no earlier revision
// (docs/design/0007-pods.md), so those lists are part of it.
func (w *world) present() map[string]past {
	w.t.Helper()
	list, err := w.clients.Kube.CoreV1().Namespaces().List(client.In(w.ctx, workspaces.Root), metav1.ListOptions{Limit: 1})
	must(w.t, err)
	all := map[string]past{hubSide: {list.ResourceVersion, map[string][]byte{}}}
	for name, c := range w.fleet {
		list, err := c.kube.CoreV1().Namespaces().List(w.ctx, metav1.ListOptions{Limit: 1})
		must(w.t, err)
		all[name] = past{revision: list.ResourceVersion}
		pods, err := w.clients.Kube.CoreV1().RESTClient().Get().Resource("pods").SetHeader("Accept", "application/json").
			Do(client.In(w.ctx, w.mirror(name))).Raw()
		must(w.t, err)
		all[hubSide].lists[fmt.Sprintf("%s /clusters/%s/api/v1/pods", hubSide, w.mirror(name))] = pods
	}
	return all
}
