package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// Homes are what rows are created in: logical clusters, each with one object that says that there is it, and namespaces.
//
// Who deletes a namespace marks it, looks what is in it, and lets it go; who deletes a logical cluster does the same. A request that was
// admitted before the mark may take long until it writes, as may one of a server that has not heard of it, and its row would be in a place
// that is no more: seen by nobody, or by who makes that place again. So what a row is created in is a condition of its transaction.
type Homes struct {
	// LogicalClusters are the objects of logical clusters, and Name that of each; Namespaces are the namespaces.
	LogicalClusters, Namespaces schema.GroupResource
	Name                        string
}

// homesOf returns the guards of rows of a resource, given the prefix of their keys without a trailing slash. Without Homes there are none.
func (b *Backend) homesOf(resource schema.GroupResource, base string, namespaced bool) func(key string) ([]Guard, error) {
	if b.homes == (Homes{}) || resource == b.homes.LogicalClusters {
		return func(string) ([]Guard, error) { return nil, nil }
	}
	return func(key string) ([]Guard, error) {
		cluster, err := clusterOf(base, key)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		of := home{b, resource, logicalcluster.Name(cluster)}
		guards := []Guard{of.logicalCluster}
		namespace, _, inside := strings.Cut(strings.TrimPrefix(key, base+"/"+cluster+"/"), "/")
		if namespaced && inside {
			guards = append(guards, of.namespace(namespace))
		}
		return guards, nil
	}
}

// home is where rows of a resource are created.
type home struct {
	backend  *Backend
	resource schema.GroupResource
	cluster  logicalcluster.Name
}

// isThere is what is compared for a row that is no object's to be written only while its logical cluster is there; nothing
// without Homes.
func (b *Backend) isThere(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupResource) ([]clientv3.Cmp, error) {
	if b.homes == (Homes{}) {
		return nil, nil
	}
	condition, err := home{b, resource, cluster}.logicalCluster(ctx, false)
	if err != nil {
		return nil, err
	}
	return []clientv3.Cmp{condition.compare()}, nil
}

// logicalCluster is the Guard of what is in a logical cluster: that has its object until it is deleted, whatever is changed in that.
func (h home) logicalCluster(_ context.Context, failed bool) (Condition, error) {
	if failed {
		return Condition{}, apierrors.NewForbidden(h.resource, "", errors.New("the workspace is deleted and takes nothing new"))
	}
	r, err := h.served(h.backend.homes.LogicalClusters)
	if err != nil {
		return Condition{}, err
	}
	return Condition{r.RowKey(h.cluster.String(), "", h.backend.homes.Name), Exists}, nil
}

// namespace returns the Guard of what is in a namespace: that must be as it was when it did not end.
func (h home) namespace(name string) Guard {
	return func(ctx context.Context, failed bool) (Condition, error) {
		r, err := h.served(h.backend.homes.Namespaces)
		if err != nil {
			return Condition{}, err
		}
		ctx = lc.WithCluster(ctx, lc.Cluster{Name: h.cluster})
		position := "0" // as the watch cache has it
		if failed {
			position = ""
		}
		found, err := h.read(ctx, r, name, position)
		if position != "" && (storage.IsNotFound(err) || err == nil && found.GetDeletionTimestamp() != nil) { // since then it may have been made
			found, err = h.read(ctx, r, name, "")
		}
		switch {
		case storage.IsNotFound(err):
			return Condition{}, apierrors.NewNotFound(h.backend.homes.Namespaces, name)
		case err != nil:
			return Condition{}, err
		case found.GetDeletionTimestamp() != nil:
			return Condition{}, NamespaceEnds(h.resource, "", name)
		}
		version, err := r.Storage.Versioner().ParseResourceVersion(found.GetResourceVersion())
		if err != nil {
			return Condition{}, err
		}
		return Condition{r.RowKey(h.cluster.String(), "", name), int64(version)}, nil
	}
}

// served is the Resource of what a row may be created in.
func (h home) served(homes schema.GroupResource) (*Resource, error) {
	r, ok := h.backend.Resource(homes)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("create %s: %s are not served", h.resource, homes))
	}
	return r, nil
}

func (h home) read(ctx context.Context, r *Resource, name, position string) (metav1.Object, error) {
	found := r.New()
	if err := r.Storage.Get(ctx, r.Key("", name), storage.GetOptions{ResourceVersion: position}, found); err != nil {
		return nil, err
	}
	return meta.Accessor(found)
}

// NamespaceEnds is the answer to who creates something in a namespace that is being deleted, as Kubernetes gives it.
func NamespaceEnds(resource schema.GroupResource, name, namespace string) *apierrors.StatusError {
	refused := apierrors.NewForbidden(resource, name, fmt.Errorf("unable to create new content in namespace %s because it is being terminated", namespace))
	refused.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type: corev1.NamespaceTerminatingCause, Message: fmt.Sprintf("namespace %s is being terminated", namespace), Field: "metadata.namespace",
	}}
	return refused
}
