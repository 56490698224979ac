package admission

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kuberuntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	"k8s.io/kubernetes/pkg/apis/storage"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	podsecurityapi "k8s.io/pod-security-admission/api"

	"atoll.dev/atoll/internal/logicalcluster"
)

// there are Objects, all of one logical cluster, by resource.
type there map[string][]kuberuntime.Object

func (o there) Get(_ context.Context, resource schema.GroupResource, _, name string, _ bool) (kuberuntime.Object, error) {
	return nil, apierrors.NewNotFound(resource, name)
}

func (o there) List(_ context.Context, resource schema.GroupResource, _ string, _ bool) ([]kuberuntime.Object, error) {
	return slices.Clone(o[resource.Resource]), nil
}

// allocated is how many bytes something allocates.
func allocated(run func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestClassesAreNotCopied: a request that looks for the default class finds it among however many there are, and copies none of
// the others.
func TestClassesAreNotCopied(t *testing.T) {
	const others = 10_000
	name := func(i int) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: fmt.Sprint("c", i), Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}}
	}
	marked := func(key string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "default", Annotations: map[string]string{key: "true"}}
	}
	for plugin, tc := range map[string]struct {
		resource string
		other    func(int) kuberuntime.Object
		defaults []kuberuntime.Object
		request  what
		class    func(kuberuntime.Object) string
	}{
		"Priority": {
			resource: "priorityclasses",
			other:    func(i int) kuberuntime.Object { return &scheduling.PriorityClass{ObjectMeta: name(i), Value: 1} },
			defaults: []kuberuntime.Object{&scheduling.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Value: 2, GlobalDefault: true}},
			request:  what{resource: "pods", kind: "Pod", object: podWith(nil)},
			class:    func(o kuberuntime.Object) string { return o.(*core.Pod).Spec.PriorityClassName },
		},
		"DefaultStorageClass": {
			resource: "storageclasses",
			other:    func(i int) kuberuntime.Object { return &storage.StorageClass{ObjectMeta: name(i)} },
			defaults: []kuberuntime.Object{
				&storage.StorageClass{ObjectMeta: marked("storageclass.kubernetes.io/is-default-class")},
				&storage.StorageClass{ObjectMeta: marked("storageclass.beta.kubernetes.io/is-default-class")},
			},
			request: what{resource: "persistentvolumeclaims", kind: "PersistentVolumeClaim", object: &core.PersistentVolumeClaim{}},
			class: func(o kuberuntime.Object) string {
				if class := o.(*core.PersistentVolumeClaim).Spec.StorageClassName; class != nil {
					return *class
				}
				return ""
			},
		},
		"DefaultIngressClass": {
			resource: "ingressclasses",
			other:    func(i int) kuberuntime.Object { return &networking.IngressClass{ObjectMeta: name(i)} },
			defaults: []kuberuntime.Object{&networking.IngressClass{ObjectMeta: marked("ingressclass.kubernetes.io/is-default-class")}},
			request:  what{group: "networking.k8s.io", resource: "ingresses", kind: "Ingress", object: &networking.Ingress{}},
			class: func(o kuberuntime.Object) string {
				if class := o.(*networking.Ingress).Spec.IngressClassName; class != nil {
					return *class
				}
				return ""
			},
		},
	} {
		t.Run(plugin, func(t *testing.T) {
			objects := there{}
			for i := range others {
				objects[tc.resource] = append(objects[tc.resource], tc.other(i))
			}
			at := slices.IndexFunc(afterPodSecurity, func(k fromKubernetes) bool { return k.name == plugin })
			u, err := afterPodSecurity[at].make(Config{Objects: objects, Authorizer: authorizer.AuthorizerFunc(nil)})
			if err != nil {
				t.Fatal(err)
			}
			shop, _ := in(logicalcluster.Cluster{Name: "shop"})
			create := func() string {
				w := tc.request
				w.namespace, w.name, w.operation, w.object = "ns", "x", admission.Create, w.object.DeepCopyObject()
				if err := admit(shop, u, w.attributes()); err != nil {
					t.Fatal(err)
				}
				return tc.class(w.object)
			}
			if class := create(); class != "" {
				t.Errorf("has class %q, and none is the default", class)
			}
			if took := allocated(func() { create() }); took > others*50 {
				t.Errorf("took %d bytes, with %d classes that are no default", took, others)
			}
			for _, class := range tc.defaults {
				objects[tc.resource][others-1] = class
				if class := create(); class != "default" {
					t.Errorf("has class %q, want the default one", class)
				}
			}
		})
	}
}

// TestPodsAreNotCopied: whoever asks what a stricter level would mean is told what Kubernetes tells, and what it does not look
// at is not made for it.
func TestPodsAreNotCopied(t *testing.T) {
	pod := func(i int, controller string, privileged bool) *core.Pod {
		p := podWith(func(p *core.Pod) { p.Name = fmt.Sprintf("p%05d", i) })
		if controller != "" {
			p.OwnerReferences = []metav1.OwnerReference{{Name: controller, UID: types.UID(controller), Controller: new(true)}}
		}
		if privileged {
			p.Spec.Containers[0].SecurityContext = &core.SecurityContext{Privileged: &privileged}
		}
		return p
	}
	const many = 4 * mostPods
	for name, tc := range map[string]struct {
		pods func(i int) *core.Pod
		want string
	}{
		"of one controller, and one more": {
			func(i int) *core.Pod {
				if i == many-1 {
					return pod(i, "", true)
				}
				return pod(i, "rs", i == mostPods-2)
			}, "p02998 (and 1 other pod): privileged",
		},
		"the last one that is looked at": {func(i int) *core.Pod { return pod(i, "rs", i == mostPods-1) }, "p02999: privileged"},
		"the first one that is not":      {func(i int) *core.Pod { return pod(i, "rs", i == mostPods) }, ""},
		"of nobody":                      {func(i int) *core.Pod { return pod(i, "", i >= mostPods) }, ""},
		"of a controller each":           {func(i int) *core.Pod { return pod(i, fmt.Sprint("rs", i%(2*mostPods)), i >= mostPods) }, ""},
		"as many as are looked at":       {func(i int) *core.Pod { return pod(i, fmt.Sprint("rs", i%mostPods), i >= mostPods) }, ""},
		"one of another beside":          {func(i int) *core.Pod { return pod(i, fmt.Sprint("rs", i%(mostPods-1)), i == mostPods-1) }, "p02999: privileged"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // the library looks at them for a second at most
				objects := there{}
				for i := range many {
					objects["pods"] = append(objects["pods"], tc.pods(i))
				}
				ours, err := NewPodSecurity(objects)
				if err != nil {
					t.Fatal(err)
				}
				all, err := NewPodSecurity(objects)
				if err != nil {
					t.Fatal(err)
				}
				all.library.PodLister = allPods{objects}
				ask := func(p *PodSecurity) []string {
					ctx, told := in(logicalcluster.Cluster{Name: "shop"})
					level := func(level string) *core.Namespace {
						return &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{podsecurityapi.EnforceLevelLabel: level}}}
					}
					w := what{resource: "namespaces", kind: "Namespace", namespace: "ns", name: "ns", operation: admission.Update, object: level("baseline"), old: level("privileged")}
					if err := p.Validate(ctx, w.attributes(), nil); err != nil {
						t.Error(err)
					}
					return *told
				}
				var got []string
				took := allocated(func() { got = ask(ours) })
				if most := uint64(mostPods)*5000 + many*100; took > most {
					t.Errorf("took %d bytes for %d pods, want at most %d", took, many, most)
				}
				if diff := cmp.Diff(ask(all), got); diff != "" {
					t.Errorf("what is told differs from what is told of all pods (-want +got):\n%s", diff)
				}
				if len(got) == 0 || !strings.Contains(got[0], fmt.Sprintf("first %d of %d existing pods", mostPods, many)) || (len(got) > 1) != (tc.want != "") || tc.want != "" && got[len(got)-1] != tc.want {
					t.Errorf("told %q, want %q", got, tc.want)
				}
			})
		})
	}
}

// allPods lists pods as upstream does.
type allPods struct{ objects Objects }

func (a allPods) ListPods(ctx context.Context, namespace string) ([]*corev1.Pod, error) {
	return lister[corev1.Pod, *corev1.Pod]{scope{ctx, a.objects}, pods, namespace}.list(labels.Everything(), true, nil)
}
