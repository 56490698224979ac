package admission

import (
	"context"
	"errors"
	"slices"
	"testing"

	lc "github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/kubernetes/pkg/apis/node"
	_ "k8s.io/kubernetes/pkg/apis/node/install"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/webhooks"
)

// store are Objects by resource and name. Nil ones cannot be read.
type store struct {
	t       *testing.T
	cluster lc.Name // the only one that may be read
	found   map[string]runtime.Object
}

var errAway = errors.New("etcd is away")

func (s store) check(ctx context.Context) {
	if c, _ := logicalcluster.ClusterFrom(ctx); c.Name != s.cluster {
		s.t.Errorf("read in logical cluster %q, want %q", c.Name, s.cluster)
	}
}

func (s store) Get(ctx context.Context, resource schema.GroupResource, _, name string, _ bool) (runtime.Object, error) {
	s.check(ctx)
	obj, ok := s.found[resource.Resource+"/"+name]
	if !ok {
		return nil, errAway
	}
	if obj == nil {
		return nil, apierrors.NewNotFound(resource, name)
	}
	return obj, nil
}

func (s store) List(ctx context.Context, _ schema.GroupResource, _ string, _ bool) ([]runtime.Object, error) {
	s.check(ctx)
	return nil, errAway
}

// configurationsOf are known configurations.
func configurationsOf(t *testing.T, objects map[schema.GroupResource][]any) *Configurations {
	t.Helper()
	c := NewConfigurations(nil)
	for _, resource := range configurationsOfAnyCluster {
		if err := (&configurationStore{c, resource}).Replace(objects[resource], "1"); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func chain(t *testing.T, objects Objects) admission.Interface {
	t.Helper()
	plugins, err := New(Config{
		Objects: objects,
		Authorizer: authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionNoOpinion, "", nil
		}),
		Terminating:    func(lc.Name) bool { return false },
		IsSyncer:       func(user.Info) bool { return false },
		WhyNowhere:     func(lc.Name, schema.GroupResource, string, string, map[string]string) string { return "" },
		MissingClasses: func(lc.Name, schema.GroupResource, string, ctrlclient.Object) []string { return nil },
		RefusedPods:    func(lc.Name, schema.GroupResource, string, ctrlclient.Object) ([]string, error) { return nil, nil },

		Configurations: configurationsOf(t, nil),
		Webhooks:       webhooks.NewCaller(webhooks.Addresses{}),
	})
	if err != nil {
		t.Fatal(err)
	}
	return plugins
}

// admit is what a request does with a chain.
func admit(ctx context.Context, plugins admission.Interface, a admission.Attributes) error {
	if m, ok := plugins.(admission.MutationInterface); ok {
		if err := m.Admit(ctx, a, nil); err != nil {
			return err
		}
	}
	if v, ok := plugins.(admission.ValidationInterface); ok {
		return v.Validate(ctx, a, nil)
	}
	return nil
}

func podWith(change func(*core.Pod)) *core.Pod {
	pod := &core.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"},
		Spec:       core.PodSpec{ServiceAccountName: "builder", SecurityContext: &core.PodSecurityContext{}, Containers: []core.Container{{Name: "c"}}},
	}
	if change != nil {
		change(pod)
	}
	return pod
}

// TestUnreadable: what cannot be known is not allowed, and a request that names no logical cluster fails. In a mirror nothing
// is asked.
func TestUnreadable(t *testing.T) {
	plugins := chain(t, store{t: t, cluster: "shop", found: map[string]runtime.Object{"namespaces/ns": &core.Namespace{}}})
	shop, _ := in(logicalcluster.Cluster{Name: "shop"})
	mirror, _ := in(logicalcluster.Cluster{Name: "east", Mirror: true})
	class := "sandbox"
	for name, test := range map[string]what{
		"pod":           {resource: "pods", kind: "Pod", namespace: "ns", name: "p", operation: admission.Create, object: podWith(nil)},
		"claim":         {resource: "persistentvolumeclaims", kind: "PersistentVolumeClaim", namespace: "ns", name: "c", operation: admission.Create, object: &core.PersistentVolumeClaim{}},
		"ingress":       {group: "networking.k8s.io", resource: "ingresses", kind: "Ingress", namespace: "ns", name: "i", operation: admission.Create, object: &networking.Ingress{}},
		"default class": {group: "scheduling.k8s.io", resource: "priorityclasses", kind: "PriorityClass", name: "c", operation: admission.Create, object: &scheduling.PriorityClass{GlobalDefault: true}},
		"larger claim": {
			resource: "persistentvolumeclaims", kind: "PersistentVolumeClaim", namespace: "ns", name: "c", operation: admission.Update,
			object: claimOf("2Gi", class), old: claimOf("1Gi", class),
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := admit(shop, plugins, test.attributes()); err == nil {
				t.Error("allowed in a workspace that cannot be read")
			}
			if err := admit(context.Background(), plugins, test.attributes()); !apierrors.IsInternalError(err) {
				t.Errorf("error %v without a logical cluster, want an internal one", err)
			}
			if test.operation == admission.Update {
				if err := admit(mirror, plugins, test.attributes()); err != nil {
					t.Errorf("refused in a mirror: %v", err)
				}
			}
		})
	}
	// Each plugin for itself: in the chain the first one hides the others.
	for _, plugin := range slices.Concat(beforePodSecurity, afterPodSecurity) {
		t.Run(plugin.name, func(t *testing.T) {
			u, err := plugin.make(Config{Objects: store{t: t, cluster: "shop"}, Authorizer: authorizer.AuthorizerFunc(nil)})
			if err != nil {
				t.Fatal(err)
			}
			for _, gr := range u.resources {
				a := what{group: gr.Group, resource: gr.Resource, kind: "None", namespace: "ns", name: "x", operation: admission.Create}.attributes()
				if err := admit(context.Background(), u, a); !apierrors.IsInternalError(err) {
					t.Errorf("%s without a logical cluster: %v, want an internal error", gr, err)
				}
				if err := admit(mirror, u, a); err != nil {
					t.Errorf("%s in a mirror: %v", gr, err)
				}
			}
		})
	}
}

func claimOf(size, class string) *core.PersistentVolumeClaim {
	return &core.PersistentVolumeClaim{
		Spec: core.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			Resources:        core.VolumeResourceRequirements{Requests: core.ResourceList{core.ResourceStorage: resource.MustParse(size)}},
		},
		Status: core.PersistentVolumeClaimStatus{Phase: core.ClaimBound},
	}
}

// TestPodSecurityUnreadable: a pod in a namespace that cannot be read is refused; of what makes pods there is only a warning to lose.
func TestPodSecurityUnreadable(t *testing.T) {
	p, err := NewPodSecurity(store{t: t, cluster: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	pod := what{resource: "pods", kind: "Pod", namespace: "ns", name: "p", operation: admission.Create, object: podWith(nil)}.attributes()
	deployment := what{group: "apps", resource: "deployments", kind: "Deployment", namespace: "ns", name: "d", operation: admission.Create, object: &apps.Deployment{}}.attributes()
	shop, _ := in(logicalcluster.Cluster{Name: "shop"})
	mirror, _ := in(logicalcluster.Cluster{Name: "east", Mirror: true})
	if err := p.Validate(shop, pod, nil); !apierrors.IsInternalError(err) {
		t.Errorf("pod: %v, want an internal error", err)
	}
	if err := p.Validate(shop, deployment, nil); err != nil {
		t.Errorf("Deployment: %v", err)
	}
	if err := p.Validate(mirror, pod, nil); err != nil {
		t.Errorf("pod in a mirror: %v", err)
	}
	if err := p.Validate(context.Background(), pod, nil); !apierrors.IsInternalError(err) {
		t.Errorf("no logical cluster: %v, want an internal error", err)
	}
}

// TestWhatIsReadIsACopy: a plugin puts what it reads into the pod, which is changed later, and the cache must not be.
func TestWhatIsReadIsACopy(t *testing.T) {
	class := &node.RuntimeClass{Handler: "h", Overhead: &node.Overhead{PodFixed: core.ResourceList{core.ResourceCPU: resource.MustParse("1")}}}
	at := slices.IndexFunc(afterPodSecurity, func(k fromKubernetes) bool { return k.name == "RuntimeClass" })
	runtimeClass, err := afterPodSecurity[at].make(Config{
		Objects:    store{t: t, cluster: "shop", found: map[string]runtime.Object{"runtimeclasses/sandbox": class}},
		Authorizer: authorizer.AuthorizerFunc(nil),
	})
	if err != nil {
		t.Fatal(err)
	}
	name := "sandbox"
	pod := podWith(func(p *core.Pod) { p.Spec.RuntimeClassName = &name })
	shop, _ := in(logicalcluster.Cluster{Name: "shop"})
	a := what{resource: "pods", kind: "Pod", namespace: "ns", name: "p", operation: admission.Create, object: pod}.attributes()
	if err := admit(shop, runtimeClass, a); err != nil {
		t.Fatal(err)
	}
	if pod.Spec.Overhead.CPU().String() != "1" {
		t.Fatalf("overhead %v, want that of the class", pod.Spec.Overhead)
	}
	pod.Spec.Overhead[core.ResourceCPU] = resource.MustParse("9")
	if class.Overhead.PodFixed.CPU().String() != "1" {
		t.Errorf("the class in the cache has the pod's overhead %v", class.Overhead.PodFixed)
	}
}
