package placement

import (
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

// kind is a kind that makes a namespace hold something to run, and whose objects may have a wish of their own.
type kind struct {
	kinds.Kind
	// holds says whether there is any in the namespace that key names.
	holds func(key client.Key) bool
	// follows says whether there is any that has no wish of its own.
	follows func(key client.Key) bool
	// own returns those in the namespace that have a wish of their own.
	own func(key client.Key) []metav1.Object
	// runs says whether a root has a leaf in one of the mirrors.
	runs func(root client.Key, mirrors []string) bool
}

// kindsOf returns those of all kinds that are placed. changed is told every namespace where an object came, went or
// changed its wish.
func kindsOf(i *client.Informers, changed func(namespace client.Key)) ([]kind, error) {
	var placed []kind
	for _, k := range i.Kinds {
		if k.Goes == kinds.WithNamespace {
			k.OnEvent(func(e client.Event[ctrlclient.Object]) {
				if e.Old == nil || e.New == nil { // the namespace needs one kind more, or less
					key := client.KeyOf(e.Object())
					changed(client.Key{Cluster: key.Cluster, Name: key.Namespace})
				}
			})
		}
		if !k.IsPlaced() {
			continue
		}
		kind, err := kindOf(k, changed)
		if err != nil {
			return nil, err
		}
		placed = append(placed, kind)
	}
	return placed, nil
}

const byOwnWish = "placement-own-wish"

func kindOf(informer client.KindInformer, changed func(client.Key)) (kind, error) {
	err := informer.AddIndex(byOwnWish, func(o ctrlclient.Object) []string {
		if !placementv1alpha1.HasWish(o.GetAnnotations()) {
			return nil
		}
		key := client.KeyOf(o)
		return []string{string(key.Cluster) + "|" + key.Namespace}
	})
	if err != nil {
		return kind{}, err
	}
	informer.OnEvent(func(e client.Event[ctrlclient.Object]) {
		o := e.Object()
		if e.New != nil && e.Old != nil && sameWish(e.Old.GetAnnotations(), e.New.GetAnnotations()) && e.Old.GetUID() == e.New.GetUID() {
			return
		}
		if key := client.KeyOf(o); !informer.IsGiven(key.Namespace, key.Name) {
			changed(client.Key{Cluster: key.Cluster, Name: key.Namespace})
		}
	})
	toRun := func(o ctrlclient.Object) bool { return !informer.IsGiven(o.GetNamespace(), o.GetName()) }
	return kind{
		Kind:  informer.Kind,
		holds: func(key client.Key) bool { return slices.ContainsFunc(informer.List(key.Cluster, key.Name), toRun) },
		follows: func(key client.Key) bool {
			return slices.ContainsFunc(informer.List(key.Cluster, key.Name), func(o ctrlclient.Object) bool { return toRun(o) && !placementv1alpha1.HasWish(o.GetAnnotations()) })
		},
		own: func(key client.Key) []metav1.Object {
			objects := informer.ByIndex(byOwnWish, string(key.Cluster)+"|"+key.Name)
			out := make([]metav1.Object, 0, len(objects))
			for _, o := range objects {
				if toRun(o) {
					out = append(out, o)
				}
			}
			return out
		},
		runs: func(root client.Key, mirrors []string) bool {
			o, ok := informer.Get(root)
			if ok && !informer.HasLeaves() {
				return slices.Contains(mirrors, o.GetLabels()[workloadv1alpha1.MirrorLabel])
			}
			return ok && slices.ContainsFunc(mirrors, func(mirror string) bool {
				return slices.ContainsFunc([]bool{false, true}, func(dedicated bool) bool {
					namespace := kinds.DownstreamNamespace(root.Cluster, root.Namespace, dedicated)
					leaf, ok := informer.Get(client.Key{Cluster: logicalcluster.Name(mirror), Namespace: namespace, Name: root.Name})
					return ok && leaf.GetDeletionTimestamp() == nil && leaf.GetLabels()[workloadv1alpha1.RootUIDLabel] == string(o.GetUID())
				})
			})
		},
	}, nil
}

// source names an object to people: `deployment "web"`.
func (k kind) source(name string) string { return strings.ToLower(k.GVK.Kind) + " " + quote(name) }
