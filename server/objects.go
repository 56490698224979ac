package server

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	kubestorage "k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/rbac"
	rbacv1helpers "k8s.io/kubernetes/pkg/apis/rbac/v1"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/customresources"
	"atoll.dev/atoll/server/quota"
	"atoll.dev/atoll/server/storage"
)

// storedObjects reads for admission what the stores show of the logical cluster in ctx, the shared objects laid over them
// too. What it returns is shared with the watch caches.
type storedObjects struct{ backend *storage.Backend }

func (o storedObjects) Get(ctx context.Context, resource schema.GroupResource, namespace, name string, cached bool) (runtime.Object, error) {
	r, err := o.of(resource)
	if err != nil {
		return nil, err
	}
	found := r.New()
	if err := r.Storage.Get(ctx, r.Key(namespace, name), kubestorage.GetOptions{ResourceVersion: versionFrom(cached)}, found); err != nil {
		return nil, storeerr.InterpretGetError(err, resource, name)
	}
	return found, nil
}

func (o storedObjects) List(ctx context.Context, resource schema.GroupResource, namespace string, cached bool) ([]runtime.Object, error) {
	list, err := o.list(ctx, resource, namespace, cached)
	if err != nil {
		return nil, err
	}
	found, err := meta.ExtractList(list)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", resource, err)
	}
	return found, nil
}

func (o storedObjects) list(ctx context.Context, resource schema.GroupResource, namespace string, cached bool) (runtime.Object, error) {
	r, err := o.of(resource)
	if err != nil {
		return nil, err
	}
	list := r.NewList()
	options := kubestorage.ListOptions{ResourceVersion: versionFrom(cached), Recursive: true, Predicate: kubestorage.Everything}
	if err := r.Storage.GetList(ctx, r.Key(namespace, ""), options, list); err != nil {
		return nil, storeerr.InterpretListError(err, resource)
	}
	return list, nil
}

// ListEverywhere and WatchEverywhere are for admission's configurations.
func (o storedObjects) ListEverywhere(ctx context.Context, resource schema.GroupResource, opts metav1.ListOptions) (runtime.Object, error) {
	r, err := o.of(resource)
	if err != nil {
		return nil, err
	}
	list := r.NewList()
	return list, r.ListEverywhere(ctx, opts, list)
}

func (o storedObjects) WatchEverywhere(ctx context.Context, resource schema.GroupResource, opts metav1.ListOptions) (watch.Interface, error) {
	r, err := o.of(resource)
	if err != nil {
		return nil, err
	}
	return r.WatchEverywhere(ctx, opts, func(obj runtime.Object) (runtime.Object, error) { return obj, nil })
}

// ClusterRoles are those of the workspace that ctx names, the shared ones too, as the watch cache holds them: they are its own,
// and must not be changed.
func (s *Server) ClusterRoles(ctx context.Context) ([]rbacv1.ClusterRole, error) {
	stored, err := storedObjects{s.backend}.list(ctx, rbac.Resource("clusterroles"), "", true)
	if err != nil {
		return nil, err
	}
	list, ok := stored.(*rbac.ClusterRoleList)
	if !ok {
		return nil, fmt.Errorf("ClusterRoles are listed as a %T", stored)
	}
	roles := make([]rbacv1.ClusterRole, len(list.Items))
	for i := range list.Items {
		if err := rbacv1helpers.Convert_rbac_ClusterRole_To_v1_ClusterRole(&list.Items[i], &roles[i], nil); err != nil {
			return nil, fmt.Errorf("convert ClusterRole %q: %w", list.Items[i].Name, err)
		}
	}
	return roles, nil
}

// QuotaStores are what ResourceQuotas are counted with.
func (s *Server) QuotaStores() quota.Stores { return s.quotaStores() }

func (s *Server) quotaStores() quotaStores {
	return quotaStores{
		objects:     storedObjects{s.backend},
		known:       func(name logicalcluster.Name) (lcctx.Cluster, bool) { return s.directory.Known(name) },
		definitions: func() *customresources.Definitions { return s.custom.Definitions() },
		metadata:    func(resource schema.GroupResource) (*storage.Resource, error) { return s.kinds.Store(resource) },
	}
}

type quotaStores struct {
	objects storedObjects
	known   func(logicalcluster.Name) (lcctx.Cluster, bool)
	// Of custom resources.
	definitions func() *customresources.Definitions
	metadata    func(schema.GroupResource) (*storage.Resource, error)
}

func (q quotaStores) Known(name logicalcluster.Name) (lcctx.Cluster, bool) { return q.known(name) }

var resourceQuotas = schema.GroupResource{Resource: "resourcequotas"}

func (q quotaStores) Served(cluster logicalcluster.Name, resource schema.GroupResource) (served, custom bool) {
	if r, ok := q.builtin(resource); ok {
		return r.Namespaced, false
	}
	return q.definitions().HasNamespaced(cluster, resource), true
}

func (q quotaStores) OnCustom(ctx context.Context, tell func(logicalcluster.Name, schema.GroupResource)) {
	q.definitions().OnNamespaced(ctx, tell)
}

// builtin returns the store of a built-in resource. Of custom ones some are open, too, as long as anybody uses them.
func (q quotaStores) builtin(resource schema.GroupResource) (*storage.Resource, bool) {
	r, ok := q.objects.backend.Resource(resource)
	return r, ok && !r.Custom
}

func (q quotaStores) Count(ctx context.Context, resource schema.GroupResource, namespace string) (int64, error) {
	cluster, ok := lcctx.ClusterFrom(ctx)
	if !ok {
		return 0, fmt.Errorf("count %s: the context has no logical cluster", resource)
	}
	return q.objects.backend.CountRows(ctx, cluster.Name, resource, namespace)
}

func (q quotaStores) List(ctx context.Context, resource schema.GroupResource, namespace string) ([]runtime.Object, error) {
	return q.objects.List(ctx, resource, namespace, false)
}

func (q quotaStores) Quota(ctx context.Context, namespace, name string) (*corev1.ResourceQuota, error) {
	stored, err := q.objects.Get(ctx, resourceQuotas, namespace, name, false)
	if err != nil {
		return nil, err
	}
	out := &corev1.ResourceQuota{}
	return out, legacyscheme.Scheme.Convert(stored.DeepCopyObject(), out, nil)
}

func (q quotaStores) BeginCount(ctx context.Context, read *corev1.ResourceQuota, newLimits, hold bool) (int64, error) {
	return q.objects.backend.BeginCount(ctx, read, newLimits, hold)
}

func (q quotaStores) UpdateQuotaStatus(ctx context.Context, read *corev1.ResourceQuota, begun int64) error {
	return q.objects.backend.Count(ctx, read, begun, func(ctx context.Context) error { return q.writeStatus(ctx, read) })
}

// writeStatus writes the status of a ResourceQuota that is still as it was read; else it returns a conflict.
func (q quotaStores) writeStatus(ctx context.Context, read *corev1.ResourceQuota) error {
	r, err := q.objects.of(resourceQuotas)
	if err != nil {
		return err
	}
	next := &core.ResourceQuota{}
	if err := legacyscheme.Scheme.Convert(read.DeepCopy(), next, nil); err != nil {
		return fmt.Errorf("convert ResourceQuota %q: %w", read.Name, err)
	}
	asRead := &kubestorage.Preconditions{UID: &read.UID, ResourceVersion: &read.ResourceVersion}
	err = r.Storage.GuaranteedUpdate(ctx, r.Key(read.Namespace, read.Name), &core.ResourceQuota{}, false, asRead,
		func(stored runtime.Object, _ kubestorage.ResponseMeta) (runtime.Object, *uint64, error) {
			current, ok := stored.DeepCopyObject().(*core.ResourceQuota)
			if !ok {
				return nil, nil, fmt.Errorf("ResourceQuota %q is stored as a %T", read.Name, stored)
			}
			current.Status = next.Status
			return current, nil, nil
		}, nil)
	return storeerr.InterpretUpdateError(err, resourceQuotas, read.Name)
}

// BeginCharges, ListQuotas, Charged, CountHolds, Charge and AwaitCount are for admission.
func (q quotaStores) BeginCharges(ctx context.Context, resource schema.GroupResource, again func(context.Context) error) error {
	return q.objects.backend.BeginCharges(ctx, resource, again)
}

func (q quotaStores) ListQuotas(ctx context.Context, namespace string, cached bool) ([]corev1.ResourceQuota, error) {
	list, err := q.objects.list(ctx, resourceQuotas, namespace, cached)
	if err != nil {
		return nil, err
	}
	stored, ok := list.(*core.ResourceQuotaList)
	if !ok {
		return nil, fmt.Errorf("ResourceQuotas are listed as a %T", list)
	}
	revision, err := kubestorage.APIObjectVersioner{}.ParseResourceVersion(stored.ResourceVersion)
	if err != nil {
		return nil, fmt.Errorf("list ResourceQuotas: %w", err)
	}
	if err := q.objects.backend.LookedAt(ctx, namespace, int64(revision)); err != nil || len(stored.Items) == 0 {
		return nil, err
	}
	// What conversion does not copy is the cache's.
	out := &corev1.ResourceQuotaList{}
	if err := legacyscheme.Scheme.Convert(stored.DeepCopy(), out, nil); err != nil {
		return nil, fmt.Errorf("convert ResourceQuotas: %w", err)
	}
	return out.Items, nil
}

func (q quotaStores) Charged(ctx context.Context, of *corev1.ResourceQuota) (bool, error) {
	return q.objects.backend.Charged(ctx, of)
}

func (q quotaStores) CountHolds(ctx context.Context, of *corev1.ResourceQuota) (bool, error) {
	return q.objects.backend.CountHolds(ctx, of)
}

func (q quotaStores) Charge(ctx context.Context, read *corev1.ResourceQuota) error {
	return q.objects.backend.Charge(ctx, read, func(ctx context.Context) error { return q.writeStatus(ctx, read) })
}

func (q quotaStores) AwaitCount(ctx context.Context, read *corev1.ResourceQuota) error {
	return q.objects.backend.AwaitCount(ctx, read)
}

// withCharges lets what requests write depend on what they are charged.
func withCharges(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch req.Method {
		case http.MethodPost, http.MethodPut, http.MethodPatch:
			req = req.WithContext(storage.WithCharges(req.Context()))
		}
		next.ServeHTTP(w, req)
	})
}

func (q quotaStores) WatchEverywhere(ctx context.Context, resource schema.GroupResource) (watch.Interface, error) {
	r, ok := q.builtin(resource)
	if !ok {
		var err error
		if r, err = q.metadata(resource); err != nil {
			return nil, err
		}
	}
	ctx = lcctx.WithCluster(ctx, lcctx.Cluster{Wildcard: true})
	now, err := r.Storage.GetCurrentResourceVersion(ctx)
	if err != nil {
		return nil, err
	}
	return r.Storage.Watch(ctx, r.Key("", ""), kubestorage.ListOptions{ResourceVersion: strconv.FormatUint(now, 10), Recursive: true, Predicate: kubestorage.Everything})
}

func (o storedObjects) of(resource schema.GroupResource) (*storage.Resource, error) {
	r, ok := o.backend.Resource(resource)
	if !ok {
		return nil, fmt.Errorf("read %s: they are not served", resource)
	}
	return r, nil
}

// versionFrom is the resourceVersion of a read: "0" is what the watch cache happens to hold, "" what etcd holds now.
func versionFrom(cached bool) string {
	if cached {
		return "0"
	}
	return ""
}
