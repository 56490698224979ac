package nodes

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubestorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/classes"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/storage"
)

// new returns an empty object of what is shown.
func (s *store) new() runtime.Object {
	if s.class == nil {
		return &core.Node{}
	}
	if resource, ok := s.nodes.open(s.resource); ok {
		return resource.New()
	}
	return nil // it is open: who asks came through it
}

// rows reads a workspace's own classes, those that all logical clusters share among them. Nodes have none.
func (of *store) rows(ctx context.Context, s *sight, workspace logicalcluster.Name, atLeast uint64) ([]object, error) {
	if of.class == nil {
		return nil, nil
	}
	resource, err := of.nodes.store(of.resource)
	if err != nil {
		return nil, err
	}
	list := resource.NewList()
	options := kubestorage.ListOptions{
		ResourceVersion: strconv.FormatUint(atLeast, 10), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		Recursive: true, Predicate: kubestorage.Everything,
	}
	key := storage.ClusterKey(resource.Prefix, workspace, "")
	if err := of.Interface.GetList(lcctx.WithCluster(ctx, lcctx.Cluster{Name: workspace}), key, options, list); err != nil {
		return nil, err
	}
	if err := s.takeIn(list); err != nil {
		return nil, err
	}
	var rows []object
	err = meta.EachListItem(list, func(obj runtime.Object) error {
		rows = append(rows, obj.(object)) // a registry's types have metadata
		return nil
	})
	return rows, err
}

// addClasses adds to a workspace's own classes those of the physical clusters that it may use, which are in usable: of each name that
// is not its own, the class of the first cluster by name, with annotations that say which clusters have it, and which otherwise.
func (of *store) addClasses(s *sight, usable []*workloadv1alpha1.SyncTarget, workspace logicalcluster.Name) {
	slices.SortFunc(usable, func(a, b *workloadv1alpha1.SyncTarget) int { return strings.Compare(a.Name, b.Name) })
	own, ownDefault := map[string]bool{}, false
	for _, row := range s.shown {
		own[row.GetName()] = true
		ownDefault = ownDefault || isDefault(*of.class, row)
	}
	for _, f := range found(*of.class, usable) {
		if own[f.class.Name] {
			continue
		}
		obj, err := f.show(*of.class, workspace, !ownDefault && len(f.defaultIn) == len(usable))
		if err != nil {
			continue // it is no class that this server knows, whatever its SyncTarget says
		}
		s.shown = append(s.shown, shown{object: obj})
	}
}

// isDefault says whether a class of a workspace is its default.
func isDefault(k classes.Kind, row metav1.Object) bool {
	return k.DefaultAnnotation != "" && (row.GetAnnotations()[k.DefaultAnnotation] == "true" ||
		row.GetAnnotations()[strings.Replace(k.DefaultAnnotation, "kubernetes.io", "beta.kubernetes.io", 1)] == "true")
}

// foundClass is a class in physical clusters.
type foundClass struct {
	class workloadv1alpha1.Class
	// in are the clusters that have it, sorted by name; the class is that of the first. differsIn and defaultIn are names of some of them.
	in                   []*workloadv1alpha1.SyncTarget
	differsIn, defaultIn []string
}

// found returns the classes of a kind in clusters, which are sorted by name.
func found(k classes.Kind, in []*workloadv1alpha1.SyncTarget) (all []*foundClass) {
	byName := map[string]*foundClass{}
	for _, t := range in {
		for _, of := range classes.Checked(t.Status.Classes) {
			if of.Resource != k.Resource() {
				continue
			}
			for _, c := range of.Items {
				f := byName[c.Name]
				if f == nil {
					f = &foundClass{class: c}
					byName[c.Name] = f
					all = append(all, f)
				}
				f.in = append(f.in, t)
				if c.Default {
					f.defaultIn = append(f.defaultIn, t.Name)
				}
				c.Default = f.class.Default
				if !classes.Same(c, f.class) {
					f.differsIn = append(f.differsIn, t.Name)
				}
			}
		}
	}
	return all
}

// show returns the object that shows a class, of the registry's type. Its UID is that of just these clusters and of its being the default or
// not: only then what it says depends on nothing but their SyncTargets, and its resourceVersion, the latest of theirs, never goes back.
func (f *foundClass) show(k classes.Kind, workspace logicalcluster.Name, byDefault bool) (object, error) {
	v1 := k.Show(f.class)
	seed := []string{workspace.String(), k.Resource(), f.class.Name, strconv.FormatBool(byDefault)}
	var names []string
	var revision uint64
	for _, t := range f.in {
		seed, names = append(seed, string(t.UID)), append(names, t.Name)
		at, err := versioner.ObjectResourceVersion(t)
		if err != nil {
			return nil, err
		}
		revision = max(revision, at)
	}
	v1.SetUID(types.UID(uuid.NewSHA1(uuid.NameSpaceOID, []byte(strings.Join(seed, "/"))).String()))
	v1.SetResourceVersion(strconv.FormatUint(revision, 10))
	v1.SetCreationTimestamp(f.in[0].CreationTimestamp)
	annotations := map[string]string{lcctx.Annotation: workspace.String(), workloadv1alpha1.ClassClustersAnnotation: strings.Join(names, ",")}
	if len(f.differsIn) > 0 {
		annotations[workloadv1alpha1.ClassDiffersAnnotation] = strings.Join(f.differsIn, ",")
	}
	if len(f.defaultIn) > 0 {
		annotations[workloadv1alpha1.ClassDefaultInAnnotation] = strings.Join(f.defaultIn, ",")
	}
	if byDefault && k.DefaultAnnotation != "" {
		annotations[k.DefaultAnnotation] = "true"
	}
	v1.SetAnnotations(annotations)
	gvk := k.GVR.GroupVersion().WithKind(k.Name)
	gvk.Version = runtime.APIVersionInternal
	internal, err := legacyscheme.Scheme.New(gvk)
	if err != nil {
		return nil, err
	}
	if err := legacyscheme.Scheme.Convert(v1, internal, nil); err != nil {
		return nil, err
	}
	return internal.(object), nil // all types of the scheme but lists have metadata
}
