package server

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubectldelete "k8s.io/kubectl/pkg/cmd/delete"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/server/aggregation"
	"atoll.dev/atoll/server/finishedjobs"
)

// runController runs a controller of all workspaces until the test ends.
func runController[C interface{ Run(context.Context) error }](t *testing.T, r *running, make func(*client.Clients, *client.Informers) (C, error)) {
	t.Helper()
	clients, err := client.New(r.LoopbackConfig())
	must(t, err)
	informers, err := client.NewInformers(clients)
	must(t, err)
	c, err := make(clients, informers)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { informers.Run(ctx) })
	wg.Go(func() {
		if err := c.Run(ctx); err != nil && ctx.Err() == nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}

func clusterRoleOf(name string, labels map[string]string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Rules: rules}
}

// The roles that everybody knows grow by a workspace's own, there and nowhere else, and shrink again.
func TestAggregatedClusterRoles(t *testing.T) {
	r := startServer(t, withTokens(t))
	runController(t, r, func(c *client.Clients, i *client.Informers) (*aggregation.Controller, error) {
		return aggregation.New(c, i, r.ClusterRoles, clock.RealClock{})
	})
	for _, cluster := range []logicalcluster.Name{shop, bank} {
		_, err := r.in(t, cluster).RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "alice"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "alice"}},
		}, metav1.CreateOptions{})
		must(t, err)
		r.waitReads(t, "/clusters/"+string(cluster)+"/api/v1/namespaces/default/pods", alice)
	}
	path := func(cluster logicalcluster.Name, resource string) string {
		return "/clusters/" + string(cluster) + "/api/v1/" + resource
	}
	reads := func(cluster logicalcluster.Name, resource string, want int) {
		t.Helper()
		waitFor(t, 30*time.Second, fmt.Sprintf("alice is answered %d for %s of %s", want, resource, cluster), func() (string, bool) {
			got := r.ask(t, asked{path: path(cluster, resource), token: alice})
			return fmt.Sprintf("%d %.200s", got.code, got.body), got.code == want
		})
	}
	for _, group := range []string{"placement.atoll.dev/v1alpha1/placements", "placement.atoll.dev/v1alpha1/placementpolicies"} {
		if got := r.ask(t, asked{path: "/clusters/" + string(shop) + "/apis/" + group, token: alice}); got.code != http.StatusOK {
			t.Errorf("view reads %s: %d %s", group, got.code, got.body)
		}
	}
	reads(shop, "nodes", http.StatusForbidden)

	roles := r.in(t, shop).RbacV1().ClusterRoles()
	nodes := rbacv1.PolicyRule{Verbs: []string{"get", "list"}, APIGroups: []string{""}, Resources: []string{"nodes"}}
	volumes := rbacv1.PolicyRule{Verbs: []string{"get", "list"}, APIGroups: []string{""}, Resources: []string{"persistentvolumes"}}
	_, err := roles.Create(t.Context(), clusterRoleOf("nodes", map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"}, nodes), metav1.CreateOptions{})
	must(t, err)
	reads(shop, "nodes", http.StatusOK)
	holds := func(role, field string, want int) {
		t.Helper()
		waitFor(t, 30*time.Second, fmt.Sprintf("%s has %d rules about %s", role, want, field), func() (string, bool) {
			got, err := roles.Get(t.Context(), role, metav1.GetOptions{})
			must(t, err)
			n := 0
			for _, rule := range got.Rules {
				if slices.Contains(rule.Resources, field) {
					n++
				}
			}
			return fmt.Sprint(got.Rules), n == want
		})
	}
	holds("edit", "nodes", 1)
	holds("admin", "nodes", 1)
	view, err := roles.Get(t.Context(), "view", metav1.GetOptions{})
	must(t, err)
	if !slices.ContainsFunc(view.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == aggregation.FieldManager && m.Operation == metav1.ManagedFieldsOperationApply && strings.Contains(m.FieldsV1.String(), "f:rules")
	}) {
		t.Errorf("managers of view: %v", view.ManagedFields)
	}

	// A role of the user's own, from others of his own, before and after they exist. The rules that he wrote do not stay.
	own := clusterRoleOf("ops", nil, nodes)
	own.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"for": "ops"}}}}
	_, err = roles.Create(t.Context(), own, metav1.CreateOptions{})
	must(t, err)
	_, err = roles.Create(t.Context(), clusterRoleOf("volumes", map[string]string{"for": "ops"}, volumes), metav1.CreateOptions{})
	must(t, err)
	holds("ops", "persistentvolumes", 1)
	holds("ops", "nodes", 0)

	// A role that only its copy in the mirror would fill.
	inMirror := r.in(t, east).RbacV1().ClusterRoles()
	_, err = inMirror.Create(t.Context(), own, metav1.CreateOptions{})
	must(t, err)
	_, err = inMirror.Create(t.Context(), clusterRoleOf("volumes", map[string]string{"for": "ops"}, volumes), metav1.CreateOptions{})
	must(t, err)

	// What somebody takes away is put back, and what he deletes is made again.
	view.Rules, view.ManagedFields = nil, nil
	_, err = roles.Update(t.Context(), view, metav1.UpdateOptions{})
	must(t, err)
	holds("view", "configmaps", 1)
	reads(shop, "nodes", http.StatusOK)
	must(t, roles.Delete(t.Context(), "view", metav1.DeleteOptions{}))
	holds("view", "nodes", 1)

	must(t, roles.Delete(t.Context(), "nodes", metav1.DeleteOptions{}))
	reads(shop, "nodes", http.StatusForbidden)
	holds("admin", "nodes", 0)

	if got := r.ask(t, asked{path: path(bank, "nodes"), token: alice}); got.code != http.StatusForbidden {
		t.Errorf("alice reads nodes of bank: %d", got.code)
	}
	rows, err := r.data.Get(t.Context(), "/registry/clusterroles/"+string(bank)+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	must(t, err)
	if len(rows.Kvs) > 0 {
		t.Errorf("bank, which wrote no role, has rows: %v", rows.Kvs)
	}
	mirrored, err := inMirror.Get(t.Context(), "ops", metav1.GetOptions{})
	must(t, err)
	if len(mirrored.Rules) != 1 || !slices.Contains(mirrored.Rules[0].Resources, "nodes") {
		t.Errorf("the role in the mirror has the rules %v", mirrored.Rules)
	}

	// Roles that take from each other through too many stay as they are, and who made them is told.
	_, err = r.in(t, shop).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceDefault}}, metav1.CreateOptions{})
	must(t, err)
	for i := range 20 {
		role := clusterRoleOf(fmt.Sprintf("row-%02d", 99-i), map[string]string{fmt.Sprint("row-", i): "true"})
		role.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{fmt.Sprint("row-", i-1): "true"}}}}
		if i == 0 {
			role.AggregationRule, role.Rules = nil, []rbacv1.PolicyRule{nodes}
		}
		_, err := roles.Create(t.Context(), role, metav1.CreateOptions{})
		must(t, err)
		if i%5 == 4 {
			holds(role.Name, "nodes", 1) // through fewer than are too many, while they are made
		}
	}
	source, err := roles.Get(t.Context(), "row-99", metav1.GetOptions{})
	must(t, err)
	source.Rules = []rbacv1.PolicyRule{volumes}
	_, err = roles.Update(t.Context(), source, metav1.UpdateOptions{})
	must(t, err)
	waitFor(t, 30*time.Second, "an event tells of it", func() (string, bool) {
		event, err := r.in(t, shop).CoreV1().Events(metav1.NamespaceDefault).Get(t.Context(), aggregation.FieldManager, metav1.GetOptions{})
		return fmt.Sprint(err), err == nil && event.Reason == "NotAggregated" && strings.Contains(event.Message, "row-82")
	})
}

// TestClusterRolesAreNotCopied: what the roles of a workspace are summed up from is what the watch cache holds, and the few
// that it shares with all others.
func TestClusterRolesAreNotCopied(t *testing.T) {
	r := startServer(t, nil)
	own := clusterRoleOf("own", nil, rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"nodes"}})
	own.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"for": "ops"}}}}
	_, err := r.in(t, shop).RbacV1().ClusterRoles().Create(t.Context(), own, metav1.CreateOptions{})
	must(t, err)
	find := func(cluster logicalcluster.Name, name string) *rbacv1.ClusterRole {
		t.Helper()
		var found *rbacv1.ClusterRole
		waitFor(t, 30*time.Second, fmt.Sprintf("%s has %s", cluster, name), func() (string, bool) {
			all, err := r.ClusterRoles(client.In(t.Context(), cluster))
			must(t, err)
			i := slices.IndexFunc(all, func(role rbacv1.ClusterRole) bool { return role.Name == name })
			if i >= 0 {
				found = &all[i]
			}
			return fmt.Sprint(len(all)), i >= 0
		})
		return found
	}
	find(shop, "view")
	if one, other := find(shop, "own"), find(shop, "own"); one == other || &one.Rules[0] != &other.Rules[0] || one.AggregationRule != other.AggregationRule {
		t.Error("what the workspace made is copied")
	}
	others, err := r.ClusterRoles(client.In(t.Context(), bank))
	must(t, err)
	if slices.ContainsFunc(others, func(role rbacv1.ClusterRole) bool { return role.Name == "own" }) {
		t.Error("bank has the role of shop")
	}
}

// kubectl delete ends, though the role is there again: it waits until there is none, or one of another UID.
func TestKubectlDeletesABootstrapRole(t *testing.T) {
	r := startServer(t, nil)
	flags := genericclioptions.NewConfigFlags(false)
	flags.KubeConfig, flags.Context = ptr.To(r.options.AdminKubeconfig()), ptr.To("root")
	for _, role := range []string{"a row of its own", "shared"} {
		if role != "shared" {
			view, err := r.in(t, "root").RbacV1().ClusterRoles().Get(t.Context(), "view", metav1.GetOptions{})
			must(t, err)
			view.Rules = nil
			_, err = r.in(t, "root").RbacV1().ClusterRoles().Update(t.Context(), view, metav1.UpdateOptions{})
			must(t, err)
		}
		var out, said bytes.Buffer
		failed := ""
		kubectlutil.BehaviorOnFatal(func(message string, _ int) { failed = message })
		t.Cleanup(kubectlutil.DefaultBehaviorOnFatal)
		cmd := kubectldelete.NewCmdDelete(kubectlutil.NewFactory(flags), genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &out, ErrOut: &said})
		cmd.SetArgs([]string{"clusterrole", "view", "--timeout=10s"})
		began := time.Now()
		if err := cmd.ExecuteContext(t.Context()); err != nil || failed != "" {
			t.Errorf("%s: after %s: %v %s\n%s%s", role, time.Since(began), err, failed, &out, &said)
		}
		view, err := r.in(t, "root").RbacV1().ClusterRoles().Get(t.Context(), "view", metav1.GetOptions{})
		must(t, err)
		if len(view.Rules) == 0 {
			t.Errorf("%s: view has no rules after it was deleted", role)
		}
	}
}

// A Job goes when its time has come, in each workspace, and not in a mirror.
func TestFinishedJobs(t *testing.T) {
	r := startServer(t, nil)
	runController(t, r, func(c *client.Clients, i *client.Informers) (*finishedjobs.Controller, error) {
		return finishedjobs.New(c, i, clock.RealClock{})
	})
	make := func(cluster logicalcluster.Name, name string, ttl *int32, ended time.Time, ends batchv1.JobConditionType) {
		t.Helper()
		jobs := r.in(t, cluster).BatchV1().Jobs("default")
		job, err := jobs.Create(t.Context(), &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: batchv1.JobSpec{
				TTLSecondsAfterFinished: ttl,
				Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
					RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}},
				}},
			},
		}, metav1.CreateOptions{})
		must(t, err)
		if ends == "" {
			return
		}
		started := metav1.NewTime(ended.Add(-time.Second))
		criteria, at := batchv1.JobSuccessCriteriaMet, metav1.NewTime(ended)
		job.Status = batchv1.JobStatus{StartTime: &started, Conditions: []batchv1.JobCondition{}}
		if ends == batchv1.JobFailed {
			criteria = batchv1.JobFailureTarget
		} else {
			job.Status.CompletionTime, job.Status.Succeeded = &at, 1
		}
		for _, condition := range []batchv1.JobConditionType{criteria, ends} {
			job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: at})
		}
		_, err = jobs.UpdateStatus(t.Context(), job, metav1.UpdateOptions{})
		must(t, err)
	}
	for _, cluster := range []logicalcluster.Name{shop, bank, east} {
		_, err := r.in(t, cluster).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	now := time.Now().Truncate(time.Second) // as statuses tell it
	make(east, "mirrored", ptr.To[int32](0), now, batchv1.JobComplete)
	make(shop, "kept", nil, now.Add(-time.Hour), batchv1.JobComplete)
	make(shop, "runs", ptr.To[int32](0), now, "")
	make(shop, "later", ptr.To[int32](3600), now, batchv1.JobFailed)
	make(shop, "soon", ptr.To[int32](2), now, batchv1.JobFailed)
	make(shop, "at-once", ptr.To[int32](0), now, batchv1.JobComplete)
	make(bank, "at-once", nil, now, batchv1.JobComplete)
	left := func(cluster logicalcluster.Name) string {
		list, err := r.in(t, cluster).BatchV1().Jobs("default").List(t.Context(), metav1.ListOptions{})
		must(t, err)
		var names []string
		for _, job := range list.Items {
			name := job.Name
			if job.DeletionTimestamp != nil {
				name = "" // its finalizer foregroundDeletion is the garbage collector's, which does not run here
				if !slices.Contains(job.Finalizers, metav1.FinalizerDeleteDependents) {
					t.Errorf("%s is not deleted with what it owns: %v", job.Name, job.Finalizers)
				}
			}
			names = append(names, name)
		}
		slices.Sort(names)
		return strings.TrimSpace(strings.Join(names, " "))
	}
	waitFor(t, 30*time.Second, "the two Jobs go", func() (string, bool) { return left(shop), left(shop) == "kept later runs" })
	if took := time.Since(now); took < 2*time.Second {
		t.Errorf("a TTL of 2 s was over after %s", took)
	}
	// Who takes the time away later is obeyed.
	later, err := r.in(t, shop).BatchV1().Jobs("default").Get(t.Context(), "later", metav1.GetOptions{})
	must(t, err)
	later.Spec.TTLSecondsAfterFinished = ptr.To[int32](0)
	_, err = r.in(t, shop).BatchV1().Jobs("default").Update(t.Context(), later, metav1.UpdateOptions{})
	must(t, err)
	waitFor(t, 30*time.Second, "the Job whose time was shortened goes", func() (string, bool) { return left(shop), left(shop) == "kept runs" })
	for cluster, want := range map[logicalcluster.Name]string{bank: "at-once", east: "mirrored"} {
		if got := left(cluster); got != want {
			t.Errorf("in %s there is %q, want %q", cluster, got, want)
		}
	}
}

// Events end by leases of etcd, which many of them share, in all workspaces, and a watch tells of it.
func TestEventsEnd(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		ttl  time.Duration
		n    int
		ends bool
	}{
		"as kube-apiserver's": {NewOptions().EventTTL, 200, false},
		"soon":                {3 * time.Second, 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := startServer(t, func(o *Options) { o.EventTTL = tc.ttl })
			before, err := r.data.Leases(t.Context())
			must(t, err)
			watches := map[logicalcluster.Name]watch.Interface{}
			for _, cluster := range []logicalcluster.Name{shop, bank} {
				_, err := r.in(t, cluster).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
				must(t, err)
				events := r.in(t, cluster).CoreV1().Events("default")
				watches[cluster], err = events.Watch(t.Context(), metav1.ListOptions{})
				must(t, err)
				defer watches[cluster].Stop()
				for i := range tc.n {
					_, err := events.Create(t.Context(), &corev1.Event{
						ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("e%d", i)},
						InvolvedObject: corev1.ObjectReference{Kind: "ConfigMap", Namespace: "default", Name: "c"},
					}, metav1.CreateOptions{})
					must(t, err)
				}
			}
			leases, err := r.data.Leases(t.Context())
			must(t, err)
			if n := len(leases.Leases) - len(before.Leases); !tc.ends && n > 2 {
				t.Errorf("%d leases for %d Events", n, 2*tc.n)
			}
			rows, err := r.data.Get(t.Context(), "/registry/events/", clientv3.WithPrefix())
			must(t, err)
			if !tc.ends && len(rows.Kvs) != 2*tc.n {
				t.Errorf("%d rows for %d Events", len(rows.Kvs), 2*tc.n)
			}
			for _, row := range rows.Kvs {
				lease, err := r.data.TimeToLive(t.Context(), clientv3.LeaseID(row.Lease))
				must(t, err)
				if granted := time.Duration(lease.GrantedTTL) * time.Second; !tc.ends && (granted < tc.ttl || granted > tc.ttl+time.Minute) {
					t.Errorf("%s ends after %s, want %s and at most a minute more", row.Key, granted, tc.ttl)
				}
			}
			if !tc.ends {
				return
			}
			for cluster, events := range watches {
				gone := 0
				for gone < tc.n {
					select {
					case event := <-events.ResultChan():
						if event.Type == watch.Deleted {
							gone++
						}
					case <-time.After(30 * time.Second):
						t.Fatalf("in %s a watch saw %d of %d Events end", cluster, gone, tc.n)
					}
				}
			}
		})
	}
}
