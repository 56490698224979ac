package splitter

import (
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

const (
	byRoot          = "splitter-root"
	byRootNamespace = "splitter-root-namespace"
)

// source is a kind together with the informer that holds its roots and leaves. For kinds without status that is
// metadata only.
type source struct {
	kinds.Kind
	get func(client.Key) (ctrlclient.Object, bool)
	// list returns what a logical cluster holds, of one namespace unless that is empty.
	list func(cluster logicalcluster.Name, namespace string) []ctrlclient.Object
	// leaves returns what calls itself a leaf of a root, and leavesOf of any root of a namespace.
	leaves   func(root client.Key) []ctrlclient.Object
	leavesOf func(workspace logicalcluster.Name, namespace string) []ctrlclient.Object
}

// change is an event of any kind.
type change struct {
	old, new        ctrlclient.Object
	deleted, missed bool
}

func (e change) object() ctrlclient.Object {
	if e.new != nil {
		return e.new
	}
	return e.old
}

func newSource[T interface {
	ctrlclient.Object
	comparable
}](k kinds.Kind, i *client.Informer[T], handle func(kinds.Kind, change)) (*source, error) {
	if err := i.AddIndex(byRoot, func(o T) []string {
		if root, ok := rootOf(o); ok {
			return []string{root.String()}
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("index leaves of %s: %w", k.GVK.Kind, err)
	}
	if err := i.AddIndex(byRootNamespace, func(o T) []string {
		if root, ok := rootOf(o); ok {
			return []string{namespaceValue(root.Cluster, root.Namespace)}
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("index leaves of %s: %w", k.GVK.Kind, err)
	}
	i.OnEvent(func(e client.Event[T]) {
		c := change{deleted: e.Deleted(), missed: e.Missed}
		var none T
		if e.Old != none {
			c.old = e.Old
		}
		if e.New != none {
			c.new = e.New
		}
		handle(k, c)
	})
	return &source{
		Kind: k,
		get: func(key client.Key) (ctrlclient.Object, bool) {
			if o, ok := i.Get(key); ok {
				return o, true
			}
			return nil, false
		},
		list: func(cluster logicalcluster.Name, namespace string) []ctrlclient.Object {
			return objects(i.List(cluster, namespace))
		},
		leaves: func(root client.Key) []ctrlclient.Object { return objects(i.ByIndex(byRoot, root.String())) },
		leavesOf: func(workspace logicalcluster.Name, namespace string) []ctrlclient.Object {
			return objects(i.ByIndex(byRootNamespace, namespaceValue(workspace, namespace)))
		},
	}, nil
}

func objects[T ctrlclient.Object](in []T) []ctrlclient.Object {
	out := make([]ctrlclient.Object, len(in))
	for n, o := range in {
		out[n] = o
	}
	return out
}

func namespaceValue(workspace logicalcluster.Name, namespace string) string {
	return string(workspace) + "|" + namespace
}

// rootOf returns the key of the root that an object claims to be a leaf of. The claim is worth something only in a
// mirror: elsewhere users write what they like.
func rootOf(o ctrlclient.Object) (client.Key, bool) {
	workspace, text := o.GetLabels()[workloadv1alpha1.WorkspaceLabel], o.GetAnnotations()[workloadv1alpha1.RootAnnotation]
	if workspace == "" || text == "" {
		return client.Key{}, false
	}
	key, err := client.ParseKey(workspace + "|" + text)
	if err != nil {
		return client.Key{}, false
	}
	return key, true
}
