package resourcemetrics

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/metrics/pkg/apis/metrics"

	api "k8s.io/kubernetes/pkg/apis/core"
)

// nodes is the resource nodes, of kind NodeMetrics.
type nodes struct{ source *source }

var (
	_ rest.Getter               = &nodes{}
	_ rest.Lister               = &nodes{}
	_ rest.Scoper               = &nodes{}
	_ rest.KindProvider         = &nodes{}
	_ rest.SingularNameProvider = &nodes{}
)

func (*nodes) New() runtime.Object     { return &metrics.NodeMetrics{} }
func (*nodes) NewList() runtime.Object { return &metrics.NodeMetricsList{} }
func (*nodes) Destroy()                {}
func (*nodes) Kind() string            { return "NodeMetrics" }
func (*nodes) NamespaceScoped() bool   { return false }

// GetSingularName has none, as that of pods.
func (*nodes) GetSingularName() string { return "" }

// List shows what the workspace's pods use on its Nodes. Nodes of whose pods not all is known are not among them.
func (n *nodes) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	if err := ofWorkspace(ctx); err != nil {
		return nil, err
	}
	chosen := selectionOf(options)
	there, err := listed(ctx, n.source, corev1.Resource("nodes"), metav1.NamespaceNone, func(node *api.Node) bool { return chosen.has(node, false) })
	if err != nil {
		return nil, err
	}
	shown, err := n.sums(ctx, there)
	if err != nil {
		return nil, err
	}
	return &metrics.NodeMetricsList{Items: shown}, nil
}

// Get shows what the workspace's pods use on a Node.
func (n *nodes) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if err := ofWorkspace(ctx); err != nil {
		return nil, err
	}
	found, err := n.source.objects.Get(ctx, corev1.Resource("nodes"), metav1.NamespaceNone, name, true)
	if err != nil {
		return nil, err
	}
	node, ok := found.(*api.Node)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("node %q is a %T", name, found))
	}
	shown, err := n.sums(ctx, []*api.Node{node})
	if err != nil {
		return nil, err
	}
	if len(shown) == 0 {
		return nil, apierrors.NewNotFound(metrics.Resource("nodemetrics"), name) // upstream's words
	}
	return &shown[0], nil
}

// sums are the Nodes of there, with what the workspace's pods use on them.
func (n *nodes) sums(ctx context.Context, there []*api.Node) ([]metrics.NodeMetrics, error) {
	isThere := map[string]bool{}
	for _, node := range there {
		isThere[node.Name] = true
	}
	rows, err := listed(ctx, n.source, corev1.Resource("pods"), metav1.NamespaceAll, func(pod *api.Pod) bool { return isThere[pod.Spec.NodeName] && runsBelow(pod) })
	if err != nil {
		return nil, err
	}
	known, err := n.source.ask(ctx, rows, false)
	if err != nil {
		return nil, err
	}
	shown := sumsOf(there, rows, known, n.source.clock.Now())
	return shown, known.tell(ctx, len(shown))
}

// ConvertToTable implements rest.TableConvertor.
func (*nodes) ConvertToTable(_ context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return table(obj, options, func(obj runtime.Object) ([]any, metav1.Duration, error) {
		shown, ok := obj.(*metrics.NodeMetrics)
		if !ok {
			return nil, metav1.Duration{}, fmt.Errorf("metrics of a Node are a %T", obj)
		}
		return []any{shown.Usage.Cpu().String(), shown.Usage.Memory().String()}, shown.Window, nil
	})
}
