package nodes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	kubestorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/apis/core"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/classes"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/storage"
)

var versioner = kubestorage.APIObjectVersioner{}

// Nodes are those of all workspaces, and their classes.
type Nodes struct {
	open    func(schema.GroupResource) (*storage.Resource, bool)
	changes *changes
}

// New returns the Nodes that what open opens says there are.
func New(open func(schema.GroupResource) (*storage.Resource, bool)) *Nodes {
	return &Nodes{open: open, changes: newChanges()}
}

// Overlay is the storage's: it lies over the rows of nodes, which are read on the wildcard only, and over those of classes, which come
// before what is shown.
func (n *Nodes) Overlay(resource schema.GroupResource) func(kubestorage.Interface) kubestorage.Interface {
	s := store{nodes: n, resource: resource}
	if kind, ok := classes.ByResource(resource); ok {
		s.class = &kind
	} else if resource != core.Resource("nodes") {
		return nil
	}
	return func(rows kubestorage.Interface) kubestorage.Interface {
		over := s
		over.Interface = rows
		return &over
	}
}

func (n *Nodes) store(resource schema.GroupResource) (*storage.Resource, error) {
	store, ok := n.open(resource)
	if !ok {
		return nil, fmt.Errorf("%s are not served", resource)
	}
	return store, nil
}

// store shows the Nodes of the request's logical cluster, or its classes of one kind.
type store struct {
	kubestorage.Interface // rows
	nodes                 *Nodes
	resource              schema.GroupResource
	class                 *classes.Kind // nil for Nodes
}

// workspace is the logical cluster of a request that is of one.
func workspace(ctx context.Context) (logicalcluster.Name, bool) {
	c, ok := lcctx.ClusterFrom(ctx)
	return c.Name, ok && !c.Wildcard
}

// atLeast is the revision that a read asks for. Without one it is that of etcd now.
func (s *store) atLeast(ctx context.Context, resourceVersion string) (uint64, error) {
	if resourceVersion == "" {
		return s.GetCurrentResourceVersion(ctx)
	}
	return versioner.ParseResourceVersion(resourceVersion)
}

func (s *store) Get(ctx context.Context, key string, opts kubestorage.GetOptions, out runtime.Object) error {
	cluster, ok := workspace(ctx)
	if !ok {
		return s.Interface.Get(ctx, key, opts, out)
	}
	if s.class != nil {
		rows := opts
		rows.IgnoreNotFound = false
		if err := s.Interface.Get(ctx, key, rows, out); !kubestorage.IsNotFound(err) {
			return err
		}
	}
	found, err := s.find(ctx, cluster, path.Base(key), opts.ResourceVersion)
	if err != nil {
		return err
	}
	if found != nil && !found.row && s.class != nil {
		// A dry run of a write reads, and writes nothing: it is told what the write would be.
		switch verb := s.writes(ctx); verb {
		case "":
		case "create":
			found = nil // which takes its place
		default:
			return s.readOnly(path.Base(key))
		}
	}
	into := reflect.ValueOf(out).Elem()
	switch {
	case found != nil:
		into.Set(reflect.ValueOf(found.DeepCopyObject()).Elem())
	case opts.IgnoreNotFound:
		into.SetZero()
	default:
		return kubestorage.NewKeyNotFoundError(key, 0)
	}
	return nil
}

// find returns what a workspace is shown by a name, nil if nothing; of Nodes, that which the context says (WithUID).
func (s *store) find(ctx context.Context, workspace logicalcluster.Name, name, resourceVersion string) (*shown, error) {
	if uid, ok := ctx.Value(uidKey{}).(types.UID); ok && uid != "" && s.class == nil {
		return s.nodes.withUID(ctx, workspace, name, uid, resourceVersion)
	}
	at, err := s.atLeast(ctx, resourceVersion)
	if err != nil {
		return nil, err
	}
	seen, err := s.look(ctx, workspace, at)
	if err != nil {
		return nil, err
	}
	return seen.named(name), nil
}

func (s *sight) named(name string) *shown {
	for i := range s.shown {
		if s.shown[i].GetName() == name {
			return &s.shown[i]
		}
	}
	return nil
}

// writes returns the verb of a request that writes of this resource; "" for any other.
func (s *store) writes(ctx context.Context) string {
	info, ok := request.RequestInfoFrom(ctx)
	if !ok || info.APIGroup != s.resource.Group || info.Resource != s.resource.Resource || slices.Contains([]string{"get", "list", "watch"}, info.Verb) {
		return ""
	}
	return info.Verb
}

// GetList returns all there are, whatever the limit: there are never many. Only where there are but rows, they are listed as such.
func (s *store) GetList(ctx context.Context, key string, opts kubestorage.ListOptions, list runtime.Object) error {
	cluster, ok := workspace(ctx)
	if !ok {
		return s.Interface.GetList(ctx, key, opts, list)
	}
	past, at := opts.Predicate.Continue != "" || opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact, opts.ResourceVersion
	if past {
		if s.class == nil {
			return expired(pastNotKept)
		}
		at = "" // what is shown now says who has a past
	}
	revision, err := s.atLeast(ctx, at)
	if err != nil {
		return err
	}
	seen, err := s.look(ctx, cluster, revision)
	if err != nil {
		return err
	}
	if s.class != nil && (past || opts.Predicate.Limit > 0) && !slices.ContainsFunc(seen.shown, func(n shown) bool { return !n.row }) {
		return s.Interface.GetList(ctx, key, opts, list) // a workspace that is shown none has pages and a past of its own
	}
	if past {
		return expired(pastNotKept)
	}
	deletes := s.class != nil && s.writes(ctx) != ""
	items := []runtime.Object{}
	for _, n := range seen.shown {
		matches, err := inScope(n, key, opts)
		if err != nil {
			return err
		}
		if matches && (n.row || !deletes) {
			items = append(items, n.DeepCopyObject())
		}
	}
	if err := meta.SetList(list, items); err != nil {
		return kubestorage.NewInternalError(err)
	}
	return versioner.UpdateList(list, seen.since, "", nil)
}

// inScope says whether an object is of a list or watch with that key and those options.
func inScope(n shown, key string, opts kubestorage.ListOptions) (bool, error) {
	if !opts.Recursive && path.Base(key) != n.GetName() {
		return false, nil
	}
	matches, err := opts.Predicate.Matches(n.object)
	if err != nil {
		return false, kubestorage.NewInternalError(err)
	}
	return matches, nil
}

func byName(a, b shown) int { return strings.Compare(a.GetName(), b.GetName()) }

// expired is the answer 410 Gone: who gets it lists anew.
func expired(why string) error {
	return apierrors.NewResourceExpired("what a workspace's nodes or classes were " + why + ": list them anew")
}

// pastNotKept is why who asks for what was there, or goes on from it, gets nothing.
const pastNotKept = "of the past is not kept"

// errReadOnly is for what should not come here: requests are refused before (server/builtin).
var errReadOnly = errors.New("nodes show physical clusters and are not written")

// readOnly answers who writes a class of physical clusters, and says what to do instead.
func (s *store) readOnly(name string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed,
		Details: &metav1.StatusDetails{Group: s.resource.Group, Kind: s.resource.Resource, Name: name},
		Message: fmt.Sprintf("%s %q is shown as the physical clusters have it, which its annotation %s names, and cannot be written here:"+
			" create a %s of that name, which takes its place in this workspace alone, or change it in the physical clusters",
			s.class.Name, name, workloadv1alpha1.ClassClustersAnnotation, s.class.Name),
	}}
}

// refuse returns readOnly where a workspace has no row of that name, and is shown a class; nil where the rows decide.
func (s *store) refuse(ctx context.Context, key string) error {
	cluster, ok := workspace(ctx)
	if s.class == nil {
		return kubestorage.NewInternalError(errReadOnly)
	}
	if !ok {
		return nil
	}
	row := s.new()
	if err := s.Interface.Get(ctx, key, kubestorage.GetOptions{}, row); !kubestorage.IsNotFound(err) {
		return nil // one that cannot be read may still be deleted
	}
	found, err := s.find(ctx, cluster, path.Base(key), "")
	if err == nil && found != nil && !found.row {
		err = s.readOnly(path.Base(key))
	}
	return err
}

// Create makes a class of the workspace's own.
func (s *store) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if s.class == nil {
		return kubestorage.NewInternalError(errReadOnly)
	}
	return s.Interface.Create(ctx, key, obj, out, ttl)
}

func (s *store) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool, preconditions *kubestorage.Preconditions, update kubestorage.UpdateFunc, cached runtime.Object) error {
	if err := s.refuse(ctx, key); err != nil {
		return err
	}
	return s.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update, cached)
}

func (s *store) Delete(ctx context.Context, key string, out runtime.Object, preconditions *kubestorage.Preconditions, validate kubestorage.ValidateObjectFunc, cached runtime.Object, opts kubestorage.DeleteOptions) error {
	if err := s.refuse(ctx, key); err != nil {
		return err
	}
	return s.Interface.Delete(ctx, key, out, preconditions, validate, cached, opts)
}
