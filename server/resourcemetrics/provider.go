package resourcemetrics

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/metrics/pkg/apis/metrics/install"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"k8s.io/utils/clock"

	"k8s.io/kubernetes/pkg/api/legacyscheme"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/builtin"
)

// Registries look types up in this one scheme when they are built, which is after init.
func init() { install.Install(legacyscheme.Scheme) }

// GroupVersion is the version served, for the server's resource configuration.
var GroupVersion = metricsv1beta1.SchemeGroupVersion

// Provider serves the group.
type Provider struct{ source *source }

// NewProvider returns a Provider that reads objects, and asks physical clusters by ways to pods.
func NewProvider(objects builtin.Objects, ways Ways) Provider {
	return Provider{&source{objects: objects, ways: ways, clock: clock.RealClock{}}}
}

// GroupName is the API group.
func (Provider) GroupName() string { return GroupVersion.Group }

// NewRESTStorage returns what serves the group. Nothing is stored.
func (p Provider) NewRESTStorage(serverstorage.APIResourceConfigSource, generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(GroupVersion.Group, legacyscheme.Scheme, legacyscheme.ParameterCodec, legacyscheme.Codecs)
	info.VersionedResourcesStorageMap[GroupVersion.Version] = map[string]rest.Storage{"pods": &pods{source: p.source}, "nodes": &nodes{source: p.source}}
	return info, nil
}

// source is what is known of a workspace and its pods.
type source struct {
	objects builtin.Objects // what it reads is shared
	ways    Ways
	clock   clock.PassiveClock
}

// ofWorkspace refuses a request that is not of one workspace: what would have to be asked for all is without bound, and what runs for a mirror its physical
// cluster says itself.
func ofWorkspace(ctx context.Context) error {
	switch cluster, ok := lcctx.ClusterFrom(ctx); {
	case !ok || cluster.Wildcard:
		return builtin.NewNotImplemented("what pods use is shown in each workspace, and not of all at once: ask in a workspace")
	case cluster.Mirror:
		return builtin.NewNotImplemented("what pods use is shown in workspaces, and not in mirrors: ask in a workspace, or the Metrics API of the physical cluster")
	}
	return nil
}

// selection is what a list is of.
type selection struct {
	labels labels.Selector
	fields fields.Selector
}

func selectionOf(options *metainternalversion.ListOptions) selection {
	byLabels, byFields := builtin.Selectors(options)
	return selection{byLabels, byFields}
}

// has judges by metadata alone, as upstream.
func (s selection) has(o metav1.Object, namespaced bool) bool {
	of := fields.Set{"metadata.name": o.GetName()}
	if namespaced {
		of["metadata.namespace"] = o.GetNamespace()
	}
	return s.labels.Matches(labels.Set(o.GetLabels())) && s.fields.Matches(of)
}

// listed returns what there is of a resource that is selected. It is shared.
func listed[T metav1.Object](ctx context.Context, s *source, resource schema.GroupResource, namespace string, has func(T) bool) ([]T, error) {
	all, err := s.objects.List(ctx, resource, namespace, true) // metrics are older than what a watch cache lacks
	if err != nil {
		return nil, err
	}
	var chosen []T
	for _, o := range all {
		one, ok := o.(T)
		if !ok {
			return nil, apierrors.NewInternalError(fmt.Errorf("a list of %s has a %T", resource, o))
		}
		if has(one) {
			chosen = append(chosen, one)
		}
	}
	return chosen, nil
}

// column is one of a table.
func column(name, format string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "string", Format: format}
}

// table has upstream's columns.
func table(obj, options runtime.Object, cells func(runtime.Object) (usage []any, window metav1.Duration, err error)) (*metav1.Table, error) {
	out := &metav1.Table{}
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		name := column("Name", "name")
		name.Description = "Name of the resource"
		out.ColumnDefinitions = []metav1.TableColumnDefinition{name, column("cpu", "quantity"), column("memory", "quantity"), column("Window", "duration")}
	}
	row := func(obj runtime.Object) error {
		m, err := meta.Accessor(obj)
		if err != nil {
			return err
		}
		usage, window, err := cells(obj)
		if err != nil {
			return err
		}
		out.Rows = append(out.Rows, metav1.TableRow{Cells: append(append([]any{m.GetName()}, usage...), window.Duration.String()), Object: runtime.RawExtension{Object: obj}})
		return nil
	}
	if meta.IsListType(obj) {
		return out, meta.EachListItem(obj, row)
	}
	return out, row(obj)
}
