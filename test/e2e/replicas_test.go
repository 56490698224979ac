package e2e

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

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
	replicasLimit    = 40 // ConfigMaps
)

// TestReplicas runs two servers on one etcd, in a process of its own. Clients write through both while one of them is
// killed, or stopped for so long that the other takes its place: nothing acknowledged is lost, no IP or node port is given
// twice, no ResourceQuota is passed, tokens of one are good with the other, and one server at a time runs the controllers.
func TestReplicas(t *testing.T) {
	t.Parallel() // half of it is waiting for a Lease to run out
	etcd := framework.StartEtcd(t)
	flags := append(etcd.Flags(), "--service-account-issuer=https://atoll.example")
	first := framework.StartAtoll(t, flags...)

	stranger := framework.NewAtoll(t, flags...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, framework.Binary(t), append([]string{"start", "--root-directory=" + stranger.Dir, "--secure-port=0"}, flags...)...).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() <= 0 {
		t.Errorf("a server with authorities of its own ended with %v, want an exit code:\n%s", err, out)
	}
	clearError(t, string(out), "a server with authorities of its own", "other certificate authorities", "syncers/ca.key", "workspaces/ca.key", "/atoll/installation/certificate-authorities")

	r := &replicas{t: t, servers: []*framework.Atoll{first, first.StartReplica(t, flags...)}, services: map[string]string{}}
	for _, server := range r.servers {
		r.clients = append(r.clients, server.Clients())
	}
	r.cluster = framework.MakeWorkspace(t, r.clients[0], "root", "shared")
	r.limit()

	t.Run("the leader is killed", func(t *testing.T) {
		r.t = t
		leader := r.leader()
		r.underLoad(leader, r.servers[leader].Kill, r.servers[leader].Restart)
		r.led(1 - leader)
	})
	t.Run("the other is killed", func(t *testing.T) {
		r.t = t
		leader := r.leader()
		r.underLoad(1-leader, r.servers[1-leader].Kill, r.servers[1-leader].Restart)
		r.led(leader)
	})
	t.Run("the leader is stopped, and wakes when another leads", func(t *testing.T) {
		r.t = t
		leader := r.leader()
		old := r.servers[leader]
		r.underLoad(leader, old.Pause, func() {
			framework.Eventually(t, leaderGone, "the other leads", func() string {
				holder, err := r.holder(1 - leader)
				if err != nil || !holds(r.servers[1-leader], holder) {
					return fmt.Sprintf("%q holds the Lease, error %v", holder, err)
				}
				return ""
			})
			old.Resume()
			// It lets requests in flight end, for a minute at most.
			if log := old.Ends(2 * time.Minute); !strings.Contains(log, "another server runs the controllers") {
				t.Errorf("it does not say why it ended:\n%s", log)
			}
			old.Start()
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

type replicas struct {
	t       *testing.T
	servers []*framework.Atoll
	clients []*client.Clients // of each server
	cluster logicalcluster.Name
	round   int

	mu sync.Mutex // guards services
	// services are those acknowledged: name to cluster IP and node port.
	services map[string]string
}

// limit makes a namespace with a ResourceQuota.
func (r *replicas) limit() {
	r.t.Helper()
	in, kube := client.In(r.t.Context(), r.cluster), r.clients[0].Kube.CoreV1()
	if _, err := kube.Namespaces().Create(in, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "limited"}}, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
	// What every namespace has, is counted.
	framework.Eventually(r.t, time.Minute, "the namespace has its ConfigMap", func() string {
		_, err := kube.ConfigMaps("limited").Get(in, "kube-root-ca.crt", metav1.GetOptions{})
		return problemOf(err)
	})
	hard := corev1.ResourceList{corev1.ResourceConfigMaps: resource.MustParse(fmt.Sprint(replicasLimit))}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "limit"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	if _, err := kube.ResourceQuotas("limited").Create(in, quota, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
	framework.Eventually(r.t, time.Minute, "the ResourceQuota is counted", func() string {
		got, err := kube.ResourceQuotas("limited").Get(in, "limit", metav1.GetOptions{})
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
	token := r.token(server)
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	var writers sync.WaitGroup
	r.round++
	before := r.acknowledged()
	for w := range replicasWriters {
		writers.Go(func() { r.writeServices(ctx, w) })
		writers.Go(func() { r.writeLimited(ctx, w) })
	}
	r.awaitServices(before + replicasServices)
	strike()
	r.awaitServices(before + 2*replicasServices)
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

// writeLimited makes ConfigMaps as long as the ResourceQuota lets it, and removes none: only then it holds to the number.
func (r *replicas) writeLimited(ctx context.Context, writer int) {
	for i := 0; ctx.Err() == nil; i++ {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("r%d-w%d-%d", r.round, writer, i)}}
		try, cancel := context.WithTimeout(client.In(ctx, r.cluster), oneTry)
		_, err := r.clients[(writer+i)%2].Kube.CoreV1().ConfigMaps("limited").Create(try, object, metav1.CreateOptions{})
		cancel()
		switch {
		case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
			select { // it is full
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
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
	limited, err := r.clients[server].Kube.CoreV1().ConfigMaps("limited").List(in, metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	if len(limited.Items) > replicasLimit {
		r.t.Errorf("%d ConfigMaps, allowed are %d", len(limited.Items), replicasLimit)
	}
	r.t.Logf("%d Services acknowledged, %d there; %d ConfigMaps of %d", len(r.services), len(there), len(limited.Items), replicasLimit)
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
// and a namespace goes.
func (r *replicas) led(server int) {
	r.t.Helper()
	framework.Eventually(r.t, leaderGone, "the controllers run", func() string {
		if holder, err := r.holder(server); err != nil || !holds(r.servers[server], holder) {
			return fmt.Sprintf("%q holds the Lease, error %v", holder, err)
		}
		return ""
	})
	r.round++
	cluster := framework.MakeWorkspace(r.t, r.clients[server], "root", fmt.Sprintf("after-%d", r.round))
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
}
