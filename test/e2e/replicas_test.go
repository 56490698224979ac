package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/test/framework"
)

const (
	// leaderGone is how long it may take until another server runs the controllers: the Lease runs out, and is looked at
	// every few seconds.
	leaderGone = time.Minute
	// replicasWriters write Services, and as many ConfigMaps under a ResourceQuota.
	replicasWriters  = 4
	replicasServices = 60 // acknowledged before a server dies, and again after
	replicasLimit    = 60 // ConfigMaps of a strike, half of them before it
	replicasSoaks    = 5  // rounds of strikes where ATOLL_SOAK=1; their Services have some 400 node ports each, of 2,768
)

// TestReplicas runs two servers on one etcd of three members, processes of their own. Clients write through both while one of them is
// killed, alone or with the leader of etcd, or stopped for so long that the other takes its place: nothing acknowledged is lost, no IP or node port is given
// twice, no ResourceQuota is passed, tokens of one are good with the other, and one server at a time runs the controllers. What
// runs in a physical cluster follows whoever leads, and a leader that wakes changes nothing, neither there nor in etcd.
func TestReplicas(t *testing.T) {
	t.Parallel() // half of it is waiting for a Lease to run out
	etcd := framework.StartEtcdMembers(t, 3)
	flags := append(etcd.Flags(), "--service-account-issuer=https://atoll.example")
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	must(t, os.WriteFile(policy, []byte(replicasAudit), 0o600))
	r := &replicas{t: t, etcd: etcd, services: map[string]string{}, east: framework.StartPhysical(t, "east")}
	audited := func() []string {
		file := filepath.Join(t.TempDir(), "audit.log")
		r.audits = append(r.audits, file)
		return append(slices.Clone(flags), "--audit-policy-file="+policy, "--audit-log-path="+file)
	}
	first := framework.StartAtoll(t, audited()...)

	stranger := framework.NewAtoll(t, flags...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, framework.Binary(t), append([]string{"start", "--root-directory=" + stranger.Dir, "--secure-port=0"}, flags...)...).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() <= 0 {
		t.Errorf("a server with authorities of its own ended with %v, want an exit code:\n%s", err, out)
	}
	clearError(t, string(out), "a server with authorities of its own", "other certificate authorities", "syncers/ca.key", "workspaces/ca.key", "/atoll/installation/certificate-authorities")

	r.servers = []*framework.Atoll{first, first.StartReplica(t, audited()...)}
	for _, server := range r.servers {
		r.clients = append(r.clients, server.Clients())
	}
	r.cluster = framework.MakeWorkspace(t, r.clients[0], "root", "shared")
	r.deploy()

	rounds := 1
	if soaking() {
		rounds = replicasSoaks
	}
	for range rounds {
		r.strikes()
	}
}

// strikes kills and stops servers and a member of etcd, each in its test.
func (r *replicas) strikes() {
	t, etcd := r.t, r.etcd
	defer func() { r.t = t }()
	t.Run("the leader is killed", func(t *testing.T) {
		r.t = t
		leader := r.leader()
		r.underLoad(leader, r.servers[leader].Kill, func() {
			r.led(1 - leader) // before the other is back, which could lead as well
			r.servers[leader].Restart()
		})
	})
	t.Run("the other is killed, and the leader of etcd", func(t *testing.T) {
		r.t = t
		leader, member := r.leader(), etcd.Members[etcd.Leader(t)]
		r.underLoad(1-leader, func() {
			member.Kill()
			r.servers[1-leader].Kill()
		}, func() {
			member.Start()
			r.servers[1-leader].Restart()
		})
		r.led(leader)
	})
	t.Run("the leader is stopped, and wakes when another leads", func(t *testing.T) {
		r.t = t
		leader := r.leader()
		old := r.servers[leader]
		r.underLoad(leader, old.Pause, func() {
			r.led(1 - leader)
			terms, pid, woken := strings.Count(old.Log(), termOver), old.PID(), time.Now()
			old.Resume()
			framework.Eventually(t, 2*time.Minute, "the old leader has stopped its controllers", func() string {
				if strings.Count(old.Log(), termOver) == terms {
					return "it does not say so"
				}
				return ""
			})
			t.Logf("a leader that wakes beside another has stopped its controllers after %s", time.Since(woken).Round(10*time.Millisecond))
			if old.PID() != pid || readyzText(t, old) != "" {
				t.Errorf("it is process %d, was %d, and /readyz says %q", old.PID(), pid, readyzText(t, old))
			}
			r.wroteNothing(leader, woken)
		})
		r.led(1 - leader)
	})
	t.Run("the leader ends in order", func(t *testing.T) {
		r.t = t
		leader := r.leader()
		began := time.Now()
		r.servers[leader].Stop()
		r.led(1 - leader)
		t.Logf("recovery after a leader that ended in order: %s", time.Since(began).Round(100*time.Millisecond))
		r.servers[leader].Start()
	})
}

// termOver is what a server logs whose controllers have ended since another leads.
const termOver = "Stopped the controllers"

// replicasAudit is the policy of the servers' audit logs: who changed what.
const replicasAudit = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: None
  verbs: [get, list, watch]
- level: Metadata
`

type replicas struct {
	t       *testing.T
	etcd    *framework.EtcdMembers
	servers []*framework.Atoll
	clients []*client.Clients // of each server
	audits  []string          // the audit log of each server
	cluster logicalcluster.Name
	round   int // of strikes
	made    int // workspaces to see that a leader leads
	east    *framework.Physical
	placed  logicalcluster.Name // the workspace whose Deployment runs on east
	scale   int32               // what that is to have

	mu sync.Mutex // guards all below
	// limited counts the ConfigMaps acknowledged in this round that nobody asked to delete, exceeded those refused, and struck says
	// that a server is away.
	limited, exceeded int
	struck            bool
	// services are those acknowledged: name to cluster IP and node port.
	services map[string]string
}

// deploy registers east in a workspace of its own, with a Deployment there.
func (r *replicas) deploy() {
	r.t.Helper()
	r.placed = framework.MakeWorkspace(r.t, r.clients[0], "root", "placed")
	in := client.In(r.t.Context(), r.placed)
	kubeconfig, err := os.ReadFile(r.east.Kubeconfig)
	must(r.t, err)
	_, err = r.clients[0].Kube.CoreV1().Secrets("default").Create(in, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "east"}, Data: map[string][]byte{"kubeconfig": kubeconfig},
	}, metav1.CreateOptions{})
	must(r.t, err)
	must(r.t, r.clients[0].Objects.Create(in, &workloadv1alpha1.SyncTarget{
		ObjectMeta: metav1.ObjectMeta{Name: "east"},
		Spec:       workloadv1alpha1.SyncTargetSpec{KubeconfigSecretRef: &corev1.SecretReference{Name: "east", Namespace: "default"}},
	}))
	labels := map[string]string{"app": "web"}
	_, err = r.clients[0].Kube.AppsV1().Deployments("default").Create(in, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(r.scale), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.k8s.io/pause:3.10"}}},
			},
		},
	}, metav1.CreateOptions{})
	must(r.t, err)
}

// runs gives the Deployment one replica more, or takes all away again, and waits until the physical cluster has as many and
// the Deployment says so.
func (r *replicas) runs(server int) {
	r.t.Helper()
	r.scale = (r.scale + 1) % 4
	in, deployments := client.In(r.t.Context(), r.placed), r.clients[server].Kube.AppsV1().Deployments("default")
	_, err := deployments.Patch(in, "web", types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, r.scale), metav1.PatchOptions{})
	must(r.t, err)
	below := r.east.Clientset().AppsV1().Deployments("")
	framework.Eventually(r.t, patience, "the physical cluster follows the leader", func() string {
		root, err := deployments.Get(in, "web", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		list, err := below.List(r.t.Context(), metav1.ListOptions{LabelSelector: workloadv1alpha1.WorkspaceLabel})
		if err != nil {
			return err.Error()
		}
		if len(list.Items) != 1 || *list.Items[0].Spec.Replicas != r.scale {
			return fmt.Sprintf("%d Deployments below, want one with %d replicas: %+v", len(list.Items), r.scale, list.Items)
		}
		if s := root.Status; s.ObservedGeneration != root.Generation || s.Replicas != r.scale || s.ReadyReplicas != r.scale {
			return fmt.Sprintf("want %d replicas, generation %d, status %+v", r.scale, root.Generation, s)
		}
		return ""
	})
}

// wroteNothing looks at what a leader that was replaced wrote since it woke: its controllers nothing in etcd, and the syncers
// nothing in the physical cluster. That of the other leader has nothing to write there by then but heartbeats.
func (r *replicas) wroteNothing(server int, woken time.Time) {
	r.t.Helper()
	const controllers = "system:apiserver"
	data, err := os.ReadFile(r.audits[server])
	must(r.t, err)
	seen := 0
	for line := range strings.Lines(string(data)) {
		var e auditv1.Event
		must(r.t, json.Unmarshal([]byte(line), &e))
		// The Lease itself is asked for, and refused.
		if e.User.Username != controllers || e.ObjectRef != nil && e.ObjectRef.Name == "atoll-controllers" {
			continue
		}
		seen++
		if e.RequestReceivedTimestamp.After(woken) {
			r.t.Errorf("the old leader's controllers wrote after it woke: %s", line)
		}
	}
	if seen == 0 {
		r.t.Errorf("the audit log of %s knows of no write of %s at all", r.servers[server].URL, controllers)
	}
	seen = 0
	for _, e := range r.east.AuditEvents(framework.AuditFilter{}) {
		if !strings.HasPrefix(e.UserAgent, workloadv1alpha1.FieldManager) || e.Resource == "leases" {
			continue
		}
		seen++
		if e.Time.After(woken) {
			r.t.Errorf("a syncer wrote in the physical cluster after the old leader woke: %+v", e)
		}
	}
	if seen == 0 {
		r.t.Error("the physical cluster knows of no write of a syncer at all")
	}
}

// limitedNamespace is where ConfigMaps are limited in this round.
func (r *replicas) limitedNamespace() string { return fmt.Sprintf("limited-%d", r.round) }

// limit makes a namespace with a ResourceQuota.
func (r *replicas) limit(server int) {
	r.t.Helper()
	in, kube := client.In(r.t.Context(), r.cluster), r.clients[server].Kube.CoreV1()
	namespace := r.limitedNamespace()
	if _, err := kube.Namespaces().Create(in, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	r.limited, r.exceeded, r.struck = 0, 0, false
	r.mu.Unlock()
	// What every namespace has, is counted.
	framework.Eventually(r.t, time.Minute, "the namespace has its ConfigMap", func() string {
		_, err := kube.ConfigMaps(namespace).Get(in, "kube-root-ca.crt", metav1.GetOptions{})
		return problemOf(err)
	})
	hard := corev1.ResourceList{corev1.ResourceConfigMaps: resource.MustParse(fmt.Sprint(replicasLimit))}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "limit"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	if _, err := kube.ResourceQuotas(namespace).Create(in, quota, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
	framework.Eventually(r.t, time.Minute, "the ResourceQuota is counted", func() string {
		got, err := kube.ResourceQuotas(namespace).Get(in, "limit", metav1.GetOptions{})
		if err != nil || len(got.Status.Used) == 0 {
			return fmt.Sprintf("%v, error %v", got, err)
		}
		return ""
	})
}

func problemOf(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}

// holder is who holds the Lease, as a server says.
func (r *replicas) holder(server int) (string, error) {
	lease, err := r.clients[server].Kube.CoordinationV1().Leases(metav1.NamespaceSystem).Get(client.In(r.t.Context(), "system:admin"), "atoll-controllers", metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return "", err
	}
	return *lease.Spec.HolderIdentity, nil
}

// holds says whether a server is the holder.
func holds(server *framework.Atoll, holder string) bool {
	return strings.HasPrefix(holder, strings.TrimPrefix(server.URL, "https://")+"_")
}

// leader is the index of the server that runs the controllers.
func (r *replicas) leader() int {
	r.t.Helper()
	leader := -1
	framework.Eventually(r.t, leaderGone, "a server leads", func() string {
		holder, err := r.holder(0)
		for i, server := range r.servers {
			if err == nil && holds(server, holder) {
				leader = i
				return ""
			}
		}
		return fmt.Sprintf("%q holds the Lease, error %v", holder, err)
	})
	return leader
}

// underLoad lets clients write through both servers, strikes one in the middle, lets them go on through the other, and
// heals it.
func (r *replicas) underLoad(server int, strike, heal func()) {
	r.t.Helper()
	for _, server := range r.servers {
		server.Use(r.t)
	}
	for _, member := range r.etcd.Members {
		member.Use(r.t)
	}
	token := r.token(server)
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	var writers sync.WaitGroup
	r.round++
	r.limit(1 - server)
	before := r.acknowledged()
	for w := range replicasWriters {
		writers.Go(func() { r.writeServices(ctx, w) })
		writers.Go(func() { r.writeLimited(ctx, w) })
	}
	r.awaitServices(before + replicasServices)
	r.awaitLimited("half of what the ResourceQuota allows is used", func() bool { return r.limited >= replicasLimit/2 })
	r.mu.Lock()
	if r.exceeded > 0 {
		r.t.Errorf("the ResourceQuota is full at %d ConfigMaps, before the strike", r.limited)
	}
	r.mu.Unlock()
	strike()
	r.mu.Lock()
	r.struck = true
	r.mu.Unlock()
	r.awaitServices(before + 2*replicasServices)
	r.awaitLimited("the ResourceQuota is full", func() bool { return r.exceeded > 0 })
	cancel()
	writers.Wait()
	r.good(1-server, token)
	r.check(1 - server)
	heal()
	r.good(server, r.token(1-server))
	r.check(server)
}

func (r *replicas) acknowledged() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.services)
}

func (r *replicas) awaitServices(n int) {
	r.t.Helper()
	framework.Eventually(r.t, 2*time.Minute, fmt.Sprintf("%d Services are acknowledged", n), func() string {
		if got := r.acknowledged(); got < n {
			return fmt.Sprintf("%d are", got)
		}
		return ""
	})
}

func (r *replicas) awaitLimited(what string, done func() bool) {
	r.t.Helper()
	framework.Eventually(r.t, 2*time.Minute, what, func() string {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !done() {
			return fmt.Sprintf("%d acknowledged, %d refused", r.limited, r.exceeded)
		}
		return ""
	})
}

// oneTry bounds a request to a server that may be stopped.
const oneTry = 3 * time.Second

func (r *replicas) writeServices(ctx context.Context, writer int) {
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("r%d-w%d-%d", r.round, writer, i)
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}},
		}
		try, cancel := context.WithTimeout(client.In(ctx, r.cluster), oneTry)
		got, err := r.clients[(writer+i)%2].Kube.CoreV1().Services("default").Create(try, service, metav1.CreateOptions{})
		cancel()
		if err == nil {
			r.mu.Lock()
			r.services[name] = addressOf(got)
			r.mu.Unlock()
		}
	}
}

func addressOf(s *corev1.Service) string {
	return fmt.Sprintf("%s:%d", s.Spec.ClusterIP, s.Spec.Ports[0].NodePort)
}

// writeLimited makes ConfigMaps as long as the ResourceQuota lets it, half of them before the strike, and deletes every fourth, so that
// it is counted while others are made.
func (r *replicas) writeLimited(ctx context.Context, writer int) {
	for i := 0; ctx.Err() == nil; i++ {
		r.mu.Lock()
		waits := !r.struck && r.limited >= replicasLimit/2 || r.exceeded > 0
		r.mu.Unlock()
		if waits {
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("r%d-w%d-%d", r.round, writer, i)}}
		try, cancel := context.WithTimeout(client.In(ctx, r.cluster), oneTry)
		configMaps := r.clients[(writer+i)%2].Kube.CoreV1().ConfigMaps(r.limitedNamespace())
		_, err := configMaps.Create(try, object, metav1.CreateOptions{})
		deletes := err == nil && i%4 == 3
		if deletes {
			// Whether it came to that is of no matter to what check compares.
			_ = configMaps.Delete(try, object.Name, metav1.DeleteOptions{})
		}
		cancel()
		r.mu.Lock()
		switch {
		case deletes:
		case err == nil:
			r.limited++
		case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
			r.exceeded++
		}
		r.mu.Unlock()
		switch {
		case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
		case apierrors.IsForbidden(err):
			r.t.Errorf("create ConfigMap %s: %v", object.Name, err)
			return
		}
	}
}

// check compares what is there with what was acknowledged, as a server says.
func (r *replicas) check(server int) {
	r.t.Helper()
	in := client.In(r.t.Context(), r.cluster)
	list, err := r.clients[server].Kube.CoreV1().Services("").List(in, metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	there, ips, ports := map[string]string{}, map[string]string{}, map[int32]string{}
	for i := range list.Items {
		s := &list.Items[i]
		there[s.Name] = addressOf(s)
		if other := ips[s.Spec.ClusterIP]; other != "" {
			r.t.Errorf("Services %s and %s have the IP %s", other, s.Name, s.Spec.ClusterIP)
		}
		if other := ports[s.Spec.Ports[0].NodePort]; other != "" {
			r.t.Errorf("Services %s and %s have the node port %d", other, s.Name, s.Spec.Ports[0].NodePort)
		}
		ips[s.Spec.ClusterIP], ports[s.Spec.Ports[0].NodePort] = s.Name, s.Name
	}
	for name, address := range r.services {
		if there[name] != address {
			r.t.Errorf("Service %s was acknowledged at %s, and is at %q", name, address, there[name])
		}
	}
	limited, err := r.clients[server].Kube.CoreV1().ConfigMaps(r.limitedNamespace()).List(in, metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	if n := len(limited.Items); n > replicasLimit || n < r.limited {
		r.t.Errorf("%d ConfigMaps, allowed are %d, acknowledged were %d", n, replicasLimit, r.limited)
	}
	r.t.Logf("%d Services acknowledged, %d there; %d ConfigMaps of %d, %d acknowledged", len(r.services), len(there), len(limited.Items), replicasLimit, r.limited)
}

// token is one of a ServiceAccount, from a server.
func (r *replicas) token(server int) string {
	r.t.Helper()
	got, err := r.clients[server].Kube.CoreV1().ServiceAccounts("default").CreateToken(client.In(r.t.Context(), r.cluster), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return got.Status.Token
}

// good says who a token is, to a server.
func (r *replicas) good(server int, token string) {
	r.t.Helper()
	config := rest.AnonymousClientConfig(r.servers[server].Config())
	config.Host += "/clusters/" + r.cluster.String()
	config.BearerToken = token
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		r.t.Fatal(err)
	}
	got, err := kube.AuthenticationV1().SelfSubjectReviews().Create(r.t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || got.Status.UserInfo.Username != "system:serviceaccount:default:default" {
		r.t.Errorf("a token of the other server is %v, error %v", got, err)
	}
}

// led waits until that server runs the controllers, and sees by what they do that it does: a workspace is made and used,
// a namespace goes, and what runs in the physical cluster changes.
func (r *replicas) led(server int) {
	r.t.Helper()
	framework.Eventually(r.t, leaderGone, "the controllers run", func() string {
		if holder, err := r.holder(server); err != nil || !holds(r.servers[server], holder) {
			return fmt.Sprintf("%q holds the Lease, error %v", holder, err)
		}
		return ""
	})
	r.made++
	cluster := framework.MakeWorkspace(r.t, r.clients[server], "root", fmt.Sprintf("after-%d", r.made))
	in, namespaces := client.In(r.t.Context(), cluster), r.clients[server].Kube.CoreV1().Namespaces()
	if _, err := namespaces.Create(in, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "short"}}, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
	if err := namespaces.Delete(in, "short", metav1.DeleteOptions{}); err != nil {
		r.t.Fatal(err)
	}
	framework.Eventually(r.t, time.Minute, "a namespace goes", func() string {
		if _, err := namespaces.Get(in, "short", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("it is there, error %v", err)
		}
		return ""
	})
	if r.placed != "" {
		r.runs(server)
	}
}
