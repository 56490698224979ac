package garbage_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	kubestorage "k8s.io/apiserver/pkg/storage"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	background = metav1.DeletePropagationBackground
	foreground = metav1.DeletePropagationForeground
	orphan     = metav1.DeletePropagationOrphan

	foregroundFinalizer = metav1.FinalizerDeleteDependents
)

func podTemplate() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

func selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
}

func deployment() *appsv1.Deployment {
	return &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Selector: selector(), Template: podTemplate()}}
}

func replicaSet() *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Selector: selector(), Template: podTemplate()}}
}

func pod() *corev1.Pod {
	template := podTemplate()
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: template.Labels}, Spec: template.Spec}
}

// TestCollects goes through what upstream's collector does.
func TestCollects(t *testing.T) {
	h := start(t, t.TempDir(), true)
	for name, scenario := range map[string]func(*place){
		"background": func(p *place) {
			o, other := p.configMap("o"), p.configMap("other")
			d, e := p.configMap("d", p.owner(o)), p.configMap("e", p.owner(other))
			p.delete(o, background)
			p.goes(o, d)
			p.stay(other, e)
		},
		"across kinds": func(p *place) {
			d := newObject(p, deployment(), "web")
			rs := newObject(p, replicaSet(), "web-1", p.owner(d, blocking))
			pod := newObject(p, pod(), "web-1-a", p.owner(rs, blocking))
			secret := newObject(p, &corev1.Secret{}, "s", p.owner(pod))
			p.delete(d, background)
			p.goes(d, rs, pod, secret)
		},
		"an owner of all namespaces": func(p *place) {
			role := newObject(p, &rbacv1.ClusterRole{}, "role-"+p.namespace)
			d, binding := p.configMap("d", p.owner(role)), newObject(p, &rbacv1.ClusterRoleBinding{RoleRef: rbacv1.RoleRef{
				APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "x"}}, "binding-"+p.namespace, p.owner(role))
			p.stay(d, binding)
			p.delete(role, background)
			p.goes(role, d, binding)
		},
		"foreground waits for what blocks": func(p *place) {
			o := p.configMap("o")
			d, free := p.held("d", p.owner(o, blocking)), p.held("free", p.owner(o))
			p.delete(o, foreground)
			p.becomes(d, true, "o", hold)
			p.becomes(free, true, "o", hold)
			p.becomes(o, true, "", foregroundFinalizer)
			p.stay()
			p.becomes(o, true, "", foregroundFinalizer)
			p.release(d)
			p.goes(d, o)
			p.becomes(free, true, "o", hold)
			p.release(free)
			p.goes(free)
		},
		"foreground from the leaves up": func(p *place) {
			o := p.configMap("o")
			d := newObject(p, &corev1.Secret{}, "d", p.owner(o, blocking))
			e := p.held("e", p.owner(d, blocking))
			p.delete(o, foreground)
			p.becomes(e, true, "d", hold)
			p.becomes(d, true, "o", foregroundFinalizer)
			p.becomes(o, true, "", foregroundFinalizer)
			p.release(e)
			p.goes(e, d, o)
		},
		"foreground of what owns nothing": func(p *place) {
			o := p.configMap("o")
			p.delete(o, foreground)
			p.goes(o)
		},
		"foreground, and a dependent blocks no more": func(p *place) {
			o := p.configMap("o")
			d := p.held("d", p.owner(o, blocking))
			p.delete(o, foreground)
			p.becomes(d, true, "o", hold)
			patch := fmt.Sprintf(`{"metadata":{"ownerReferences":[{"uid":%q,"blockOwnerDeletion":false}]}}`, o.UID)
			must(p.t, p.clients.Objects.Patch(p.ctx(), d, ctrlclient.RawPatch("application/strategic-merge-patch+json", []byte(patch))))
			p.goes(o)
			p.release(d)
			p.goes(d)
		},
		"foreground, and a dependent has another owner": func(p *place) {
			o, other := p.configMap("o"), p.configMap("other")
			d := p.configMap("d", p.owner(o, blocking), p.owner(other))
			p.delete(o, foreground)
			p.goes(o)
			p.becomes(d, false, "other", "")
		},
		"orphan": func(p *place) {
			o := p.configMap("o")
			d, e := p.configMap("d", p.owner(o, blocking)), newObject(p, &corev1.Secret{}, "e", p.owner(o))
			p.delete(o, orphan)
			p.goes(o)
			p.stay(d, e)
			p.becomes(d, false, "", "")
			p.becomes(e, false, "", "")
		},
		"several owners": func(p *place) {
			a, b := p.configMap("a"), p.configMap("b")
			d := p.configMap("d", p.owner(a), p.owner(b))
			p.delete(a, background)
			p.becomes(d, false, "b", "")
			p.stay(b, d)
			p.delete(b, background)
			p.goes(b, d)
		},
		"an owner that never was": func(p *place) {
			d := p.configMap("d", metav1.OwnerReference{APIVersion: "v1", Kind: "Secret", Name: "x", UID: "x"})
			p.goes(d)
		},
		"another object has the owner's name": func(p *place) {
			o := p.configMap("o")
			d := p.configMap("d", p.owner(o, func(ref *metav1.OwnerReference) { ref.UID = "before" }))
			e := p.configMap("e", p.owner(o))
			p.goes(d)
			p.stay(o, e)
		},
		"an owner is made again": func(p *place) {
			o := p.configMap("o")
			d := p.configMap("d", p.owner(o))
			p.delete(o, background)
			again := p.configMap("o")
			e := p.configMap("e", p.owner(again))
			p.goes(d)
			p.stay(again, e)
		},
		"the owner is in another namespace": func(p *place) {
			o := p.configMap("o")
			there := p.in(p.t, p.cluster)
			d, e := there.configMap("d", p.owner(o)), p.configMap("e", p.owner(o))
			there.goes(d)
			there.told("d", fmt.Sprintf("ownerRef [v1/ConfigMap, namespace: %s, name: o, uid: %s] does not exist in namespace %q", there.namespace, o.UID, there.namespace))
			p.stay(o, e)
		},
		"an object of all namespaces names an owner of one": func(p *place) {
			o, events := p.configMap("o"), p.at(p.t, p.cluster, "default")
			d := newObject(p, &rbacv1.ClusterRole{}, "lost-"+p.namespace, p.owner(o))
			events.told(d.Name, `does not exist in namespace ""`)
			p.delete(o, background)
			p.goes(o)
			p.stay(d)
		},
		"an owner of a kind that is not served": func(p *place) {
			d := p.configMap("d", metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Widget", Name: "w", UID: "w"})
			e := p.configMap("e", metav1.OwnerReference{APIVersion: "apps/v1beta1", Kind: "Deployment", Name: "w", UID: "w"})
			f := p.configMap("f", metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Widget", Name: "w", UID: "w"},
				metav1.OwnerReference{APIVersion: "v1", Kind: "Secret", Name: "x", UID: "x"})
			p.stay(d, e, f)
		},
		"a circle in the background": func(p *place) {
			a := p.configMap("a")
			b := p.configMap("b", p.owner(a))
			p.own(a, p.owner(b))
			p.stay(a, b)
			p.delete(a, background)
			p.goes(a, b)
		},
		"a circle in the foreground": func(p *place) {
			a := p.configMap("a")
			b := p.configMap("b", p.owner(a, blocking))
			p.own(a, p.owner(b, blocking))
			p.delete(a, foreground)
			p.goes(a, b)
		},
		"what owns itself": func(p *place) {
			a := p.configMap("a")
			p.own(a, p.owner(a, blocking))
			p.stay(a)
			p.delete(a, foreground)
			p.goes(a)
		},
		"a dependent that comes too late": func(p *place) {
			o := p.configMap("o")
			p.delete(o, background)
			p.goes(o)
			p.goes(p.configMap("d", p.owner(o)))
		},
		"a dependent's own finalizers say how it goes": func(p *place) {
			o := p.configMap("o")
			d := newObject(p, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{metav1.FinalizerOrphanDependents}}}, "d", p.owner(o))
			e := p.configMap("e", p.owner(d))
			p.delete(o, background)
			p.goes(o, d)
			p.becomes(e, false, "", "")
		},
		"what is deleted without a policy takes its pods along": func(p *place) {
			// Kubernetes keeps those of a Job, for those who know it from when there was no collector.
			job := newObject(p, &batchv1.Job{Spec: batchv1.JobSpec{Template: func() corev1.PodTemplateSpec {
				template := podTemplate()
				template.Spec.RestartPolicy = corev1.RestartPolicyNever
				return template
			}()}}, "job")
			a := newObject(p, pod(), "job-a", p.owner(job, blocking))
			d := newObject(p, deployment(), "web")
			rs := newObject(p, replicaSet(), "web-1", p.owner(d, blocking))
			must(p.t, p.clients.Objects.Delete(p.ctx(), job))
			must(p.t, p.clients.Objects.Delete(p.ctx(), d))
			p.goes(job, a, d, rs)
		},
		"the parent of a Deployment": func(p *place) {
			release := newObject(p, &corev1.Secret{}, "release")
			d := newObject(p, deployment(), "web", p.owner(release))
			service := newObject(p, &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, "web", p.owner(release))
			p.stay(d, service)
			p.delete(release, foreground)
			p.goes(release, d, service)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scenario(h.in(t, shop))
		})
	}
}

// own gives an object owners.
func (p *place) own(obj *corev1.ConfigMap, owners ...metav1.OwnerReference) {
	p.t.Helper()
	owned := obj.DeepCopy()
	owned.OwnerReferences = owners
	must(p.t, p.clients.Objects.Patch(p.ctx(), owned, ctrlclient.MergeFrom(obj)))
}

// told waits for the warning about an object's owner.
func (p *place) told(name, part string) {
	p.t.Helper()
	p.warned(name, "OwnerRefInvalidNamespace", part)
}

// warned waits for a warning about an object.
func (p *place) warned(name, reason, part string) {
	p.t.Helper()
	p.until("the event is told", func() (bool, string) {
		events := &corev1.EventList{}
		must(p.t, p.clients.Objects.List(p.ctx(), events, ctrlclient.InNamespace(p.namespace)))
		seen := ""
		for _, e := range events.Items {
			if e.InvolvedObject.Name == name && e.Reason == reason && e.Type == "Warning" && strings.Contains(e.Message, part) {
				return true, ""
			}
			seen += fmt.Sprintf("%s %s: %s\n", e.InvolvedObject.Name, e.Reason, e.Message)
		}
		return false, seen
	})
}

// TestCollectsAThousand: what owns much goes as well as what owns little.
func TestCollectsAThousand(t *testing.T) {
	p := start(t, t.TempDir(), true).in(t, shop)
	o := p.configMap("o")
	for i := range 1000 {
		p.configMap(fmt.Sprintf("d%d", i), p.owner(o, blocking))
	}
	began := time.Now()
	p.delete(o, foreground)
	p.goes(o)
	t.Logf("an owner and 1,000 dependents went in %s", time.Since(began).Round(time.Millisecond))
	if left := p.count(); left != 0 {
		t.Errorf("the owner went before %d of its dependents", left)
	}
	p.until("the collector forgets them", func() (bool, string) {
		n := p.collector.Nodes()
		return n == 0, fmt.Sprintf("%d objects", n)
	})
}

// cutOff is a store that cannot be followed for a while: watches end, and what happens meanwhile they do not tell.
type cutOff struct {
	kubestorage.Interface
	off     *atomic.Bool
	watches chan watch.Interface // the one that is open
	refused *atomic.Int32        // watches that were asked for since
}

func (s cutOff) GetList(ctx context.Context, key string, opts kubestorage.ListOptions, list runtime.Object) error {
	if s.off.Load() {
		return errors.New("not now")
	}
	return s.Interface.GetList(ctx, key, opts, list)
}

func (s cutOff) Watch(ctx context.Context, key string, opts kubestorage.ListOptions) (watch.Interface, error) {
	if s.off.Load() {
		s.refused.Add(1)
		return nil, apierrors.NewResourceExpired("too old")
	}
	w, err := s.Interface.Watch(ctx, key, opts)
	if err == nil {
		s.watches <- w
	}
	return w, err
}

// TestForgetsWhatWentUntold: of what went with its workspace, while nobody could tell, nothing is kept.
func TestForgetsWhatWentUntold(t *testing.T) {
	off, watches, refused := &atomic.Bool{}, make(chan watch.Interface, 10), &atomic.Int32{}
	h := startKnowing(t, t.TempDir(), true, over(func(gr schema.GroupResource, inner kubestorage.Interface) kubestorage.Interface {
		if gr.Resource != "configmaps" {
			return inner
		}
		return cutOff{inner, off, watches, refused}
	}))
	p, other := h.at(t, shop, "ns"), h.at(t, bank, "ns")
	p.define("Widget", apiextensionsv1.NamespaceScoped)
	o := p.configMap("o")
	for i := range 20 {
		d := p.configMap(fmt.Sprintf("d%d", i), p.owner(o))
		p.custom("Widget", fmt.Sprintf("w%d", i), "ns", p.owner(d))
	}
	kept := other.configMap("kept", other.owner(other.configMap("o")))
	const all = 1 + 2*20 + 2
	p.until("they are known", func() (bool, string) {
		n := p.collector.Nodes()
		return n == all, fmt.Sprintf("%d of %d", n, all)
	})
	off.Store(true)
	(<-watches).Stop()
	rows, err := h.etcd.Get(t.Context(), "/registry/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	must(t, err)
	for _, kv := range rows.Kvs {
		if strings.Contains(string(kv.Key), "/"+string(shop)+"/") {
			_, err := h.etcd.Delete(t.Context(), string(kv.Key))
			must(t, err)
		}
	}
	other.until("the collector has to list again", func() (bool, string) { return refused.Load() > 0, "it has not asked" })
	off.Store(false)
	other.until("they are forgotten", func() (bool, string) {
		n := other.collector.Nodes()
		return n == 2, fmt.Sprintf("%d are left", n)
	})
	other.stay(kept)
}

func (p *place) count() int {
	p.t.Helper()
	left := &corev1.ConfigMapList{}
	must(p.t, p.clients.Objects.List(p.ctx(), left, ctrlclient.InNamespace(p.namespace)))
	return len(left.Items)
}
