package server

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/kcp-dev/logicalcluster/v3"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	kubestorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/registry/core/configmap"
	"k8s.io/kubernetes/pkg/registry/core/namespace"
	"k8s.io/kubernetes/pkg/registry/core/serviceaccount"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/atollapis"
	"atoll.dev/atoll/server/storage"
)

// direct is a resource that this process reads and writes without a request.
type direct struct {
	resource schema.GroupResource
	strategy rest.RESTCreateStrategy // nil if it makes none
}

// directKinds are those of which a new workspace consists, and the Workspace itself, Placements, and Pods, EndpointSlices and Endpoints, of which clusters show many:
// these are made by requests alone.
var directKinds = map[schema.GroupKind]direct{
	{Kind: "Namespace"}:      {schema.GroupResource{Resource: "namespaces"}, namespace.Strategy},
	{Kind: "ServiceAccount"}: {schema.GroupResource{Resource: "serviceaccounts"}, serviceaccount.Strategy},
	{Kind: "Pod"}:            {schema.GroupResource{Resource: "pods"}, nil},
	{Group: discoveryv1.GroupName, Kind: "EndpointSlice"}: {schema.GroupResource{Group: discoveryv1.GroupName, Resource: "endpointslices"}, nil},
	{Kind: "Endpoints"}: {schema.GroupResource{Resource: "endpoints"}, nil},
	{Kind: "ConfigMap"}: {schema.GroupResource{Resource: "configmaps"}, configmap.Strategy},
	{Group: rbacv1.GroupName, Kind: "ClusterRoleBinding"}: {
		schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterrolebindings"}, clusterrolebinding.Strategy,
	},
	{Group: corev1alpha1.GroupVersion.Group, Kind: "LogicalCluster"}: {logicalClusters, atollapis.LogicalClusterStrategy()},
	{Group: tenancyv1alpha1.GroupVersion.Group, Kind: "Workspace"}: {
		schema.GroupResource{Group: tenancyv1alpha1.GroupVersion.Group, Resource: "workspaces"}, nil,
	},
	{Group: placementv1alpha1.GroupVersion.Group, Kind: "Placement"}: {
		schema.GroupResource{Group: placementv1alpha1.GroupVersion.Group, Resource: "placements"}, nil,
	},
}

// WriteTogether writes objects of the API in one transaction, in the logical clusters that their annotations kcp.io/cluster
// name, past the handler chain: nobody is asked who this is and what they may do, and no audit log tells of it. New
// objects, which are those without a resourceVersion, are defaulted, completed and checked as those of a request. Others
// are stored as they are, and must have been read with everything they hold, as Read does.
//
// It says whether they are written: all or, where one exists already or is not any more at its resourceVersion, none; nor
// are they if while is not nil and not at its resourceVersion any more. No two may be of one resource.
func (s *Server) WriteTogether(ctx context.Context, while ctrlclient.Object, objects ...ctrlclient.Object) (written bool, err error) {
	rows := make([]storage.Row, 0, len(objects)+1)
	for _, obj := range objects {
		row, err := row(ctx, obj)
		if err != nil {
			return false, fmt.Errorf("write %T %q with others: %w", obj, obj.GetName(), err)
		}
		rows = append(rows, row)
	}
	if while != nil {
		kind, err := directly(while)
		if err != nil {
			return false, err
		}
		rows = append(rows, storage.Row{Resource: kind.resource, Cluster: lcctx.NameFrom(while), Object: while, Guard: true})
	}
	return s.backend.WriteTogether(ctx, rows...)
}

// Read reads an object without a request, at a resourceVersion that means what it means in a GET: "" is what etcd holds
// now, "0" what the watch cache happens to hold, as an authorisation sees it, and any other a watch cache that has come so
// far. It says whether there is one. What it reads is shared with the cache: copy before changing it.
func (s *Server) Read(ctx context.Context, cluster logicalcluster.Name, namespace, name, resourceVersion string, into ctrlclient.Object) (found bool, err error) {
	kind, err := directly(into)
	if err != nil {
		return false, err
	}
	r, ok := s.backend.Resource(kind.resource)
	if !ok {
		return false, fmt.Errorf("read %s: they are not served", kind.resource)
	}
	stored := r.New()
	if reflect.TypeOf(stored) == reflect.TypeOf(into) { // ours
		stored = into
	}
	ctx = lcctx.WithCluster(ctx, lcctx.Cluster{Name: cluster})
	err = r.Storage.Get(ctx, r.Key(namespace, name), kubestorage.GetOptions{ResourceVersion: resourceVersion}, stored)
	switch {
	case kubestorage.IsNotFound(err):
		return false, nil
	case err == nil && stored != into:
		err = legacyscheme.Scheme.Convert(stored, into, nil)
	}
	if err != nil {
		return false, fmt.Errorf("read %s %q of logical cluster %q: %w", kind.resource, name, cluster, err)
	}
	return true, nil
}

func directly(obj runtime.Object) (direct, error) {
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(obj)
	if err != nil {
		return direct{}, err
	}
	kind, ok := directKinds[kinds[0].GroupKind()]
	if !ok {
		return direct{}, fmt.Errorf("%T is read and written by requests", obj)
	}
	return kind, nil
}

// row makes of an object what its registry would store.
func row(ctx context.Context, obj ctrlclient.Object) (storage.Row, error) {
	kind, err := directly(obj)
	if err != nil {
		return storage.Row{}, err
	}
	cluster, isNew := lcctx.NameFrom(obj), obj.GetResourceVersion() == ""
	versioned := obj.DeepCopyObject().(ctrlclient.Object)
	if isNew {
		legacyscheme.Scheme.Default(versioned)
		rest.FillObjectMetaSystemFields(versioned)
	}
	stored, err := legacyscheme.Scheme.ConvertToVersion(versioned, schema.GroupVersion{Group: kind.resource.Group, Version: runtime.APIVersionInternal})
	if err != nil {
		return storage.Row{}, err
	}
	if isNew && kind.strategy == nil {
		return storage.Row{}, errors.New("only a request can make one")
	}
	if isNew {
		ctx = request.WithUser(request.WithNamespace(ctx, obj.GetNamespace()), self)
		if err := rest.BeforeCreate(kind.strategy, ctx, stored); err != nil {
			return storage.Row{}, err
		}
	}
	return storage.Row{Resource: kind.resource, Cluster: cluster, Object: stored}, nil
}

// self is who writes.
var self = &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}
