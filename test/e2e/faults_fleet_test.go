package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/test/framework"
)

// faultPatience is how long recovery may take: back-offs of client-go and of the syncer are up to a minute.
const faultPatience = 3 * time.Minute

// soaking says whether there is time: faults then last longer than everything that waits for their end.
func soaking() bool { return os.Getenv("ATOLL_SOAK") != "" }

// lasting is how long a fault lasts: usually, or when soaking.
func lasting(usual, soak time.Duration) time.Duration {
	if soaking() {
		return soak
	}
	return usual
}

// faulty is a fleet whose every connection between hub and physical clusters can be broken.
type faulty struct {
	*fleet
	// fronts are before the API servers of the physical clusters, hubs before the hub: one for each cluster, and for each that has a syncer
	// of its own.
	fronts map[string]*framework.Front
	hubs   map[string]*framework.Proxy
	// manifests of the clusters' own syncers.
	manifests map[string]string
	etcdPort  string
	// unwanted has what was asked to be deleted since the fleet was made, "<namespace>/services/<name>", and whether both
	// clusters had it then: what was made while a fault lasted may never have come down, and is not deleted there.
	unwanted map[string]bool
}

// newFaulty starts one in which the clusters that are named have their own syncers.
func newFaulty(t *testing.T, pulled ...string) *faulty {
	t.Helper()
	f := &faulty{
		fronts: map[string]*framework.Front{}, hubs: map[string]*framework.Proxy{},
		manifests: map[string]string{}, unwanted: map[string]bool{}, etcdPort: strconv.Itoa(framework.FreePort(t)),
	}
	f.fleet = &fleet{
		Atoll:    framework.StartAtoll(t, "--embedded-etcd-client-port="+f.etcdPort),
		clusters: map[string]*framework.Physical{}, syncers: map[string]*framework.Syncer{},
	}
	for _, name := range []string{"east", "west"} {
		f.clusters[name] = framework.StartPhysical(t, name)
		f.fronts[name] = framework.StartFront(t, f.clusters[name])
		if !slices.Contains(pulled, name) {
			f.MustRun("cluster", "add", name, "--kubeconfig", f.fronts[name].Physical.Kubeconfig)
			continue
		}
		f.hubs[name] = framework.StartProxy(t, strings.TrimPrefix(f.URL, "https://"))
		f.manifests[name] = f.MustStdout("cluster", "add", name, "--manifest", "--allow-loopback", "--hub-url=https://"+f.hubs[name].Address)
		f.syncers[name] = framework.StartSyncer(t, f.Atoll, f.fronts[name].Physical, f.manifests[name])
	}
	for name := range f.clusters {
		f.clusterReady(t, name)
	}
	return f
}

// between are the proxies between the hub and a physical cluster, whoever of them dials: what a firewall there cuts.
func (f *faulty) between(cluster string) *framework.Proxy {
	if hub := f.hubs[cluster]; hub != nil {
		return hub
	}
	return f.fronts[cluster].Proxy
}

// restore ends all faults of the network and of load balancers.
func (f *faulty) restore() {
	for _, front := range f.fronts {
		front.Restore()
	}
	for _, hub := range f.hubs {
		hub.Restore()
	}
}

// met fails unless the faults of all load balancers answered somebody: what never happened proves nothing.
func (f *faulty) met(t *testing.T) {
	t.Helper()
	for name, front := range f.fronts {
		if front.Faulted.Swap(0) == 0 {
			t.Errorf("the fault of the load balancer before %s met no request", name)
		}
	}
}

// faultPart is a part of a test that shares its fleet with others.
type faultPart struct {
	name string
	test func(*testing.T, *faulty)
}

// run runs the parts one after the other; what fails fails its own part, and leaves no fault of the network behind.
func (f *faulty) run(t *testing.T, faults []faultPart) {
	var parts []part
	for _, p := range faults {
		parts = append(parts, part{p.name, func(t *testing.T, _ *fleet) {
			defer f.restore()
			p.test(t, f)
		}})
	}
	f.fleet.run(t, parts)
}

// subject is what a fault must not harm: a Deployment spread over both clusters, and Services that come and go.
type subject struct {
	*workspace
	faults   *faulty
	observer *observer
	least    int // replicas that serve at any time since the last fault ended
	steps    int
	services map[string]bool // those that should be, and whether both clusters have had them
	made     []string        // of them, but for the Deployment's own, the oldest first
}

// subject makes one, and waits until it runs.
func (f *faulty) subject(t *testing.T, name string) *subject {
	t.Helper()
	s := &subject{workspace: f.workspace(t, name), faults: f, services: map[string]bool{}}
	s.place("*")
	s.apply(6, "")
	s.services[name] = false
	for i := range 8 {
		s.service(fmt.Sprintf("old-%d", i+1))
	}
	s.settled()
	s.observer, s.least = s.observe(), s.replicas()
	return s
}

func (s *subject) service(name string) {
	s.t.Helper()
	_, err := s.f.Clients().Kube.CoreV1().Services("default").Create(s.ctx(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatalf("create Service %s: %v", name, err)
	}
	s.services[name] = false
	s.made = append(s.made, name)
}

// change scales the Deployment by one in each cluster, makes a Service and deletes the oldest, and waits for nothing.
func (s *subject) change() {
	s.t.Helper()
	s.grow()
	s.unwant(s.made[0])
	s.made = s.made[1:]
}

// grow is change without the delete: a server that dies right after a delete carries it out a minute later.
func (s *subject) grow() {
	s.t.Helper()
	s.steps++
	kube := s.f.Clients().Kube
	patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, s.replicas())
	if _, err := kube.AppsV1().Deployments("default").Patch(s.ctx(), s.app, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		s.t.Fatalf("scale the Deployment: %v", err)
	}
	s.service(fmt.Sprintf("new-%d", s.steps))
}

// namespace is where it runs in both clusters.
func (s *subject) namespace() string { return kinds.DownstreamNamespace(s.cluster, "default", false) }

func (s *subject) replicas() int { return 6 + 2*s.steps }

// unwant deletes a Service.
func (s *subject) unwant(name string) {
	s.t.Helper()
	if err := s.f.Clients().Kube.CoreV1().Services("default").Delete(s.ctx(), name, metav1.DeleteOptions{}); err != nil {
		s.t.Fatalf("delete Service %s: %v", name, err)
	}
	s.faults.unwanted[s.namespace()+"/services/"+name] = s.services[name]
	delete(s.services, name)
}

// settled waits until both clusters run what is asked, and the hub says so.
func (s *subject) settled() {
	s.t.Helper()
	framework.Eventually(s.t, faultPatience, s.app+" is as asked everywhere", func() string {
		want := slices.Sorted(maps.Keys(s.services))
		for name := range s.f.clusters {
			if problem := s.readyProblem(name); problem != "" {
				return problem
			}
			got := s.servicesIn(name)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				return fmt.Sprintf("Services in %s are %v, want %v", name, got, want)
			}
			if n := s.ready(name); n != s.replicas()/2 {
				return fmt.Sprintf("%d pods are Ready in %s, want %d", n, name, s.replicas()/2)
			}
		}
		d := s.deployment()
		if d.Status.ObservedGeneration != d.Generation || int(d.Status.ReadyReplicas) != s.replicas() || synced(d) != "" {
			return fmt.Sprintf("status at generation %d is %+v", d.Generation, d.Status)
		}
		return ""
	}, s.state)
	for name := range s.services {
		s.services[name] = true
	}
}

// readyProblem says why a SyncTarget is not Ready.
func (s *subject) readyProblem(cluster string) string {
	s.t.Helper()
	target := s.f.syncTarget(s.t, cluster)
	if !meta.IsStatusConditionTrue(target.Status.Conditions, workloadv1alpha1.SyncTargetReady) {
		return fmt.Sprintf("SyncTarget %s has conditions %+v", cluster, target.Status.Conditions)
	}
	return ""
}

// recovered waits until everything is as asked after a fault that ended just now, and judges by the audit logs of both
// clusters: what was deleted there is what was asked, and nothing of it ran short.
func (s *subject) recovered(what string) {
	s.t.Helper()
	began := time.Now()
	s.settled()
	s.t.Logf("recovery %-60s %s", what, time.Since(began).Round(100*time.Millisecond))
	s.judge()
	if s.observer != nil {
		s.observer.mark()
		s.least = s.replicas()
	}
}

func (s *subject) judge() {
	s.t.Helper()
	for cluster := range s.f.clusters {
		s.faults.judge(s.t, cluster)
		if c := meta.FindStatusCondition(s.f.syncTarget(s.t, cluster).Status.Conditions, workloadv1alpha1.SyncTargetFrozen); c != nil && c.Status == metav1.ConditionTrue {
			s.t.Errorf("the mirror of %s is frozen: %s", cluster, c.Message)
		}
	}
	if s.observer != nil {
		s.observer.neverBelow(s.t, s.least)
	}
}

// judge compares what a cluster's audit log says was deleted with what was asked since the fleet was made.
func (f *faulty) judge(t *testing.T, cluster string) {
	t.Helper()
	// Every try counts, however it was answered: where the connection is cut, the log tells of an error and the object is gone.
	got := map[string]bool{}
	for _, verb := range []string{"delete", "deletecollection"} {
		for _, e := range f.clusters[cluster].AuditEvents(framework.AuditFilter{Verb: verb}) {
			if strings.HasPrefix(e.UserAgent, "atoll") {
				got[e.Namespace+"/"+e.Resource+"/"+e.Name] = true
			}
		}
	}
	for name := range got {
		if _, asked := f.unwanted[name]; !asked {
			t.Errorf("%s was deleted in %s, and nobody asked for it", name, cluster)
		}
	}
	for name, there := range f.unwanted {
		if there && !got[name] {
			t.Errorf("%s was to be deleted in %s, and its audit log does not tell of it", name, cluster)
		}
	}
}

// notReady waits until a SyncTarget is not Ready, and tells how it says so and how long it took.
func (s *subject) notReady(cluster string) {
	s.t.Helper()
	began := time.Now()
	framework.Eventually(s.t, faultPatience, "SyncTarget "+cluster+" is not Ready", func() string {
		c := meta.FindStatusCondition(s.f.syncTarget(s.t, cluster).Status.Conditions, workloadv1alpha1.SyncTargetReady)
		if c == nil || c.Status == metav1.ConditionTrue {
			return fmt.Sprintf("it is %+v", c)
		}
		s.t.Logf("%s: Ready=%s %s after %s: %s", cluster, c.Status, c.Reason, time.Since(began).Round(time.Second), c.Message)
		return ""
	})
}

// changing makes changes for that long, evenly, and then returns.
func (s *subject) changing(d time.Duration, changes int) {
	s.t.Helper()
	ticker := time.NewTicker(d / time.Duration(changes))
	defer ticker.Stop()
	for range changes {
		s.change()
		<-ticker.C
	}
}

// compact makes the hub's etcd forget every version but the present one.
func (f *faulty) compact(t *testing.T) {
	t.Helper()
	pki := filepath.Join(f.Dir, "pki")
	pair, err := tls.LoadX509KeyPair(filepath.Join(pki, "etcd.crt"), filepath.Join(pki, "etcd.key"))
	if err != nil {
		t.Fatalf("read the client certificate of etcd: %v", err)
	}
	ca, err := os.ReadFile(filepath.Join(pki, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	etcd, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"127.0.0.1:" + f.etcdPort}, TLS: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots},
	})
	if err != nil {
		t.Fatalf("connect to etcd: %v", err)
	}
	defer etcd.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	now, err := etcd.Get(ctx, "revision")
	if err != nil {
		t.Fatalf("ask etcd for its revision: %v", err)
	}
	if _, err := etcd.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatalf("compact etcd: %v", err)
	}
}

// expired waits until a watch of the mirror's Services from a version is answered with 410.
func (f *faulty) expired(t *testing.T, cluster, version string) {
	t.Helper()
	ctx, cancel := context.WithCancel(inMirror(t, f.fleet, cluster))
	defer cancel()
	framework.Eventually(t, patience, "version "+version+" is forgotten", func() string {
		w, err := f.Clients().Kube.CoreV1().Services("").Watch(ctx, metav1.ListOptions{ResourceVersion: version, TimeoutSeconds: ptr.To[int64](1)})
		if err != nil {
			if strings.Contains(err.Error(), "too old") {
				return ""
			}
			return err.Error()
		}
		defer w.Stop()
		event, ok := <-w.ResultChan()
		if status, isStatus := event.Object.(*metav1.Status); ok && isStatus && status.Code == 410 {
			return ""
		}
		return fmt.Sprintf("the watch began with %+v", event)
	})
}
