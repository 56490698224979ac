package atollapis

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/attendance"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/podsecurity"
)

var (
	specPath = field.NewPath("spec")
)

// ---- LogicalCluster

func logicalClusterName(name string) []string {
	if name != corev1alpha1.LogicalClusterName {
		return []string{fmt.Sprintf("must be %q: there is one in each logical cluster", corev1alpha1.LogicalClusterName)}
	}
	return nil
}

func prepareLogicalCluster(_ context.Context, c *corev1alpha1.LogicalCluster) {
	if c.Spec.Use == "" {
		c.Spec.Use = corev1alpha1.LogicalClusterUseWorkspace
	}
	labelWaiting(c)
}

func validateNewLogicalCluster(ctx context.Context, _ *corev1alpha1.LogicalCluster) field.ErrorList {
	if !isSystem(ctx) {
		return field.ErrorList{field.Forbidden(specPath, "logical clusters are made by the system; create a Workspace")}
	}
	return nil
}

// keepLogicalCluster keeps the path, by which requests find the logical cluster, and the type, by which others limit it: its
// tenant may annotate the object, to place what it holds, and must not take another workspace's path that way. Neither
// changes as long as there is the logical cluster, so a patch of an administrator that leaves them out loses nothing, and one
// that changes them is refused.
func keepLogicalCluster(ctx context.Context, c, old *corev1alpha1.LogicalCluster) {
	if c.Spec.Use == "" {
		c.Spec.Use = old.Spec.Use
	}
	for _, key := range bornWith {
		if _, ok := c.Annotations[key]; !ok || !isSystem(ctx) {
			keepAnnotation(c, old, key)
		}
	}
	if !isSystem(ctx) {
		keepAnnotation(c, old, tenancyv1alpha1.OwnerAnnotation)
		keepAnnotation(c, old, tenancyv1alpha1.ImportingAnnotation)
		keepFinalizer(c, old, corev1alpha1.LogicalClusterFinalizer)
	}
	labelWaiting(c)
}

// bornWith are the annotations that say what a logical cluster is. It has them from its birth, or never.
var bornWith = []string{lcctx.PathAnnotation, tenancyv1alpha1.TypeAnnotation}

func validateLogicalCluster(c *corev1alpha1.LogicalCluster) field.ErrorList {
	uses := []corev1alpha1.LogicalClusterUse{corev1alpha1.LogicalClusterUseMirror, corev1alpha1.LogicalClusterUseWorkspace}
	if !slices.Contains(uses, c.Spec.Use) {
		return field.ErrorList{field.NotSupported(specPath.Child("use"), c.Spec.Use, uses)}
	}
	return nil
}

func validateLogicalClusterUpdate(ctx context.Context, c, old *corev1alpha1.LogicalCluster) field.ErrorList {
	var errs field.ErrorList
	if c.Spec.Use != old.Spec.Use {
		errs = append(errs, field.Forbidden(specPath.Child("use"), "is immutable"))
	}
	for _, key := range bornWith {
		errs = append(errs, sameAnnotation(c, old, key)...)
	}
	if owner := c.Annotations[tenancyv1alpha1.OwnerAnnotation]; owner != "" && tenancyv1alpha1.OwnerOf(c) == "" {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "annotations").Key(tenancyv1alpha1.OwnerAnnotation), owner,
			"must be as "+tenancyv1alpha1.OwnerValue("NAME")))
	}
	for _, a := range attendance.All {
		if !slices.Equal(*a.Born(&c.Spec), *a.Born(&old.Spec)) {
			errs = append(errs, field.Forbidden(specPath.Child(a.Field), "is immutable"))
		}
	}
	if isSystem(ctx) {
		return errs
	}
	if !equality.Semantic.DeepEqual(c.Spec.Owner, old.Spec.Owner) {
		errs = append(errs, field.Forbidden(specPath.Child("owner"), "is set by the system"))
	}
	if c.Spec.DirectlyDeletable != old.Spec.DirectlyDeletable {
		errs = append(errs, field.Forbidden(specPath.Child("directlyDeletable"), "is set by the system"))
	}
	return errs
}

// mayDeleteLogicalCluster refuses to delete what somebody owns, also to administrators, who can do harm with a slip of
// the hand; only the system may, at the end of a termination that the owner's deletion started.
func mayDeleteLogicalCluster(ctx context.Context, c *corev1alpha1.LogicalCluster) error {
	if c.Spec.DirectlyDeletable || isSystem(ctx) && c.Status.Phase.Ends() {
		return nil
	}
	instead := "it is part of the system"
	if path := c.Annotations[lcctx.PathAnnotation]; path != "" && c.Spec.Owner != nil {
		instead = fmt.Sprintf("delete the workspace instead, %q", path)
	} else if o := c.Spec.Owner; o != nil {
		instead = fmt.Sprintf("delete its owner instead: %s %q in logical cluster %q", o.Resource, o.Name, o.Cluster)
	}
	return apierrors.NewForbidden(corev1alpha1.GroupVersion.WithResource("logicalclusters").GroupResource(), c.Name,
		fmt.Errorf("a logical cluster that is not directly deletable: %s", instead))
}

// ---- Workspace

func workspaceName(name string) []string {
	if name == "root" {
		return []string{`must not be "root", the name of the workspace that holds all others`}
	}
	return validation.IsDNS1123Label(name)
}

// defaultWorkspaceType is that of workspaces which got none by admission.
func defaultWorkspaceType() *tenancyv1alpha1.WorkspaceTypeReference {
	return &tenancyv1alpha1.WorkspaceTypeReference{Name: "universal", Path: "root"}
}

// prepareWorkspace notes who asks: the owner gets all rights in the new logical cluster. The finalizer is there from the
// start, so that no deletion passes the controller by, and so is the logical cluster's name, by which what the controller
// makes is found whenever it dies.
func prepareWorkspace(ctx context.Context, w *tenancyv1alpha1.Workspace) {
	if w.Spec.Type == nil {
		w.Spec.Type = defaultWorkspaceType()
	}
	if w.Spec.Cluster == "" {
		w.Spec.Cluster = string(lcctx.NameOf(w.UID))
	}
	w.Status.Phase = corev1alpha1.LogicalClusterPhaseScheduling
	if w.Annotations == nil {
		w.Annotations = map[string]string{}
	}
	forWhom := tenancyv1alpha1.OwnerOf(w)
	delete(w.Annotations, tenancyv1alpha1.OwnerAnnotation)
	if !isSystem(ctx) {
		delete(w.Annotations, tenancyv1alpha1.ImportingAnnotation)
	}
	// A user of the parent alone, by its certificate, would be somebody else in the workspace: whoever has his name everywhere.
	if u, ok := genericapirequest.UserFrom(ctx); ok && u.GetName() != "" && len(u.GetExtra()[lcctx.UserExtra]) == 0 {
		w.Annotations[tenancyv1alpha1.OwnerAnnotation] = tenancyv1alpha1.OwnerValue(u.GetName())
	}
	if forWhom != "" && isServer(ctx) { // home workspaces
		w.Annotations[tenancyv1alpha1.OwnerAnnotation] = tenancyv1alpha1.OwnerValue(forWhom)
	}
	showPhase(w)
	addFinalizer(w, tenancyv1alpha1.WorkspaceFinalizer)
}

// warnOfNoOwner tells who creates a workspace, and is somebody in its parent alone, that he cannot enter it.
func warnOfNoOwner(ctx context.Context, w *tenancyv1alpha1.Workspace) []string {
	u, ok := genericapirequest.UserFrom(ctx)
	if !ok || len(u.GetExtra()[lcctx.UserExtra]) == 0 && !strings.HasPrefix(u.GetName(), serviceaccount.ServiceAccountUsernamePrefix) {
		return nil
	}
	return []string{fmt.Sprintf("%s is known in this workspace alone and cannot enter workspace %q: only those can whom an initializer of its type, "+
		"or an administrator of the server, gives a role there. Who is known everywhere is the owner of what he creates", u.GetName(), w.Name)}
}

// keepWorkspace keeps what an update of a user cannot change, so that manifests that lack it apply again and again.
func keepWorkspace(ctx context.Context, w, old *tenancyv1alpha1.Workspace) {
	if w.Spec.Type == nil {
		w.Spec.Type = old.Spec.Type
	} else if old.Spec.Type != nil && w.Spec.Type.Path == "" && w.Spec.Type.Name == old.Spec.Type.Name {
		w.Spec.Type.Path = old.Spec.Type.Path // which admission found
	}
	if w.Spec.Cluster == "" {
		w.Spec.Cluster = old.Spec.Cluster
	}
	if w.Spec.URL == "" {
		w.Spec.URL = old.Spec.URL
	}
	keepAnnotation(w, old, tenancyv1alpha1.OwnerAnnotation)
	showPhase(w)
	for _, a := range attendance.All {
		keepAnnotation(w, old, a.Annotation)
	}
	if !isSystem(ctx) {
		// An import ends with this annotation; until then nobody is to enter.
		keepAnnotation(w, old, tenancyv1alpha1.ImportingAnnotation)
		keepFinalizer(w, old, tenancyv1alpha1.WorkspaceFinalizer)
	}
}

// keepFinalizer gives obj a finalizer that old has.
func keepFinalizer(obj, old metav1.Object, finalizer string) {
	if slices.Contains(old.GetFinalizers(), finalizer) {
		addFinalizer(obj, finalizer)
	}
}

func addFinalizer(obj metav1.Object, finalizer string) {
	if !slices.Contains(obj.GetFinalizers(), finalizer) {
		obj.SetFinalizers(append(obj.GetFinalizers(), finalizer))
	}
}

// validateNewWorkspace refuses a new handle on a logical cluster that exists: it would make its creator the owner.
func validateNewWorkspace(_ context.Context, w *tenancyv1alpha1.Workspace) field.ErrorList {
	errs := validateTypeReference(specPath.Child("type"), *w.Spec.Type)
	if w.Spec.Cluster != string(lcctx.NameOf(w.UID)) { // the UID is new: nobody could know it
		errs = append(errs, field.Forbidden(specPath.Child("cluster"), "is set by the system"))
	}
	if w.Spec.URL != "" {
		errs = append(errs, field.Forbidden(specPath.Child("URL"), "is set by the system"))
	}
	return errs
}

func validateTypeReference(path *field.Path, ref tenancyv1alpha1.WorkspaceTypeReference) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range validation.IsDNS1123Label(ref.Name) {
		errs = append(errs, field.Invalid(path.Child("name"), ref.Name, msg))
	}
	if ref.Path != "" && !isPath(ref.Path) {
		errs = append(errs, field.Invalid(path.Child("path"), ref.Path, "must be the path of a workspace, as root:org"))
	}
	return errs
}

func validateWorkspaceUpdate(ctx context.Context, w, old *tenancyv1alpha1.Workspace) field.ErrorList {
	var errs field.ErrorList
	if !equality.Semantic.DeepEqual(w.Spec.Type, old.Spec.Type) {
		errs = append(errs, field.Forbidden(specPath.Child("type"), "is immutable"))
	}
	for _, f := range []struct{ name, is, was string }{
		{"cluster", w.Spec.Cluster, old.Spec.Cluster},
		{"URL", w.Spec.URL, old.Spec.URL},
	} {
		switch {
		case f.is == f.was:
		case f.was != "":
			errs = append(errs, field.Forbidden(specPath.Child(f.name), "is immutable once set"))
		case !isSystem(ctx):
			errs = append(errs, field.Forbidden(specPath.Child(f.name), "is set by the system"))
		}
	}
	if w.Spec.Cluster != "" {
		if err := lcctx.ValidateName(w.Spec.Cluster); err != nil {
			errs = append(errs, field.Invalid(specPath.Child("cluster"), w.Spec.Cluster, err.Error()))
		}
	}
	return errs
}

// ---- WorkspaceType

// maxExtends is how many types one may extend by itself: each is looked up for every new workspace.
const maxExtends = 16

// maxSelected is how many types a selector may name: each is compared for every new workspace, and named to who is refused.
const maxSelected = 64

func workspaceTypeName(name string) []string {
	if name == "any" || name == "system" { // reserved in kcp
		return []string{fmt.Sprintf("must not be %q, a reserved name", name)}
	}
	return validation.IsDNS1123Label(name)
}

func validateWorkspaceType(t *tenancyv1alpha1.WorkspaceType) field.ErrorList {
	var errs field.ErrorList
	with := specPath.Child("extend", "with")
	if n := len(t.Spec.Extend.With); n > maxExtends {
		errs = append(errs, field.TooMany(with, n, maxExtends))
	}
	for i, ref := range t.Spec.Extend.With {
		errs = append(errs, validateTypeReference(with.Index(i), ref)...)
	}
	errs = append(errs, metav1validation.ValidateLabels(t.Spec.AdditionalWorkspaceLabels, specPath.Child("additionalWorkspaceLabels"))...)
	if ref := t.Spec.DefaultChildWorkspaceType; ref != nil {
		errs = append(errs, validateTypeReference(specPath.Child("defaultChildWorkspaceType"), *ref)...)
	}
	errs = append(errs, validateTypeSelector(specPath.Child("limitAllowedChildren"), t.Spec.LimitAllowedChildren)...)
	return append(errs, validateTypeSelector(specPath.Child("limitAllowedParents"), t.Spec.LimitAllowedParents)...)
}

func validateTypeSelector(path *field.Path, s *tenancyv1alpha1.WorkspaceTypeSelector) field.ErrorList {
	if s == nil {
		return nil
	}
	var errs field.ErrorList
	if s.None && len(s.Types) > 0 {
		errs = append(errs, field.Forbidden(path.Child("types"), "excludes none"))
	}
	if n := len(s.Types); n > maxSelected {
		return append(errs, field.TooMany(path.Child("types"), n, maxSelected))
	}
	for i, ref := range s.Types {
		errs = append(errs, validateTypeReference(path.Child("types").Index(i), ref)...)
	}
	return errs
}

// ---- SyncTarget

func validateSyncTarget(t *workloadv1alpha1.SyncTarget) field.ErrorList {
	var errs field.ErrorList
	if l := t.Spec.PodSecurity; l != "" && !slices.Contains(podsecurity.Levels, l) {
		errs = append(errs, field.NotSupported(specPath.Child("podSecurity"), l, podsecurity.Levels))
	}
	if p := t.Spec.DedicatedTo; p != "" && !isPath(p) {
		errs = append(errs, field.Invalid(specPath.Child("dedicatedTo"), p, "must be the path of a workspace, as root:org"))
	}
	if t.Spec.KubeconfigSecretRef != nil && t.Spec.BootstrapTokenSecretRef != nil {
		errs = append(errs, field.Forbidden(specPath.Child("bootstrapTokenSecretRef"), "excludes kubeconfigSecretRef: one syncer works a cluster"))
	}
	for name, ref := range map[string]*corev1.SecretReference{
		"kubeconfigSecretRef": t.Spec.KubeconfigSecretRef, "bootstrapTokenSecretRef": t.Spec.BootstrapTokenSecretRef,
	} {
		if ref == nil {
			continue
		}
		path := specPath.Child(name)
		for _, msg := range validation.IsDNS1123Subdomain(ref.Name) {
			errs = append(errs, field.Invalid(path.Child("name"), ref.Name, msg))
		}
		for _, msg := range validation.IsDNS1123Label(ref.Namespace) {
			errs = append(errs, field.Invalid(path.Child("namespace"), ref.Namespace, msg))
		}
	}
	return errs
}

// validateAbandon refuses to give up what a cluster runs before the SyncTarget is deleted: who deletes it later, for whatever reason,
// would not be asked. old is nil for a new one; what has the word from before keeps it.
func validateAbandon(ctx context.Context, t, old *workloadv1alpha1.SyncTarget) field.ErrorList {
	const abandon = "abandon"
	if cluster, ok := lcctx.ClusterFrom(ctx); ok && cluster.Mirror {
		return nil // the copy says what the SyncTarget does
	}
	if t.Annotations[workloadv1alpha1.ConfirmAnnotation] != abandon || t.DeletionTimestamp != nil ||
		old != nil && old.Annotations[workloadv1alpha1.ConfirmAnnotation] == abandon {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("metadata", "annotations").Key(workloadv1alpha1.ConfirmAnnotation),
		"abandon gives up what a cluster runs whose SyncTarget is being deleted: delete it first (kubectl delete synctarget --wait=false)")}
}

// validateTwin refuses the label of a twin outside mirrors: by it the manager of the syncers tells the copy in a mirror from
// the SyncTarget, which it would not look after any more. That holds for the system too, which has no other use for it.
func validateTwin(ctx context.Context, t *workloadv1alpha1.SyncTarget) field.ErrorList {
	if _, is := t.Labels[workloadv1alpha1.SyncTargetLabel]; !is {
		return nil
	}
	if cluster, ok := lcctx.ClusterFrom(ctx); ok && cluster.Mirror {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("metadata", "labels").Key(workloadv1alpha1.SyncTargetLabel), "marks the copies of SyncTargets in mirrors, and is set by the system")}
}

// ---- Placement, PlacementPolicy

func validatePlacement(p *placementv1alpha1.Placement) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range validation.IsDNS1123Label(p.Spec.Namespace) {
		errs = append(errs, field.Invalid(specPath.Child("namespace"), p.Spec.Namespace, msg))
	}
	splits := []placementv1alpha1.SplitPolicy{
		placementv1alpha1.SplitEven, placementv1alpha1.SplitWeighted, placementv1alpha1.SplitDuplicate}
	if p.Spec.Split != "" && !slices.Contains(splits, p.Spec.Split) {
		errs = append(errs, field.NotSupported(specPath.Child("split"), p.Spec.Split, splits))
	}
	seen := map[string]bool{}
	for i, c := range p.Spec.Clusters {
		path := specPath.Child("clusters").Index(i)
		if seen[c.Name] {
			errs = append(errs, field.Duplicate(path.Child("name"), c.Name))
		}
		seen[c.Name] = true
		if c.Weight < 0 {
			errs = append(errs, field.Invalid(path.Child("weight"), c.Weight, "must not be negative"))
		}
	}
	return errs
}

func validatePlacementPolicy(p *placementv1alpha1.PlacementPolicy) field.ErrorList {
	var errs field.ErrorList
	if a := p.Spec.Allow; a != nil && a.Selector != nil {
		errs = append(errs, metav1validation.ValidateLabelSelector(a.Selector,
			metav1validation.LabelSelectorValidationOptions{}, specPath.Child("allow", "selector"))...)
	}
	if d := p.Spec.Default; d != nil {
		if _, err := metav1.ParseToLabelSelector(d.Selector); err != nil {
			errs = append(errs, field.Invalid(specPath.Child("default", "selector"), d.Selector, err.Error()))
		}
		if d.MaxClusters < 0 {
			errs = append(errs, field.Invalid(specPath.Child("default", "maxClusters"), d.MaxClusters, "must not be negative"))
		}
	}
	return errs
}

// isPath says whether p can be the path of one workspace.
func isPath(p string) bool {
	path := logicalcluster.NewPath(p)
	return path.IsValid() && path != logicalcluster.Wildcard
}

// keepAnnotation gives obj the value that old has, or none.
func keepAnnotation(obj, old metav1.Object, key string) {
	annotations := obj.GetAnnotations()
	value, ok := old.GetAnnotations()[key]
	switch {
	case !ok:
		delete(annotations, key)
	case annotations == nil:
		annotations = map[string]string{key: value}
	default:
		annotations[key] = value
	}
	obj.SetAnnotations(annotations)
}

// sameAnnotation refuses an update in which obj has another value than old.
func sameAnnotation(obj, old metav1.Object, key string) field.ErrorList {
	value, is := obj.GetAnnotations()[key]
	before, was := old.GetAnnotations()[key]
	path := field.NewPath("metadata", "annotations").Key(key)
	switch {
	case value == before && is == was:
		return nil
	case was:
		return field.ErrorList{field.Invalid(path, value, fmt.Sprintf("is immutable: it is %q for good", before))}
	}
	return field.ErrorList{field.Forbidden(path, "is set by the system, at birth")}
}
