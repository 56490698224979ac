package resourcemetrics

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/metrics/pkg/apis/metrics"

	api "k8s.io/kubernetes/pkg/apis/core"
)

// pods is the resource pods, of kind PodMetrics.
type pods struct{ source *source }

var (
	_ rest.Getter               = &pods{}
	_ rest.Lister               = &pods{}
	_ rest.Scoper               = &pods{}
	_ rest.KindProvider         = &pods{}
	_ rest.SingularNameProvider = &pods{}
)

func (*pods) New() runtime.Object     { return &metrics.PodMetrics{} }
func (*pods) NewList() runtime.Object { return &metrics.PodMetricsList{} }
func (*pods) Destroy()                {}
func (*pods) Kind() string            { return "PodMetrics" }
func (*pods) NamespaceScoped() bool   { return true }

// GetSingularName has none, as upstream's: `pod` is another resource, and clients make podmetrics of the kind.
func (*pods) GetSingularName() string { return "" }

// List shows what the pods of a namespace use, or those of all. Those of which nothing is known are not among them.
func (p *pods) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	if err := ofWorkspace(ctx); err != nil {
		return nil, err
	}
	chosen := selectionOf(options)
	rows, err := listed(ctx, p.source, corev1.Resource("pods"), genericapirequest.NamespaceValue(ctx), func(pod *api.Pod) bool { return chosen.has(pod, true) })
	if err != nil {
		return nil, err
	}
	known, err := p.source.ask(ctx, rows, false)
	if err != nil {
		return nil, err
	}
	if err := known.tell(ctx, len(known.pods)); err != nil {
		return nil, err
	}
	list := &metrics.PodMetricsList{Items: []metrics.PodMetrics{}} // not null
	for _, shown := range known.pods {
		list.Items = append(list.Items, shown)
	}
	slices.SortFunc(list.Items, func(a, b metrics.PodMetrics) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return list, nil
}

// Get shows what a pod uses.
func (p *pods) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if err := ofWorkspace(ctx); err != nil {
		return nil, err
	}
	namespace := genericapirequest.NamespaceValue(ctx)
	found, err := p.source.objects.Get(ctx, corev1.Resource("pods"), namespace, name, true)
	if err != nil {
		return nil, err
	}
	row, ok := found.(*api.Pod)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("pod %q is a %T", name, found))
	}
	known, err := p.source.ask(ctx, []*api.Pod{row}, true)
	if err != nil {
		return nil, err
	}
	if err := known.tell(ctx, len(known.pods)); err != nil {
		return nil, err
	}
	shown, ok := known.pods[types.NamespacedName{Namespace: namespace, Name: name}]
	if !ok {
		return nil, apierrors.NewNotFound(metrics.Resource("podmetrics"), namespace+"/"+name) // upstream's words
	}
	return &shown, nil
}

// ConvertToTable implements rest.TableConvertor.
func (*pods) ConvertToTable(_ context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return table(obj, options, func(obj runtime.Object) ([]any, metav1.Duration, error) {
		shown, ok := obj.(*metrics.PodMetrics)
		if !ok {
			return nil, metav1.Duration{}, fmt.Errorf("metrics of a pod are a %T", obj)
		}
		sum := corev1.ResourceList{}
		add(sum, shown.Containers)
		return []any{sum.Cpu().String(), sum.Memory().String()}, shown.Window, nil
	})
}
