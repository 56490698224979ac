package server

import (
	"context"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/storage"
)

// endWithWorkspace are finalizers that hold nothing in a workspace that goes as a whole: what they wait for goes as well, or
// would be done by a controller of Kubernetes that runs in physical clusters only, and so never.
var endWithWorkspace = sets.New(
	apiextensionsv1.CustomResourceCleanupFinalizer,
	metav1.FinalizerOrphanDependents,
	metav1.FinalizerDeleteDependents,
	"kubernetes.io/pvc-protection",
	"kubernetes.io/pv-protection",
	"batch.kubernetes.io/job-tracking",
	"service.kubernetes.io/load-balancer-cleanup",
	"resource.kubernetes.io/delete-protection",
)

// DeleteClusterData removes every row of a logical cluster but its LogicalCluster, if finalizers hold none of its objects.
// Else it removes nothing, and returns those that they do. Nothing but the logical cluster's termination makes it right to
// call it: new objects are not waited for.
func (s *Server) DeleteClusterData(ctx context.Context, name logicalcluster.Name) (lcctx.Held, error) {
	return s.whatIsHeld(ctx, name, s.backend.DeleteUnheldData)
}

// Held returns what finalizers hold in a logical cluster, but for its LogicalCluster.
func (s *Server) Held(ctx context.Context, name logicalcluster.Name) (lcctx.Held, error) {
	return s.whatIsHeld(ctx, name, s.backend.Held)
}

func (s *Server) whatIsHeld(ctx context.Context, name logicalcluster.Name, look func(context.Context, logicalcluster.Name, storage.Hold, ...schema.GroupResource) (lcctx.Held, error)) (lcctx.Held, error) {
	// Until all definitions are known, objects of a kind that is not served may be of one that is.
	if err := s.custom.Definitions().WaitSynced(ctx); err != nil {
		return lcctx.Held{}, fmt.Errorf("look at what finalizers hold in logical cluster %q: %w", name, err)
	}
	held, err := look(ctx, name, holds{s.kinds.Kind, s.defines, map[schema.GroupResource]bool{}}.hold, logicalClusters)
	if err != nil {
		return lcctx.Held{}, err
	}
	for i := range held.Unasked {
		o := &held.Unasked[i]
		if kind, ok := s.kinds.Kind(name, o.Resource.GroupResource()); ok {
			o.Resource.Version = kind.Version
		}
	}
	return held, nil
}

// holds says what finalizers hold, for as long as one look at a logical cluster takes.
type holds struct {
	served  func(logicalcluster.Name, schema.GroupResource) (schema.GroupVersionKind, bool)
	defines func(context.Context, logicalcluster.Name, schema.GroupResource) (bool, error)
	// defined are the answers of defines: a tenant may have many objects of one kind.
	defined map[schema.GroupResource]bool
}

// hold returns those of an object's finalizers that somebody may remove and whose end is waited for. There is nobody
// where no request reaches the object, since its definition is gone.
func (h holds) hold(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupResource, finalizers []string) ([]string, error) {
	waited := slices.DeleteFunc(slices.Clone(finalizers), endWithWorkspace.Has)
	if len(waited) == 0 {
		return nil, nil
	}
	if _, served := h.served(cluster, resource); served {
		return waited, nil
	}
	defined, asked := h.defined[resource]
	if !asked {
		var err error
		if defined, err = h.defines(ctx, cluster, resource); err != nil {
			return nil, err
		}
		h.defined[resource] = defined
	}
	if !defined {
		return nil, nil
	}
	return waited, nil
}

// defines asks etcd whether a logical cluster defines a resource: another server may have served a definition of which this
// one has not heard.
func (s *Server) defines(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupResource) (bool, error) {
	ctx = lcctx.WithCluster(ctx, lcctx.Cluster{Name: cluster})
	_, err := storedObjects{s.backend}.Get(ctx, apiextensions.Resource("customresourcedefinitions"), "", resource.String(), false)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, nil
}
