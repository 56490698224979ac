package nodes

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubestorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/apis/core"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/storage"
)

var versioner = kubestorage.APIObjectVersioner{}

// Nodes are those of all workspaces.
type Nodes struct {
	open    func(schema.GroupResource) (*storage.Resource, bool)
	changes *changes
}

// New returns the Nodes that what open opens says there are.
func New(open func(schema.GroupResource) (*storage.Resource, bool)) *Nodes {
	return &Nodes{open: open, changes: newChanges()}
}

// Overlay is the storage's: it lies over the rows of nodes, which are read on the wildcard only.
func (n *Nodes) Overlay(resource schema.GroupResource) func(kubestorage.Interface) kubestorage.Interface {
	if resource != core.Resource("nodes") {
		return nil
	}
	return func(rows kubestorage.Interface) kubestorage.Interface { return &store{Interface: rows, nodes: n} }
}

func (n *Nodes) store(resource schema.GroupResource) (*storage.Resource, error) {
	store, ok := n.open(resource)
	if !ok {
		return nil, fmt.Errorf("%s are not served", resource)
	}
	return store, nil
}

// store shows the Nodes of the request's logical cluster.
type store struct {
	kubestorage.Interface // rows
	nodes                 *Nodes
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
	at, err := s.atLeast(ctx, opts.ResourceVersion)
	if err != nil {
		return err
	}
	seen, err := s.nodes.look(ctx, cluster, at)
	if err != nil {
		return err
	}
	name := path.Base(key)
	for _, n := range seen.nodes {
		if n.Name == name {
			n.DeepCopyInto(out.(*core.Node))
			return nil
		}
	}
	if opts.IgnoreNotFound {
		*out.(*core.Node) = core.Node{}
		return nil
	}
	return kubestorage.NewKeyNotFoundError(key, 0)
}

// GetList returns all there are, whatever the limit: there are never many.
func (s *store) GetList(ctx context.Context, key string, opts kubestorage.ListOptions, list runtime.Object) error {
	cluster, ok := workspace(ctx)
	if !ok {
		return s.Interface.GetList(ctx, key, opts, list)
	}
	if opts.Predicate.Continue != "" || opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact {
		return expired("of the past is not kept")
	}
	at, err := s.atLeast(ctx, opts.ResourceVersion)
	if err != nil {
		return err
	}
	seen, err := s.nodes.look(ctx, cluster, at)
	if err != nil {
		return err
	}
	into := list.(*core.NodeList)
	into.Items = nil
	for _, n := range seen.nodes {
		matches, err := inScope(n, key, opts)
		if err != nil {
			return err
		}
		if matches {
			into.Items = append(into.Items, *n)
		}
	}
	return versioner.UpdateList(list, seen.since, "", nil)
}

// inScope says whether a Node is of a list or watch with that key and those options.
func inScope(n *core.Node, key string, opts kubestorage.ListOptions) (bool, error) {
	if !opts.Recursive && path.Base(key) != n.Name {
		return false, nil
	}
	matches, err := opts.Predicate.Matches(n)
	if err != nil {
		return false, kubestorage.NewInternalError(err)
	}
	return matches, nil
}

func byName(a, b *core.Node) int { return strings.Compare(a.Name, b.Name) }

// expired is the answer 410 Gone: who gets it lists anew.
func expired(why string) error {
	return apierrors.NewResourceExpired("what a workspace's nodes were " + why + ": list them anew")
}

// errReadOnly is for what should not come here: requests are refused before (server/builtin).
var errReadOnly = errors.New("nodes show physical clusters and are not written")

func (s *store) Create(context.Context, string, runtime.Object, runtime.Object, uint64) error {
	return kubestorage.NewInternalError(errReadOnly)
}

func (s *store) GuaranteedUpdate(context.Context, string, runtime.Object, bool, *kubestorage.Preconditions, kubestorage.UpdateFunc, runtime.Object) error {
	return kubestorage.NewInternalError(errReadOnly)
}

func (s *store) Delete(context.Context, string, runtime.Object, *kubestorage.Preconditions, kubestorage.ValidateObjectFunc, runtime.Object, kubestorage.DeleteOptions) error {
	return kubestorage.NewInternalError(errReadOnly)
}
