package rbac_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/util/compatibility"

	kcp "github.com/kcp-dev/logicalcluster/v3"

	rbacv1 "k8s.io/api/rbac/v1"
	kubeapi "k8s.io/kubernetes/pkg/apis/rbac"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	"k8s.io/kubernetes/pkg/kubeapiserver"

	embeddedetcd "atoll.dev/atoll/embedded-etcd"
	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/rbac"
	"atoll.dev/atoll/server/storage"
)

// stored is the API of roles over the server's own storage, with the bootstrap policy shared by all logical clusters.
type stored struct {
	authorizer authorizer.Authorizer
	served     map[string]rest.Storage
}

// newStored serves what is stored; earlier may change what the storage shares to what it did when things were reset.
func newStored(t testing.TB, earlier ...func(rbac.Objects)) *stored {
	t.Helper()
	etcd, err := embeddedetcd.Start(t.Context(), embeddedetcd.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = etcd.Stop() })
	enabled := serverstorage.NewResourceConfig()
	enabled.EnableVersions(rbacv1.SchemeGroupVersion)
	config := kubeapiserver.NewStorageFactoryConfigEffectiveVersion(compatibility.DefaultBuildEffectiveVersion())
	config.APIResourceConfig = enabled
	options := genericoptions.NewEtcdOptions(storagebackend.NewDefaultConfig("/registry", nil))
	options.DefaultStorageMediaType = runtime.ContentTypeProtobuf // as the server has it
	factory, err := config.Complete(options).New()
	if err != nil {
		t.Fatal(err)
	}
	shared, err := rbac.Bootstrap()
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range earlier {
		change(shared)
	}
	backend, err := storage.New(storage.Config{
		Client: etcd.Client, StorageFactory: factory,
		Shared: func(gr schema.GroupResource) []runtime.Object { return slices.Collect(maps.Values(shared[gr])) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(backend.Destroy)
	stores, err := rbac.NewStores(backend)
	if err != nil {
		t.Fatal(err)
	}
	if err := backend.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	authz, rules := rbac.NewAuthorizer(stores.Getters())
	info, err := rbac.NewProvider(stores, authz, rules).NewRESTStorage(enabled, backend)
	if err != nil {
		t.Fatal(err)
	}
	return &stored{authorizer: authz, served: info.VersionedResourcesStorageMap["v1"]}
}

func as(ctx context.Context, cluster, name string, groups ...string) context.Context {
	ctx = logicalcluster.WithCluster(ctx, logicalcluster.Cluster{Name: kcp.Name(cluster)})
	ctx = genericapirequest.WithUser(ctx, &user.DefaultInfo{Name: name, Groups: groups})
	ctx = genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{APIGroup: kubeapi.GroupName, APIVersion: "v1", Resource: "clusterrolebindings"})
	return genericapirequest.WithNamespace(ctx, metav1.NamespaceNone)
}

// bind makes name a cluster-admin of ctx's logical cluster, as the user in ctx.
func (s *stored) bind(ctx context.Context, name string) error {
	_, err := s.served["clusterrolebindings"].(rest.Creater).Create(ctx, &kubeapi.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-is-admin"},
		RoleRef:    kubeapi.RoleRef{APIGroup: kubeapi.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []kubeapi.Subject{{Kind: "User", APIGroup: kubeapi.GroupName, Name: name}},
	}, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	return err
}

func (s *stored) mayDelete(ctx context.Context) (authorizer.Decision, string, error) {
	who, _ := genericapirequest.UserFrom(ctx)
	return s.authorizer.Authorize(ctx, authorizer.AttributesRecord{User: who, Verb: "delete", APIGroup: "apps", Resource: "deployments", Namespace: "default", ResourceRequest: true})
}

// The role is the shared one, in the bindings' own logical cluster; the binding is a row of aa.
func TestBindingToASharedRole(t *testing.T) {
	s := newStored(t)
	if err := s.bind(as(t.Context(), "aa", "eve"), "eve"); !apierrors.IsForbidden(err) {
		t.Fatalf("eve, who holds nothing, binds herself to cluster-admin: %v, want forbidden", err)
	}
	if err := s.bind(as(t.Context(), "aa", "root", user.SystemPrivilegedGroup), "bob"); err != nil {
		t.Fatal(err)
	}
	bob := as(t.Context(), "aa", "bob")
	var last string
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) {
		decision, why, err := s.mayDelete(bob)
		last = fmt.Sprintf("decision %v (%s), error %v", decision, why, err)
		return decision == authorizer.DecisionAllow, nil
	})
	if err != nil {
		t.Fatalf("bob is bound in aa, and the watch cache never lets him: %s", last)
	}
	if decision, why, err := s.mayDelete(as(t.Context(), "bb", "bob")); decision != authorizer.DecisionNoOpinion || err != nil {
		t.Errorf("bob in bb: decision %v (%s), error %v, want no opinion", decision, why, err)
	}
	if err := s.bind(bob, "carol"); err != nil {
		t.Errorf("bob, cluster-admin in aa, binds carol there: %v", err)
	}
	if err := s.bind(as(t.Context(), "bb", "bob"), "carol"); !apierrors.IsForbidden(err) {
		t.Errorf("bob, nobody in bb, binds carol there: %v, want forbidden", err)
	}
}

func TestSharedPolicyIsNotEverywhere(t *testing.T) {
	s := newStored(t)
	if err := s.bind(as(t.Context(), "aa", "root", user.SystemPrivilegedGroup), "bob"); err != nil {
		t.Fatal(err)
	}
	mayReadVersion := func(c logicalcluster.Cluster) authorizer.Decision {
		ctx := logicalcluster.WithCluster(t.Context(), c)
		// The error of a wildcard comes as the reason of no opinion.
		decision, _, err := s.authorizer.Authorize(ctx, authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: "bob", Groups: []string{user.AllAuthenticated}}, Verb: "get", Path: "/version",
		})
		if err != nil {
			t.Fatal(err)
		}
		return decision
	}
	tests := map[string]struct {
		cluster logicalcluster.Cluster
		want    authorizer.Decision
		reason  string
	}{
		"workspace": {logicalcluster.Cluster{Name: "bb"}, authorizer.DecisionAllow, "everybody authenticated may, by a shared binding"},
		"mirror":    {logicalcluster.Cluster{Name: "bb", Mirror: true}, authorizer.DecisionNoOpinion, "a mirror has rows only"},
		"wildcard":  {logicalcluster.Cluster{Wildcard: true}, authorizer.DecisionNoOpinion, "bob's binding in aa says nothing about all"},
	}
	for name, tc := range tests {
		if got := mayReadVersion(tc.cluster); got != tc.want {
			t.Errorf("%s: decision %v, want %v: %s", name, got, tc.want, tc.reason)
		}
	}
}

// A row hides the shared object of its name: who empties the role in his logical cluster gets nothing from it there.
func TestRowHidesSharedRole(t *testing.T) {
	s := newStored(t)
	ctx := as(t.Context(), "aa", "root", user.SystemPrivilegedGroup)
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		role := old.DeepCopyObject().(*kubeapi.ClusterRole)
		role.Rules = nil
		return role, nil
	})
	_, _, err := s.served["clusterroles"].(rest.Updater).Update(ctx, "system:public-info-viewer", info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mayReadVersion := func(cluster string) authorizer.Decision {
		decision, _, err := s.authorizer.Authorize(as(t.Context(), cluster, "x"), authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: "x", Groups: []string{user.AllUnauthenticated}}, Verb: "get", Path: "/version",
		})
		if err != nil {
			t.Fatal(err)
		}
		return decision
	}
	err = wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) {
		return mayReadVersion("aa") == authorizer.DecisionNoOpinion, nil
	})
	if err != nil {
		t.Error("the emptied role still allows in aa")
	}
	if got := mayReadVersion("bb"); got != authorizer.DecisionAllow {
		t.Errorf("the role emptied in aa decides %v in bb, want allow", got)
	}
}

// What was reset decides nothing by its row, which is of the version of then.
func TestResetRowsDecideNothing(t *testing.T) {
	const name = "system:public-info-viewer"
	for resource, empty := range map[string]func(runtime.Object){
		"clusterroles":        func(obj runtime.Object) { obj.(*kubeapi.ClusterRole).Rules = nil },
		"clusterrolebindings": func(obj runtime.Object) { obj.(*kubeapi.ClusterRoleBinding).Subjects = nil },
	} {
		t.Run(resource, func(t *testing.T) {
			s := newStored(t, func(objects rbac.Objects) { empty(objects[kubeapi.Resource(resource)][name]) })
			decides := func(want authorizer.Decision) {
				t.Helper()
				var last authorizer.Decision
				err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) {
					decision, _, err := s.authorizer.Authorize(as(t.Context(), "aa", "x"), authorizer.AttributesRecord{
						User: &user.DefaultInfo{Name: "x", Groups: []string{user.AllUnauthenticated}}, Verb: "get", Path: "/version",
					})
					last = decision
					return decision == want, err
				})
				if err != nil {
					t.Fatalf("decision %v, want %v: %v", last, want, err)
				}
			}
			decides(authorizer.DecisionAllow)
			ctx := as(t.Context(), "aa", "root", user.SystemPrivilegedGroup)
			_, _, err := s.served[resource].(rest.Updater).Update(ctx, name, relabelled, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			decides(authorizer.DecisionNoOpinion)
			if _, _, err := s.served[resource].(rest.GracefulDeleter).Delete(ctx, name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			decides(authorizer.DecisionAllow)
		})
	}
}

// relabelled changes an object by a label.
var relabelled = rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
	changed := old.DeepCopyObject()
	changed.(metav1.Object).SetLabels(map[string]string{"changed": "yes"})
	return changed, nil
})

// resetAll changes and deletes whatever of roles and bindings the server shares, in a logical cluster, and says how many of each there are.
func (s *stored) resetAll(t testing.TB, cluster string) map[string]int {
	t.Helper()
	objects, err := rbac.Bootstrap()
	if err != nil {
		t.Fatal(err)
	}
	numbers := map[string]int{}
	root := as(t.Context(), cluster, "root", user.SystemPrivilegedGroup)
	for resource, byKey := range objects {
		served := s.served[resource.Resource]
		numbers[resource.Resource] = len(byKey)
		for key := range byKey {
			ctx, name := root, key
			if namespace, of, ok := strings.Cut(key, "/"); ok {
				ctx, name = genericapirequest.WithNamespace(root, namespace), of
			}
			if _, _, err := served.(rest.Updater).Update(ctx, name, relabelled, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{}); err != nil {
				t.Fatalf("change %s %s: %v", resource, key, err)
			}
			if _, _, err := served.(rest.GracefulDeleter).Delete(ctx, name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
				t.Fatalf("reset %s %s: %v", resource, key, err)
			}
		}
	}
	return numbers
}

// Whatever of roles and bindings the server shares can be reset: no row of it says anything then.
func TestAllThatIsSharedCanBeReset(t *testing.T) {
	s := newStored(t)
	for resource, all := range s.resetAll(t, "aa") {
		for reason, tc := range map[string]struct {
			cluster logicalcluster.Cluster
			want    int
		}{
			"as what is shared":   {logicalcluster.Cluster{Name: "aa"}, all},
			"where are rows only": {logicalcluster.Cluster{Name: "aa", Mirror: true}, 0},
		} {
			ctx := logicalcluster.WithCluster(as(t.Context(), "aa", "root", user.SystemPrivilegedGroup), tc.cluster)
			list, err := s.served[resource].(rest.Lister).List(ctx, &metainternalversion.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := meta.LenList(list); got != tc.want || got > 0 && strings.Contains(fmt.Sprint(list), "changed") {
				t.Errorf("%s there are %d %s, want %d: %v", reason, got, resource, tc.want, list)
			}
		}
	}
}

func BenchmarkAuthorize(b *testing.B) {
	s := newStored(b)
	for _, cluster := range []string{"aa", "bb"} {
		if err := s.bind(as(b.Context(), cluster, "root", user.SystemPrivilegedGroup), "bob"); err != nil {
			b.Fatal(err)
		}
	}
	s.resetAll(b, "bb")
	for name, cluster := range map[string]string{"nothing changed": "aa", "all reset": "bb"} {
		b.Run(name, func(b *testing.B) {
			ctx := as(b.Context(), cluster, "bob")
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := s.mayDelete(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A row hides the shared binding of its name from those, too, whom it does not concern.
func TestRowHidesSharedBinding(t *testing.T) {
	s := newStored(t)
	ctx := as(t.Context(), "aa", "root", user.SystemPrivilegedGroup)
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		binding := old.DeepCopyObject().(*kubeapi.ClusterRoleBinding)
		binding.Subjects = []kubeapi.Subject{{Kind: "User", APIGroup: kubeapi.GroupName, Name: "bob"}}
		return binding, nil
	})
	_, _, err := s.served["clusterrolebindings"].(rest.Updater).Update(ctx, "system:public-info-viewer", info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mayReadVersion := func(who user.Info) bool {
		decision, _, err := s.authorizer.Authorize(as(t.Context(), "aa", "x"), authorizer.AttributesRecord{User: who, Verb: "get", Path: "/version"})
		if err != nil {
			t.Fatal(err)
		}
		return decision == authorizer.DecisionAllow
	}
	bob, anonymous := &user.DefaultInfo{Name: "bob"}, &user.DefaultInfo{Name: "x", Groups: []string{user.AllUnauthenticated}}
	err = wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) { return mayReadVersion(bob), nil })
	if err != nil || mayReadVersion(anonymous) {
		t.Errorf("bob, for whom the binding is now: %v; one for whom it was: %v", mayReadVersion(bob), mayReadVersion(anonymous))
	}
}

// A role of a few KB that means more rights than memory holds is refused to whom it would be compared with.
func TestRolesWithoutNumberOfRights(t *testing.T) {
	s := newStored(t)
	words := make([]string, 2000)
	for i := range words {
		words[i] = fmt.Sprint("x", i)
	}
	create := func(ctx context.Context) error {
		ctx = genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{IsResourceRequest: true, Verb: "create", APIGroup: kubeapi.GroupName, APIVersion: "v1", Resource: "clusterroles"})
		_, err := s.served["clusterroles"].(rest.Creater).Create(ctx, &kubeapi.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "big"}, Rules: []kubeapi.PolicyRule{{Verbs: words, APIGroups: words, Resources: words}},
		}, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
		return err
	}
	if err := create(as(t.Context(), "aa", "eve")); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `"escalate"`) {
		t.Errorf("eve: %.1000v, want forbidden and what to do", err)
	}
	root := as(t.Context(), "aa", "root", user.SystemPrivilegedGroup)
	if err := create(root); err != nil {
		t.Errorf("who is not checked: %v", err)
	}
	update := func(ctx context.Context, change func(*kubeapi.ClusterRole)) error {
		info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
			role := old.DeepCopyObject().(*kubeapi.ClusterRole)
			change(role)
			return role, nil
		})
		_, _, err := s.served["clusterroles"].(rest.Updater).Update(ctx, "big", info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
		return err
	}
	eve := as(t.Context(), "aa", "eve")
	if err := update(eve, func(r *kubeapi.ClusterRole) { r.Labels = map[string]string{"a": "b"} }); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `"escalate"`) {
		t.Errorf("eve changes it: %.1000v, want forbidden and what to do", err)
	}
	if err := update(eve, func(r *kubeapi.ClusterRole) { r.Finalizers = []string{"example.com/x"} }); err != nil {
		t.Errorf("what the garbage collector changes: %.1000v", err)
	}
	if err := s.bind(eve, "carol"); !apierrors.IsForbidden(err) {
		t.Errorf("eve binds to what she does not hold: %v", err)
	}
}
