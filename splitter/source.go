package splitter

import (
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

const (
	byRoot          = "splitter-root"
	byRootNamespace = "splitter-root-namespace"
	byBound         = "splitter-bound"
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
	// bound returns what is bound to a mirror, of one namespace of it unless that is empty; none for kinds with leaves.
	bound func(mirror logicalcluster.Name, namespace string) []ctrlclient.Object
	// referring returns the roots and leaves that need what is filed under a referenceValue; none for kinds that need nothing.
	referring func(value string) []ctrlclient.Object
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

func newSource(i client.KindInformer, handle func(kinds.Kind, change)) (*source, error) {
	indexes := map[string]func(ctrlclient.Object) []string{
		byRoot: func(o ctrlclient.Object) []string {
			if root, ok := rootOf(o); ok {
				return []string{root.String()}
			}
			return nil
		},
		byRootNamespace: func(o ctrlclient.Object) []string {
			if root, ok := rootOf(o); ok {
				return []string{namespaceValue(root.Cluster, root.Namespace)}
			}
			return nil
		},
	}
	if i.Refers() {
		indexes[byReference] = referencesOf
	}
	if !i.HasLeaves() {
		indexes[byBound] = func(o ctrlclient.Object) []string {
			mirror := mirrorOf(o)
			if mirror == "" {
				return nil
			}
			return []string{namespaceValue(mirror, ""), namespaceValue(mirror, o.GetAnnotations()[workloadv1alpha1.MirrorNamespaceAnnotation])}
		}
	}
	for name, index := range indexes {
		if err := i.AddIndex(name, index); err != nil {
			return nil, fmt.Errorf("index %s: %w", i.GVK.Kind, err)
		}
	}
	i.OnEvent(func(e client.Event[ctrlclient.Object]) {
		handle(i.Kind, change{old: e.Old, new: e.New, deleted: e.Deleted(), missed: e.Missed})
	})
	return &source{
		Kind:   i.Kind,
		get:    i.Get,
		list:   i.List,
		leaves: func(root client.Key) []ctrlclient.Object { return i.ByIndex(byRoot, root.String()) },
		leavesOf: func(workspace logicalcluster.Name, namespace string) []ctrlclient.Object {
			return i.ByIndex(byRootNamespace, namespaceValue(workspace, namespace))
		},
		bound: func(mirror logicalcluster.Name, namespace string) []ctrlclient.Object {
			if i.HasLeaves() {
				return nil
			}
			return i.ByIndex(byBound, namespaceValue(mirror, namespace))
		},
		referring: func(value string) []ctrlclient.Object {
			if !i.Refers() {
				return nil
			}
			return i.ByIndex(byReference, value)
		},
	}, nil
}

func namespaceValue(workspace logicalcluster.Name, namespace string) string {
	return string(workspace) + "|" + namespace
}

// needsOf returns what a root or a leaf needs; nothing for what refers to nothing, and for nil.
func needsOf(o ctrlclient.Object) []kinds.Reference {
	k, ok := kinds.Of(o)
	if !ok {
		return nil
	}
	return k.ReferencesOf(o)
}

// podsOf returns the template of the pods that a root or a leaf makes; nil for what makes none, and for nil.
func podsOf(o ctrlclient.Object) *corev1.PodTemplateSpec {
	if k, ok := kinds.Of(o); ok && k.MakesPods() {
		return k.Template(o)
	}
	return nil
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
