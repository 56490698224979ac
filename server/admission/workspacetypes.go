package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	lc "github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/internal/attendance"
	"atoll.dev/atoll/internal/logicalcluster"
)

// WorkspaceTypes decides of which type a new Workspace is, and whether it may be: its creator may use the type and all that
// it extends, and the type and that of the workspace it is made in allow each other. It reads both where they are.
//
// Two types are there although nobody defined them, and allow everything to everybody: root:root, that of the workspace root,
// and root:universal, the default. Who defines one changes that.
type WorkspaceTypes struct {
	*admission.Handler
	objects Objects
	find    FindWorkspace
	mayUse  MayUseType
}

// FindWorkspace returns the logical cluster of a name or at the end of a path. If there is none the error wraps
// logicalcluster.ErrNotFound.
type FindWorkspace func(ctx context.Context, path lc.Path) (lc.Name, error)

// MayUseType says whether a user of the logical cluster in ctx may use a WorkspaceType of a logical cluster.
type MayUseType func(ctx context.Context, who user.Info, holder lc.Name, name string) (bool, error)

// NewWorkspaceTypes returns the plugin.
func NewWorkspaceTypes(objects Objects, find FindWorkspace, mayUse MayUseType) *WorkspaceTypes {
	return &WorkspaceTypes{Handler: admission.NewHandler(admission.Create), objects: objects, find: find, mayUse: mayUse}
}

// maxFamily is how many types one may extend through others.
const maxFamily = 64

var (
	workspaceTypes  = tenancyv1alpha1.GroupVersion.WithResource("workspacetypes").GroupResource()
	logicalClusters = corev1alpha1.GroupVersion.WithResource("logicalclusters").GroupResource()

	rootPath      = lc.NewPath("root")
	typeOfRoot    = typeReference{Path: rootPath.String(), Name: "root"}
	universalType = typeReference{Path: rootPath.String(), Name: "universal"}
)

type typeReference = tenancyv1alpha1.WorkspaceTypeReference

// workspaceType is a type that there is.
type workspaceType struct {
	path    lc.Path // of the workspace that holds it
	holder  lc.Name
	name    string
	spec    tenancyv1alpha1.WorkspaceTypeSpec
	assumed bool // nobody defined it
}

func (t *workspaceType) String() string { return t.path.Join(t.name).String() }

// Admit chooses the type.
func (p *WorkspaceTypes) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	w, ok := newWorkspace(ctx, a)
	if !ok {
		return nil
	}
	path, parent, err := p.home(ctx)
	if err != nil {
		return refuseType(a, err)
	}
	if w.Spec.Type == nil {
		if w.Spec.Type, err = p.defaultIn(ctx, parent); err != nil {
			return refuseType(a, err)
		}
	}
	t, err := p.wanted(ctx, a.GetUserInfo(), path, *w.Spec.Type)
	if err != nil {
		return refuseType(a, err)
	}
	w.Spec.Type = &typeReference{Path: t.path.String(), Name: t.name}
	family, err := p.usableFamily(ctx, a.GetUserInfo(), t)
	if err != nil {
		return refuseType(a, err)
	}
	for _, at := range attendance.All {
		delete(w.Annotations, at.Annotation)
		if names := attendantsOf(at, a.GetUserInfo(), w, family); names != "" {
			metav1.SetMetaDataAnnotation(&w.ObjectMeta, at.Annotation, names)
		}
	}
	for key, value := range t.spec.AdditionalWorkspaceLabels {
		if _, has := w.Labels[key]; !has {
			metav1.SetMetaDataLabel(&w.ObjectMeta, key, value)
		}
	}
	return nil
}

// Validate looks at the type that it has in the end: webhooks and policies may have changed it, or taken its path away.
func (p *WorkspaceTypes) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	w, ok := newWorkspace(ctx, a)
	if !ok || w.Spec.Type == nil {
		return nil
	}
	who := a.GetUserInfo()
	path, parent, err := p.home(ctx)
	if err != nil {
		return refuseType(a, err)
	}
	t, err := p.wanted(ctx, who, path, *w.Spec.Type)
	if err != nil {
		return refuseType(a, err)
	}
	if whole := (typeReference{Path: t.path.String(), Name: t.name}); *w.Spec.Type != whole { // else nobody knows later which it is
		return refuseType(a, fmt.Errorf("a webhook or a policy changed spec.type to %q: it has to be %s with path %q", w.Spec.Type.Name, whole.Name, whole.Path))
	}
	family, err := p.usableFamily(ctx, who, t)
	if err != nil {
		return refuseType(a, err)
	}
	for _, at := range attendance.All {
		if names, got := attendantsOf(at, who, w, family), w.Annotations[at.Annotation]; got != names {
			return refuseType(a, fmt.Errorf("workspace type %s has the %s %q, but the workspace got %q: its type, or that annotation, was changed meanwhile: try again",
				t, at.Field, names, got))
		}
	}
	above, err := p.typeOfParent(ctx, parent)
	if err != nil {
		return refuseType(a, err)
	}
	familyAbove, err := p.family(ctx, above, func(*workspaceType) (bool, error) { return true, nil })
	if err != nil {
		return refuseType(a, err)
	}
	if why := errors.Join(allowParent(family, familyAbove), allowChild(familyAbove, family)); why != nil {
		return refuseType(a, why)
	}
	return nil
}

func newWorkspace(ctx context.Context, a admission.Attributes) (*tenancyv1alpha1.Workspace, bool) {
	w, ok := a.GetObject().(*tenancyv1alpha1.Workspace)
	cluster, named := logicalcluster.ClusterFrom(ctx)
	return w, ok && named && !cluster.Mirror && a.GetSubresource() == ""
}

// refuseType answers with what is wrong, 403 as in kcp. What could not be read is no refusal, and may be better soon.
func refuseType(a admission.Attributes, err error) error {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return err
	}
	return admission.NewForbidden(a, err)
}

// unusable says that a type cannot be used, and not why: strangers shall not learn which workspaces exist, nor what is in them.
func unusable(ref typeReference) error {
	name := ref.Name
	if ref.Path != "" {
		name = ref.Path + ":" + name
	}
	return fmt.Errorf("unable to use workspace type %s: there is none, or you lack the verb \"use\" on it: ask who administers the workspace that holds it", name)
}

// home returns the path of the logical cluster in ctx, and the type of its workspace.
func (p *WorkspaceTypes) home(ctx context.Context) (lc.Path, typeReference, error) {
	cluster, ok := logicalcluster.ClusterFrom(ctx)
	if !ok {
		return lc.Path{}, typeReference{}, apierrors.NewInternalError(errors.New("the request names no logical cluster"))
	}
	path, kind := cluster.Name.Path(), universalType
	found, err := get(ctx, p.objects, logicalClusters, metav1.NamespaceNone, corev1alpha1.LogicalClusterName)
	if err != nil && !apierrors.IsNotFound(err) {
		return path, kind, err
	}
	if c, ok := found.(*corev1alpha1.LogicalCluster); ok && err == nil {
		if known := c.Annotations[logicalcluster.PathAnnotation]; known != "" {
			path = lc.NewPath(known)
		}
		if known := c.Annotations[tenancyv1alpha1.TypeAnnotation]; known != "" {
			holder, name := split(lc.NewPath(known))
			return path, typeReference{Path: holder.String(), Name: name}, nil
		}
	}
	if path == rootPath {
		kind = typeOfRoot
	}
	return path, kind, nil // of before there were types
}

// wanted returns the type that a creator of a workspace in the one at path asks for.
func (p *WorkspaceTypes) wanted(ctx context.Context, who user.Info, path lc.Path, ref typeReference) (*workspaceType, error) {
	var t *workspaceType
	var err error
	if ref.Path != "" {
		t, err = p.lookUp(ctx, ref)
	} else {
		t, err = p.lookUpwards(ctx, path, ref.Name)
	}
	if err != nil {
		return nil, err
	}
	if t == nil {
		return nil, unusable(ref)
	}
	may, err := p.usable(ctx, who, t)
	if err != nil {
		return nil, err
	}
	if !may {
		return nil, unusable(ref)
	}
	return t, nil
}

func (p *WorkspaceTypes) usable(ctx context.Context, who user.Info, t *workspaceType) (bool, error) {
	if t.assumed {
		return true, nil
	}
	may, err := p.mayUse(ctx, who, t.holder, t.name)
	if err != nil {
		return false, apierrors.NewInternalError(fmt.Errorf("find out who may use workspace type %s: %w", t, err))
	}
	return may, nil
}

// lookUpwards returns the type of that name in the nearest workspace, from path up to root; nil if there is none.
func (p *WorkspaceTypes) lookUpwards(ctx context.Context, path lc.Path, name string) (*workspaceType, error) {
	for {
		t, err := p.lookUp(ctx, typeReference{Path: path.String(), Name: name})
		if t != nil || err != nil || path == rootPath {
			return t, err
		}
		if path, _ = split(path); path.Empty() || path.String() == "system" {
			path = rootPath // of a logical cluster outside of the tree
		}
	}
}

// split returns what is before the last colon, and what is after. That of the module ends no path that begins with system:.
func split(path lc.Path) (above lc.Path, name string) {
	if i := strings.LastIndexByte(path.String(), ':'); i >= 0 {
		return lc.NewPath(path.String()[:i]), path.String()[i+1:]
	}
	return lc.Path{}, path.String()
}

// findHolder returns the logical cluster in which the type of a reference with a path would be; "" if there is none.
func (p *WorkspaceTypes) findHolder(ctx context.Context, ref typeReference) (lc.Name, error) {
	holder, err := p.find(ctx, lc.NewPath(ref.Path))
	if errors.Is(err, logicalcluster.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", apierrors.NewServiceUnavailable(fmt.Sprintf("workspace %q cannot be looked up now, try again", ref.Path))
	}
	return holder, nil
}

// lookUp returns the type that a reference with a path names; nil if there is none.
func (p *WorkspaceTypes) lookUp(ctx context.Context, ref typeReference) (*workspaceType, error) {
	holder, err := p.findHolder(ctx, ref)
	if err != nil || holder == "" {
		return nil, err
	}
	ctx = logicalcluster.WithCluster(ctx, logicalcluster.Cluster{Name: holder})
	assumed := ref == universalType || ref == typeOfRoot
	if assumed { // nearly always, and what was defined a moment ago may be missed
		if _, err = p.objects.Get(ctx, workspaceTypes, metav1.NamespaceNone, ref.Name, true); apierrors.IsNotFound(err) {
			return &workspaceType{path: rootPath, holder: holder, name: ref.Name, assumed: true}, nil
		}
	}
	found, err := get(ctx, p.objects, workspaceTypes, metav1.NamespaceNone, ref.Name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defined, ok := found.(*tenancyv1alpha1.WorkspaceType)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("WorkspaceType %q is stored as a %T", ref.Name, found))
	}
	path, _, err := p.home(ctx) // the path may be a name
	if err != nil {
		return nil, err
	}
	return &workspaceType{path: path, holder: holder, name: defined.Name, spec: *defined.Spec.DeepCopy()}, nil
}

// typeOfParent returns the type of the workspace that a new one is made in.
func (p *WorkspaceTypes) typeOfParent(ctx context.Context, ref typeReference) (*workspaceType, error) {
	t, err := p.lookUp(ctx, ref)
	if err == nil && t == nil {
		err = fmt.Errorf("the type of this workspace, %s:%s, cannot be resolved: it is gone", ref.Path, ref.Name)
	}
	return t, err
}

// defaultIn returns the type of a workspace that names none, in one of the given type.
func (p *WorkspaceTypes) defaultIn(ctx context.Context, parent typeReference) (*typeReference, error) {
	t, err := p.typeOfParent(ctx, parent)
	if err != nil {
		return nil, err
	}
	if t.assumed {
		universal := universalType
		return &universal, nil
	}
	if t.spec.DefaultChildWorkspaceType == nil {
		return nil, fmt.Errorf("name a type in spec.type: spec.defaultChildWorkspaceType of workspace type %s is not set", t)
	}
	ref := beside(t, *t.spec.DefaultChildWorkspaceType)
	return &ref, nil
}

// beside completes a reference that a type holds: without a path it is to the workspace that holds the type.
func beside(t *workspaceType, ref typeReference) typeReference {
	if ref.Path == "" {
		ref.Path = t.path.String()
	}
	return ref
}

// usableFamily returns a type and all that it extends, if somebody may use each.
func (p *WorkspaceTypes) usableFamily(ctx context.Context, who user.Info, t *workspaceType) ([]*workspaceType, error) {
	return p.family(ctx, t, func(t *workspaceType) (bool, error) { return p.usable(ctx, who, t) })
}

// attendantsOf returns the attendants of a new Workspace, joined by commas. What an import fills was initialized where it was
// exported; who is not the system imports nothing, whatever he annotates.
func attendantsOf(at *attendance.Attendance, who user.Info, w *tenancyv1alpha1.Workspace, family []*workspaceType) string {
	if at == attendance.Initialization && w.Annotations[tenancyv1alpha1.ImportingAnnotation] != "" && slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup) {
		return ""
	}
	var names []string
	for _, t := range family {
		if at.Of(&t.spec) {
			names = append(names, string(attendance.Name(t.holder.String(), t.name)))
		}
	}
	return strings.Join(names, ",")
}

// family returns a type and all that it extends. What may refuses is as if it were not there.
func (p *WorkspaceTypes) family(ctx context.Context, t *workspaceType, may func(*workspaceType) (bool, error)) ([]*workspaceType, error) {
	var all []*workspaceType
	looked := map[typeReference]*workspaceType{} // each once, however many extend it
	var add func(*workspaceType, []string) error
	add = func(t *workspaceType, below []string) error {
		if i := slices.Index(below, t.String()); i >= 0 {
			return fmt.Errorf("circular dependency detected in workspace type %s: %s", t, strings.Join(append(slices.Clone(below[i:]), t.String()), " -> "))
		}
		if slices.ContainsFunc(all, func(known *workspaceType) bool { return known.String() == t.String() }) {
			return nil
		}
		if all = append(all, t); len(all) > maxFamily {
			return fmt.Errorf("workspace type %s extends more than %d others", all[0], maxFamily-1)
		}
		below = append(slices.Clone(below), t.String())
		for _, ref := range t.spec.Extend.With {
			ref = beside(t, ref)
			extended, known := looked[ref]
			if !known {
				var err error
				if extended, err = p.lookUp(ctx, ref); err != nil {
					return err
				}
				ok := false
				if extended != nil {
					if ok, err = may(extended); err != nil {
						return err
					}
				}
				if !ok {
					return fmt.Errorf("workspace type %s extends another: %w", t, unusable(ref))
				}
				looked[ref] = extended
			}
			if err := add(extended, below); err != nil {
				return err
			}
		}
		return nil
	}
	return all, add(t, nil)
}

// allowParent says why the types of a new workspace, the first and what it extends, do not allow those of its parent.
func allowParent(child, parent []*workspaceType) error {
	for _, t := range child {
		if !matches(t, t.spec.LimitAllowedParents, parent) {
			return fmt.Errorf("workspace type %s%s only allows %v parent workspaces, but parent type %s only implements %v",
				child[0], extending(child, t), limits(t, t.spec.LimitAllowedParents), parent[0], parent)
		}
	}
	return nil
}

// allowChild says why the types of a parent do not allow those of a new workspace.
func allowChild(parent, child []*workspaceType) error {
	for _, t := range parent {
		if l := t.spec.LimitAllowedChildren; l != nil && l.None {
			return fmt.Errorf("workspace type %s%s cannot have any children", parent[0], extending(parent, t))
		}
		if !matches(t, t.spec.LimitAllowedChildren, child) {
			return fmt.Errorf("workspace type %s%s only allows %v child workspaces, but child type %s only implements %v",
				parent[0], extending(parent, t), limits(t, t.spec.LimitAllowedChildren), child[0], child)
		}
	}
	return nil
}

// matches says whether a limit of a type allows one of others.
func matches(t *workspaceType, limit *tenancyv1alpha1.WorkspaceTypeSelector, others []*workspaceType) bool {
	switch {
	case limit == nil:
		return true
	case limit.None:
		return false
	case len(limit.Types) == 0:
		return true
	}
	allowed := limits(t, limit)
	return slices.ContainsFunc(others, func(other *workspaceType) bool { return slices.Contains(allowed, other.String()) })
}

// limits are the types of a selector, complete.
func limits(t *workspaceType, limit *tenancyv1alpha1.WorkspaceTypeSelector) []string {
	var names []string
	for _, ref := range limit.Types {
		ref = beside(t, ref)
		names = append(names, ref.Path+":"+ref.Name)
	}
	return names
}

func extending(family []*workspaceType, t *workspaceType) string {
	if t == family[0] {
		return ""
	}
	return fmt.Sprintf(" extends %s, which", t)
}
