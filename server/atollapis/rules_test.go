package atollapis

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"k8s.io/kubernetes/pkg/api/legacyscheme"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

func as(name string, groups ...string) context.Context {
	ctx := genericapirequest.WithNamespace(context.Background(), metav1.NamespaceNone)
	return genericapirequest.WithUser(ctx, &user.DefaultInfo{Name: name, Groups: groups})
}

var (
	ann    = as("ann")
	system = as("system:apiserver", user.SystemPrivilegedGroup)
)

func strategyOf[T object](r *resource[T]) strategy[T] {
	return strategy[T]{r: r, ObjectTyper: legacyscheme.Scheme}
}

// create and update do what the registry does with an object before it is stored.
func create[T object](ctx context.Context, r *resource[T], obj T) (T, error) {
	obj = obj.DeepCopyObject().(T)
	rest.FillObjectMetaSystemFields(obj)
	return obj, rest.BeforeCreate(strategyOf(r), ctx, obj)
}

func update[T object](ctx context.Context, s rest.RESTUpdateStrategy, obj, old T) (T, error) {
	obj, old = obj.DeepCopyObject().(T), old.DeepCopyObject().(T)
	old.SetResourceVersion("1")
	obj.SetResourceVersion("1")
	return obj, rest.BeforeUpdate(s, ctx, obj, old)
}

// wantError fails unless err is nil where want is empty, and else says want.
func wantError(t *testing.T, reason string, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: unexpected error: %v", reason, err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: error is %v, want one that says %q", reason, err, want)
	}
}

func TestWorkspaceCreate(t *testing.T) {
	for _, tc := range []struct {
		reason string
		ctx    context.Context
		sent   tenancyv1alpha1.Workspace
		want   string
	}{
		{"a name alone is enough", ann, tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, ""},
		{"digits first are a DNS label", ann, tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "1shop"}}, ""},
		{"root is the workspace above all", ann, tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "root"}}, `must not be "root"`},
		{"a dot would be a part of no path", ann, tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "a.b"}}, "metadata.name"},
		{"a colon separates names in a path", ann, tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "a:b"}}, "metadata.name"},
		{"the wildcard is no name", ann, tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "*"}}, "metadata.name"},
		{"a handle on an existing logical cluster would take it over", ann, tenancyv1alpha1.Workspace{
			ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: tenancyv1alpha1.WorkspaceSpec{Cluster: "root"}}, "spec.cluster"},
		{"nor may the system make one", system, tenancyv1alpha1.Workspace{
			ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: tenancyv1alpha1.WorkspaceSpec{Cluster: "root"}}, "spec.cluster"},
		{"the URL is the server's to say", ann, tenancyv1alpha1.Workspace{
			ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: tenancyv1alpha1.WorkspaceSpec{URL: "https://evil"}}, "spec.URL"},
		{"a type's path is a path", ann, tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "shop"},
			Spec: tenancyv1alpha1.WorkspaceSpec{Type: &tenancyv1alpha1.WorkspaceTypeReference{Name: "x", Path: "*"}}}, "spec.type.path"},
	} {
		_, err := create(tc.ctx, workspaces(), &tc.sent)
		wantError(t, tc.reason, err, tc.want)
	}
}

func TestWorkspaceTypeCreate(t *testing.T) {
	type spec = tenancyv1alpha1.WorkspaceTypeSpec
	type ref = tenancyv1alpha1.WorkspaceTypeReference
	for _, tc := range []struct {
		reason, name string
		sent         spec
		want         string
	}{
		{"a name alone is enough", "team", spec{}, ""},
		{"all there is", "team", spec{
			Extend:                    tenancyv1alpha1.WorkspaceTypeExtension{With: []ref{{Name: "base"}, {Name: "base", Path: "root:org"}}},
			AdditionalWorkspaceLabels: map[string]string{"example.com/tier": "gold"},
			DefaultChildWorkspaceType: &ref{Name: "universal", Path: "root"},
			LimitAllowedChildren:      &tenancyv1alpha1.WorkspaceTypeSelector{None: true},
			LimitAllowedParents:       &tenancyv1alpha1.WorkspaceTypeSelector{Types: []ref{{Name: "org"}}},
		}, ""},
		{"reserved in kcp", "any", spec{}, "reserved"},
		{"a dot would be no name of a type in a path", "a.b", spec{}, "metadata.name"},
		{"each is looked up", "team", spec{Extend: tenancyv1alpha1.WorkspaceTypeExtension{With: make([]ref, maxExtends+1)}}, "spec.extend.with"},
		{"a path is a path", "team", spec{Extend: tenancyv1alpha1.WorkspaceTypeExtension{With: []ref{{Name: "x", Path: "*"}}}}, "spec.extend.with[0].path"},
		{"labels are labels", "team", spec{AdditionalWorkspaceLabels: map[string]string{"tier": "no good"}}, "spec.additionalWorkspaceLabels"},
		{"a default has a name", "team", spec{DefaultChildWorkspaceType: &ref{}}, "spec.defaultChildWorkspaceType.name"},
		{"none and some", "team", spec{LimitAllowedChildren: &tenancyv1alpha1.WorkspaceTypeSelector{None: true, Types: []ref{{Name: "x"}}}}, "spec.limitAllowedChildren.types"},
		{"each is compared", "team", spec{LimitAllowedParents: &tenancyv1alpha1.WorkspaceTypeSelector{Types: make([]ref, maxSelected+1)}}, "spec.limitAllowedParents.types"},
		{"parents have names", "team", spec{LimitAllowedParents: &tenancyv1alpha1.WorkspaceTypeSelector{Types: []ref{{}}}}, "spec.limitAllowedParents.types[0].name"},
	} {
		_, err := create(ann, workspaceTypes(testURL), &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: tc.name}, Spec: tc.sent})
		wantError(t, tc.reason, err, tc.want)
	}
}

func TestWorkspaceOwnerAndFinalizer(t *testing.T) {
	made, err := create(ann, workspaces(), &tenancyv1alpha1.Workspace{
		ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{tenancyv1alpha1.OwnerAnnotation: `{"username":"bob"}`, "mine": "x"},
			Labels: map[string]string{tenancyv1alpha1.PhaseLabel: "Ready", "mine": "x"}},
		Status: tenancyv1alpha1.WorkspaceStatus{Phase: corev1alpha1.LogicalClusterPhaseReady},
	})
	wantError(t, "create", err, "")
	want := map[string]string{tenancyv1alpha1.OwnerAnnotation: `{"username":"ann"}`, "mine": "x"}
	if diff := cmp.Diff(want, made.Annotations); diff != "" {
		t.Errorf("the owner is who asks, whatever the client sent (-want +got):\n%s", diff)
	}
	labels := map[string]string{tenancyv1alpha1.PhaseLabel: "Scheduling", "mine": "x"}
	if diff := cmp.Diff(labels, made.Labels); diff != "" {
		t.Errorf("the label of the phase is the system's, whatever the client sent (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{tenancyv1alpha1.WorkspaceFinalizer}, made.Finalizers); diff != "" {
		t.Errorf("finalizers (-want +got):\n%s", diff)
	}
	if made.Spec.Cluster != string(lcctx.NameOf(made.UID)) {
		t.Errorf("it is born with the logical cluster %q, want %q", made.Spec.Cluster, lcctx.NameOf(made.UID))
	}
	if made.Status.Phase != corev1alpha1.LogicalClusterPhaseScheduling || made.Generation != 1 || made.Spec.Type.Name != "universal" {
		t.Errorf("phase %q, generation %d, type %v", made.Status.Phase, made.Generation, made.Spec.Type)
	}

	sent := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "shop", UID: made.UID}}
	kept, err := update(as("bob"), strategyOf(workspaces()), sent, made)
	wantError(t, "a manifest without what the system added applies", err, "")
	if got := kept.Labels[tenancyv1alpha1.PhaseLabel]; got != "Scheduling" {
		t.Errorf("the label of the phase after an update without it: %q", got)
	}
	if tenancyv1alpha1.OwnerOf(kept) != "ann" {
		t.Errorf("owner after an update by somebody else: %q", kept.Annotations[tenancyv1alpha1.OwnerAnnotation])
	}
	if diff := cmp.Diff(made.Finalizers, kept.Finalizers); diff != "" {
		t.Errorf("a user took the finalizer off (-want +got):\n%s", diff)
	}
	if kept.Generation != made.Generation {
		t.Errorf("generation rose to %d though the spec is the same", kept.Generation)
	}
	for who, owner := range map[context.Context]string{as("root", user.SystemPrivilegedGroup): "root", as("system:apiserver"): "system:apiserver", system: "bob"} {
		sent := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "home", Annotations: map[string]string{
			tenancyv1alpha1.OwnerAnnotation: `{"username":"bob","groups":["system:masters"],"extra":{"a":["b"]}}`}}}
		if made, err := create(who, workspaces(), sent); err != nil || made.Annotations[tenancyv1alpha1.OwnerAnnotation] != tenancyv1alpha1.OwnerValue(owner) {
			t.Errorf("only the server itself makes a workspace for somebody: owner %q, want %q; %v", made.Annotations[tenancyv1alpha1.OwnerAnnotation], owner, err)
		}
	}
	// The mark of an import is an administrator's: who takes it off lets the workspace become ready before it is filled.
	importing := made.DeepCopy()
	importing.Annotations[tenancyv1alpha1.ImportingAnnotation] = "now"
	sent.Annotations = map[string]string{tenancyv1alpha1.ImportingAnnotation: "now"}
	if begun, err := create(ann, workspaces(), sent); err != nil || begun.Annotations[tenancyv1alpha1.ImportingAnnotation] != "" {
		t.Errorf("a user begins an import by an annotation: %v, %v", begun.Annotations, err)
	}
	sent.Annotations = nil
	for who, want := range map[context.Context]string{ann: "now", system: ""} {
		if got, err := update(who, strategyOf(workspaces()), sent, importing); err != nil || got.Annotations[tenancyv1alpha1.ImportingAnnotation] != want {
			t.Errorf("the mark of an import is %q, want %q; %v", got.Annotations[tenancyv1alpha1.ImportingAnnotation], want, err)
		}
	}
	released, err := update(system, strategyOf(workspaces()), sent, made)
	wantError(t, "the system takes the finalizer off", err, "")
	if len(released.Finalizers) != 0 {
		t.Errorf("finalizers after the system took them off: %v", released.Finalizers)
	}
}

func TestWorkspaceUpdate(t *testing.T) {
	universal := defaultWorkspaceType()
	for _, tc := range []struct {
		reason   string
		ctx      context.Context
		old, obj tenancyv1alpha1.WorkspaceSpec
		want     string
	}{
		{"the system sets the cluster once", system, tenancyv1alpha1.WorkspaceSpec{Type: universal}, tenancyv1alpha1.WorkspaceSpec{Cluster: "abc", URL: "https://x"}, ""},
		{"a user does not", ann, tenancyv1alpha1.WorkspaceSpec{Type: universal}, tenancyv1alpha1.WorkspaceSpec{Cluster: "root"}, "set by the system"},
		{"it does not change", system, tenancyv1alpha1.WorkspaceSpec{Type: universal, Cluster: "abc"}, tenancyv1alpha1.WorkspaceSpec{Cluster: "root"}, "immutable"},
		{"it is kept where the client leaves it out", ann, tenancyv1alpha1.WorkspaceSpec{Type: universal, Cluster: "abc"}, tenancyv1alpha1.WorkspaceSpec{}, ""},
		{"it is a name that can be a key", system, tenancyv1alpha1.WorkspaceSpec{Type: universal}, tenancyv1alpha1.WorkspaceSpec{Cluster: "a/b"}, "spec.cluster"},
		{"the type's path is kept, too", ann, tenancyv1alpha1.WorkspaceSpec{Type: universal}, tenancyv1alpha1.WorkspaceSpec{Type: &tenancyv1alpha1.WorkspaceTypeReference{Name: "universal"}}, ""},
		{"the type does not change", ann, tenancyv1alpha1.WorkspaceSpec{Type: universal}, tenancyv1alpha1.WorkspaceSpec{Type: &tenancyv1alpha1.WorkspaceTypeReference{Name: "other"}}, "immutable"},
	} {
		old := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Generation: 1}, Spec: tc.old}
		obj := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: tc.obj}
		_, err := update(tc.ctx, strategyOf(workspaces()), obj, old)
		wantError(t, tc.reason, err, tc.want)
	}
}

func TestLogicalClusterUpdate(t *testing.T) {
	old := &corev1alpha1.LogicalCluster{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster", Generation: 1, Annotations: map[string]string{lcctx.PathAnnotation: "root:shop"}},
		Spec:       corev1alpha1.LogicalClusterSpec{Use: corev1alpha1.LogicalClusterUseWorkspace},
	}
	for _, tc := range []struct {
		reason string
		ctx    context.Context
		change func(*corev1alpha1.LogicalCluster)
		path   string
		want   string
	}{
		{"a tenant places all it holds", ann, func(c *corev1alpha1.LogicalCluster) {
			c.Annotations[placementv1alpha1.ClustersAnnotation] = "east"
		}, "root:shop", ""},
		{"a tenant does not take another path", ann, func(c *corev1alpha1.LogicalCluster) {
			c.Annotations[lcctx.PathAnnotation] = "root:bank"
		}, "root:shop", ""},
		{"nor gives its own up", ann, func(c *corev1alpha1.LogicalCluster) { c.Annotations = nil }, "root:shop", ""},
		{"an administrator who leaves it out loses nothing", system, func(c *corev1alpha1.LogicalCluster) { c.Annotations = nil }, "root:shop", ""},
		{"nor moves it, by which it would not be found any more", system, func(c *corev1alpha1.LogicalCluster) {
			c.Annotations[lcctx.PathAnnotation] = "root:bank"
		}, "", `metadata.annotations[kcp.io/path]: Invalid value: "root:bank": is immutable: it is "root:shop" for good`},
		{"nor gives it a type that it was not made of", system, func(c *corev1alpha1.LogicalCluster) {
			c.Annotations[tenancyv1alpha1.TypeAnnotation] = "root:team"
		}, "", "metadata.annotations[internal.tenancy.kcp.io/type]: Forbidden: is set by the system, at birth"},
		{"a tenant does not make it deletable", ann, func(c *corev1alpha1.LogicalCluster) { c.Spec.DirectlyDeletable = true }, "", "directlyDeletable"},
		{"nor changes the owner", ann, func(c *corev1alpha1.LogicalCluster) {
			c.Spec.Owner = &corev1alpha1.LogicalClusterOwner{Name: "x"}
		}, "", "spec.owner"},
		{"the use never changes", system, func(c *corev1alpha1.LogicalCluster) { c.Spec.Use = corev1alpha1.LogicalClusterUseMirror }, "", "spec.use"},
	} {
		obj := old.DeepCopy()
		tc.change(obj)
		got, err := update(tc.ctx, strategyOf(logicalClusters()), obj, old)
		wantError(t, tc.reason, err, tc.want)
		if err == nil && got.Annotations[lcctx.PathAnnotation] != tc.path {
			t.Errorf("%s: path is %q, want %q", tc.reason, got.Annotations[lcctx.PathAnnotation], tc.path)
		}
	}
}

// While an import fills a logical cluster nothing in it is deleted: that is for the system to begin and end.
func TestLogicalClusterOfAnImport(t *testing.T) {
	const importing = tenancyv1alpha1.ImportingAnnotation
	plain := &corev1alpha1.LogicalCluster{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster", Generation: 1, Annotations: map[string]string{lcctx.PathAnnotation: "root:shop"}},
		Spec:       corev1alpha1.LogicalClusterSpec{Use: corev1alpha1.LogicalClusterUseWorkspace},
	}
	imported := plain.DeepCopy()
	imported.Annotations[importing] = "now"
	for who, want := range map[context.Context][2]string{ann: {"", "now"}, system: {"now", ""}} {
		begun, err := update(who, strategyOf(logicalClusters()), imported.DeepCopy(), plain)
		wantError(t, "begin", err, "")
		ended, err := update(who, strategyOf(logicalClusters()), plain.DeepCopy(), imported)
		wantError(t, "end", err, "")
		if got := [2]string{begun.Annotations[importing], ended.Annotations[importing]}; got != want {
			t.Errorf("begun and ended: %q, want %q", got, want)
		}
	}
}

func TestLogicalClusterCreate(t *testing.T) {
	ready := corev1alpha1.LogicalClusterStatus{Phase: corev1alpha1.LogicalClusterPhaseReady}
	for _, tc := range []struct {
		reason string
		ctx    context.Context
		sent   corev1alpha1.LogicalCluster
		want   string
	}{
		{"the system makes one with its status", system, corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}, Status: ready}, ""},
		{"users make Workspaces", ann, corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}}, "made by the system"},
		{"there is one by one name", system, corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, `must be "cluster"`},
		{"uses are known", system, corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: "cluster"},
			Spec: corev1alpha1.LogicalClusterSpec{Use: "Other"}}, "spec.use"},
	} {
		got, err := create(tc.ctx, logicalClusters(), &tc.sent)
		wantError(t, tc.reason, err, tc.want)
		if err != nil {
			continue
		}
		if got.Spec.Use != corev1alpha1.LogicalClusterUseWorkspace || got.Status.Phase != ready.Phase {
			t.Errorf("%s: use %q, phase %q", tc.reason, got.Spec.Use, got.Status.Phase)
		}
	}
}

func TestLogicalClusterDelete(t *testing.T) {
	for _, tc := range []struct {
		reason   string
		ctx      context.Context
		deleting bool
		direct   bool
		want     bool
	}{
		{"a tenant deletes the Workspace instead", ann, false, false, false},
		{"an administrator, too", system, false, false, false},
		{"a tenant does not cut a termination short", ann, true, false, false},
		{"the system ends a termination", system, true, false, true},
		{"one that is directly deletable goes", ann, false, true, true},
	} {
		c := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}, Spec: corev1alpha1.LogicalClusterSpec{
			DirectlyDeletable: tc.direct, Owner: &corev1alpha1.LogicalClusterOwner{Resource: "workspaces", Name: "shop", Cluster: "root"}}}
		if tc.deleting {
			c.Status.Phase = corev1alpha1.LogicalClusterPhaseTerminating
		}
		err := mayDeleteLogicalCluster(tc.ctx, c)
		if got := err == nil; got != tc.want {
			t.Errorf("%s: may delete: %v, want %v", tc.reason, got, tc.want)
		}
		if err != nil && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `workspaces "shop"`)) {
			t.Errorf("%s: the refusal %q does not name the owner", tc.reason, err)
		}
	}
}

func TestSyncTargetValidation(t *testing.T) {
	for _, tc := range []struct {
		reason string
		spec   workloadv1alpha1.SyncTargetSpec
		want   string
	}{
		{"nothing is required", workloadv1alpha1.SyncTargetSpec{}, ""},
		{"a known level", workloadv1alpha1.SyncTargetSpec{PodSecurity: "restricted"}, ""},
		{"an unknown level", workloadv1alpha1.SyncTargetSpec{PodSecurity: "strict"}, "spec.podSecurity"},
		{"a path", workloadv1alpha1.SyncTargetSpec{DedicatedTo: "root:org:team"}, ""},
		{"not a path", workloadv1alpha1.SyncTargetSpec{DedicatedTo: "root/org"}, "spec.dedicatedTo"},
		{"not one workspace", workloadv1alpha1.SyncTargetSpec{DedicatedTo: "*"}, "spec.dedicatedTo"},
		{"two ways to be synced", workloadv1alpha1.SyncTargetSpec{
			KubeconfigSecretRef: &corev1.SecretReference{Namespace: "a", Name: "a"}, BootstrapTokenSecretRef: &corev1.SecretReference{Namespace: "a", Name: "b"},
		}, "spec.bootstrapTokenSecretRef"},
		{"a token without a namespace", workloadv1alpha1.SyncTargetSpec{BootstrapTokenSecretRef: &corev1.SecretReference{Name: "a"}}, "spec.bootstrapTokenSecretRef.namespace"},
		{"a secret without a namespace", workloadv1alpha1.SyncTargetSpec{KubeconfigSecretRef: &corev1.SecretReference{Name: "a"}}, "spec.kubeconfigSecretRef.namespace"},
	} {
		_, err := create(ann, syncTargets(), &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "east"}, Spec: tc.spec})
		wantError(t, tc.reason, err, tc.want)
	}
}

// The label of a twin on a SyncTarget would make everybody take it for one.
func TestTwinLabelIsOfMirrors(t *testing.T) {
	plain := &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "east"}}
	twin := plain.DeepCopy()
	twin.Labels = map[string]string{workloadv1alpha1.SyncTargetLabel: "uid"}
	empty := plain.DeepCopy()
	empty.Labels = map[string]string{workloadv1alpha1.SyncTargetLabel: ""}
	for _, tc := range []struct {
		reason string
		ctx    context.Context
		target *workloadv1alpha1.SyncTarget
		want   string
	}{
		{"no label", in(ann, false), plain, ""},
		{"a twin", in(system, true), twin, ""},
		{"in a workspace", in(ann, false), twin, "metadata.labels"},
		{"without a value", in(ann, false), empty, "metadata.labels"},
		{"in a workspace by who may do anything", in(system, false), twin, "metadata.labels"},
		{"in no logical cluster", ann, twin, "metadata.labels"},
	} {
		_, err := create(tc.ctx, syncTargets(), tc.target)
		wantError(t, "create: "+tc.reason, err, tc.want)
		_, err = update(tc.ctx, strategyOf(syncTargets()), tc.target, plain)
		wantError(t, "update: "+tc.reason, err, tc.want)
	}
	// Who got it in before may take it off.
	_, err := update(in(ann, false), strategyOf(syncTargets()), plain, twin)
	wantError(t, "take it off", err, "")
}

func TestStatusEndpoint(t *testing.T) {
	old := &workloadv1alpha1.SyncTarget{
		ObjectMeta: metav1.ObjectMeta{Name: "east", Generation: 3, Labels: map[string]string{"a": "b"}, Finalizers: []string{"x/y"}},
		Spec:       workloadv1alpha1.SyncTargetSpec{DedicatedTo: "root:org"},
		Status:     workloadv1alpha1.SyncTargetStatus{Nodes: 1},
	}
	sent := &workloadv1alpha1.SyncTarget{
		ObjectMeta: metav1.ObjectMeta{Name: "east", Labels: map[string]string{"c": "d"}},
		Spec:       workloadv1alpha1.SyncTargetSpec{Unschedulable: true},
		Status:     workloadv1alpha1.SyncTargetStatus{Nodes: 2},
	}
	main := strategyOf(syncTargets())
	gotStatus, err := update(ann, statusStrategy[*workloadv1alpha1.SyncTarget]{main}, sent, old)
	wantError(t, "status endpoint", err, "")
	want := old.DeepCopy()
	want.ResourceVersion, want.Status.Nodes = "1", 2
	if diff := cmp.Diff(want, gotStatus); diff != "" {
		t.Errorf("the status endpoint changed more than the status (-want +got):\n%s", diff)
	}
	got, err := update(ann, main, sent, old)
	wantError(t, "main endpoint", err, "")
	if got.Status.Nodes != 1 || !got.Spec.Unschedulable || got.Generation != 4 {
		t.Errorf("the main endpoint left nodes %d, unschedulable %v, generation %d", got.Status.Nodes, got.Spec.Unschedulable, got.Generation)
	}
}

// A decision and what is said of it are one write of the server's controllers, and of nobody else.
func TestDecidedInOneWrite(t *testing.T) {
	placement := func(cluster, reason string) *placementv1alpha1.Placement {
		return &placementv1alpha1.Placement{
			ObjectMeta: metav1.ObjectMeta{Name: "shop", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "atoll", Operation: metav1.ManagedFieldsOperationUpdate, FieldsType: "FieldsV1"}}},
			Spec:       placementv1alpha1.PlacementSpec{Namespace: "shop", Clusters: []placementv1alpha1.PlacedCluster{{Name: cluster, UID: "1", Weight: 1}}},
			Status:     placementv1alpha1.PlacementStatus{Conditions: []metav1.Condition{{Type: placementv1alpha1.PlacementPlaced, Reason: reason}}},
		}
	}
	reason := func(p *placementv1alpha1.Placement) string {
		if len(p.Status.Conditions) == 0 {
			return ""
		}
		return p.Status.Conditions[0].Reason
	}
	old := placement("east", "Before")
	old.Generation, old.ManagedFields = 3, nil
	for _, tc := range []struct {
		reason          string
		ctx             context.Context
		created, stored string // reasons
		tracked         bool
	}{
		{"the server decides", system, "Sent", "Sent", false},
		{"a user writes a spec at most", ann, "", "Before", true},
		{"an administrator has the status endpoint", as("admin", user.SystemPrivilegedGroup), "", "Before", true},
		{"a name alone is no server", as(user.APIServerUser), "", "Before", true},
	} {
		made, err := create(tc.ctx, placements(), placement("west", "Sent"))
		wantError(t, tc.reason, err, "")
		changed, err := update(tc.ctx, strategyOf(placements()), placement("west", "Sent"), old)
		wantError(t, tc.reason, err, "")
		if reason(made) != tc.created || reason(changed) != tc.stored {
			t.Errorf("%s: the condition is %q at birth and %q later, want %q and %q", tc.reason, reason(made), reason(changed), tc.created, tc.stored)
		}
		if changed.Generation != 4 || made.Generation != 1 || changed.Spec.Clusters[0].Name != "west" {
			t.Errorf("%s: generation %d at birth and %d later, on %v", tc.reason, made.Generation, changed.Generation, changed.Spec.Clusters)
		}
		if got := len(made.ManagedFields) > 0; got != tc.tracked {
			t.Errorf("%s: managed fields at birth: %v, want %v", tc.reason, got, tc.tracked)
		}
	}
	// No other type is decided by the server: there the status endpoint is the only way to a status.
	target := &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "east"}, Status: workloadv1alpha1.SyncTargetStatus{Nodes: 1}}
	if made, err := create(system, syncTargets(), target); err != nil || made.Status.Nodes != 0 {
		t.Errorf("a SyncTarget got %d nodes at birth: %v", made.Status.Nodes, err)
	}
}

func TestPlacementCells(t *testing.T) {
	spec := func(names ...string) (s placementv1alpha1.PlacementSpec) {
		s.Namespace = "web"
		for _, n := range names {
			s.Clusters = append(s.Clusters, placementv1alpha1.PlacedCluster{Name: n})
		}
		return s
	}
	on := func(name string, phase placementv1alpha1.PlacedClusterPhase, ready, replicas int32) placementv1alpha1.PlacedClusterStatus {
		return placementv1alpha1.PlacedClusterStatus{Name: name, Phase: phase, ReadyReplicas: ready, Replicas: replicas}
	}
	for _, tc := range []struct {
		reason   string
		spec     placementv1alpha1.PlacementSpec
		clusters []placementv1alpha1.PlacedClusterStatus
		mistake  string // the reason why Placed is False
		want     []any
	}{
		{"nothing is known yet", spec("east"), nil, "", []any{"web", "", "east", "False", "Pending"}},
		{"all run", spec("east", "west"), []placementv1alpha1.PlacedClusterStatus{on("east", "Ready", 3, 3), on("west", "Ready", 3, 3)}, "",
			[]any{"web", "", "east 3/3,west 3/3", "True", "Placed"}},
		{"one is being left", spec("west"), []placementv1alpha1.PlacedClusterStatus{on("east", "Draining", 3, 3), on("west", "Synced", 1, 3)}, "",
			[]any{"web", "", "west 1/3,east 3/3 Draining", "False", "Progressing"}},
		{"one refuses", spec("east"), []placementv1alpha1.PlacedClusterStatus{on("east", "Refused", 0, 3)}, "",
			[]any{"web", "", "east 0/3 Refused", "False", "Refused"}},
		{"one refuses what another is about to run", spec("east", "west"), []placementv1alpha1.PlacedClusterStatus{on("east", "Synced", 2, 3), on("west", "Refused", 0, 3)}, "",
			[]any{"web", "", "east 2/3,west 0/3 Refused", "False", "Refused"}},
		{"one is not there yet", spec("east", "west"), []placementv1alpha1.PlacedClusterStatus{on("east", "Ready", 3, 3), on("west", "Applying", 0, 3)}, "",
			[]any{"web", "", "east 3/3,west 0/3", "False", "Applying"}},
		{"what was asked for cannot be met, though all that it has run", spec("east"), []placementv1alpha1.PlacedClusterStatus{on("east", "Ready", 3, 3)}, "InvalidPlacement",
			[]any{"web", "", "east 3/3", "False", "InvalidPlacement"}},
		{"what stays elsewhere is all that is lacking", spec("west"), []placementv1alpha1.PlacedClusterStatus{on("east", "Staying", 3, 3), on("west", "Pending", 6, 6)}, "",
			[]any{"web", "", "west 6/6,east 3/3 Staying", "False", "Staying"}},
		{"something stays elsewhere, and something is refused", spec("west"), []placementv1alpha1.PlacedClusterStatus{on("east", "Staying", 3, 3), on("west", "Refused", 6, 6)}, "",
			[]any{"web", "", "west 6/6 Refused,east 3/3 Staying", "False", "Refused"}},
		{"what replaces it serves, and it is not gone", spec("west"), []placementv1alpha1.PlacedClusterStatus{on("east", "Draining", 3, 3), on("west", "Ready", 3, 3)}, "",
			[]any{"web", "", "west 3/3,east 3/3 Draining", "False", "Draining"}},
		{"its end hangs", spec("west"), []placementv1alpha1.PlacedClusterStatus{on("east", "Deleting", 3, 3), on("west", "Ready", 3, 3)}, "",
			[]any{"web", "", "west 3/3,east 3/3 Deleting", "False", "Deleting"}},
		{"what comes is told before what goes", spec("west"), []placementv1alpha1.PlacedClusterStatus{on("east", "Deleting", 3, 3), on("west", "Synced", 3, 3)}, "",
			[]any{"web", "", "west 3/3,east 3/3 Deleting", "False", "Progressing"}},
		{"placed nowhere is not ready", spec(), nil, "", []any{"web", "", "", "False", "Nowhere"}},
	} {
		placed := metav1.Condition{Type: placementv1alpha1.PlacementPlaced, Status: metav1.ConditionTrue, Reason: placementv1alpha1.ReasonPlaced}
		if tc.mistake != "" {
			placed.Status, placed.Reason = metav1.ConditionFalse, tc.mistake
		}
		got := placementCells(&placementv1alpha1.Placement{Spec: tc.spec, Status: placementv1alpha1.PlacementStatus{
			Clusters:   tc.clusters,
			Conditions: []metav1.Condition{placed},
		}})
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
		}
	}
	p := &placementv1alpha1.Placement{Spec: spec("east"), Status: placementv1alpha1.PlacementStatus{
		ObservedGeneration: 1,
		Clusters:           []placementv1alpha1.PlacedClusterStatus{on("east", "Ready", 3, 3)},
		Conditions:         []metav1.Condition{{Type: placementv1alpha1.PlacementPlaced, Status: metav1.ConditionTrue, Reason: placementv1alpha1.ReasonPlaced}},
	}}
	p.Generation = 1
	if got := placementCells(p); got[3] != "True" {
		t.Errorf("all is as this decision has it: %v", got)
	}
	if p.Generation = 2; placementCells(p)[3] != "False" || placementCells(p)[4] != "Progressing" {
		t.Errorf("what is known is of the decision before this one: %v", placementCells(p))
	}
}

func TestTableColumnsMatchCells(t *testing.T) {
	for name, tc := range map[string]struct {
		convert rest.TableConvertor
		list    runtime.Object
	}{
		"logicalclusters":   {table[*corev1alpha1.LogicalCluster]{logicalClusters()}, &corev1alpha1.LogicalClusterList{Items: make([]corev1alpha1.LogicalCluster, 2)}},
		"workspaces":        {table[*tenancyv1alpha1.Workspace]{workspaces()}, &tenancyv1alpha1.WorkspaceList{Items: make([]tenancyv1alpha1.Workspace, 2)}},
		"workspacetypes":    {table[*tenancyv1alpha1.WorkspaceType]{workspaceTypes(testURL)}, &tenancyv1alpha1.WorkspaceTypeList{Items: make([]tenancyv1alpha1.WorkspaceType, 2)}},
		"synctargets":       {table[*workloadv1alpha1.SyncTarget]{syncTargets()}, &workloadv1alpha1.SyncTargetList{Items: make([]workloadv1alpha1.SyncTarget, 2)}},
		"placements":        {table[*placementv1alpha1.Placement]{placements()}, &placementv1alpha1.PlacementList{Items: make([]placementv1alpha1.Placement, 2)}},
		"placementpolicies": {table[*placementv1alpha1.PlacementPolicy]{placementPolicies()}, &placementv1alpha1.PlacementPolicyList{Items: make([]placementv1alpha1.PlacementPolicy, 2)}},
	} {
		got, err := tc.convert.ConvertToTable(context.Background(), tc.list, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(got.Rows) != 2 {
			t.Errorf("%s: %d rows for 2 objects", name, len(got.Rows))
		}
		for _, row := range got.Rows {
			if len(row.Cells) != len(got.ColumnDefinitions) {
				t.Errorf("%s: %d cells under %d columns", name, len(row.Cells), len(got.ColumnDefinitions))
			}
		}
	}
}

// What a cluster runs is given up by who deletes its SyncTarget, when he does.
func TestAbandonFollowsTheDeletion(t *testing.T) {
	plain := &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "east", UID: "uid"}}
	with := func(word string, deleted bool) *workloadv1alpha1.SyncTarget {
		target := plain.DeepCopy()
		target.Annotations = map[string]string{workloadv1alpha1.ConfirmAnnotation: word}
		if deleted {
			now := metav1.Now()
			target.DeletionTimestamp, target.Finalizers = &now, []string{"x/y"}
		}
		return target
	}
	const annotation = "metadata.annotations[workload.atoll.dev/confirm]"
	for _, tc := range []struct {
		reason   string
		mirror   bool
		now, old *workloadv1alpha1.SyncTarget
		want     string
	}{
		{"nothing is deleted", false, with("abandon", false), plain, annotation},
		{"nor by another word before", false, with("abandon", false), with("restored", false), annotation},
		{"it is deleted", false, with("abandon", true), with("restored", true), ""},
		{"another word", false, with("restored", false), plain, ""},
		{"from before this was refused", false, with("abandon", false), with("abandon", false), ""},
		{"the copy in the mirror", true, with("abandon", false), plain, ""},
	} {
		_, err := update(in(system, tc.mirror), strategyOf(syncTargets()), tc.now, tc.old)
		wantError(t, tc.reason, err, tc.want)
	}
	_, err := create(in(ann, false), syncTargets(), with("abandon", false))
	wantError(t, "create", err, annotation)
}

// in is a context of a workspace, or of a mirror.
func in(ctx context.Context, mirror bool) context.Context {
	return lcctx.WithCluster(ctx, lcctx.Cluster{Name: "somewhere", Mirror: mirror})
}

// Who is somebody in the parent alone makes a workspace that he cannot enter, and is told so.
func TestNoOwnerIsToldOf(t *testing.T) {
	alone := genericapirequest.WithUser(ann, &user.DefaultInfo{Name: "eve", Extra: map[string][]string{lcctx.UserExtra: {"abc"}}})
	for reason, tc := range map[string]struct {
		who  context.Context
		want string
	}{
		"known everywhere":   {ann, ""},
		"a ServiceAccount":   {as("system:serviceaccount:team:robot"), "system:serviceaccount:team:robot is known in this workspace alone"},
		"of a certificate":   {alone, "eve is known in this workspace alone"},
		"the server's own":   {system, ""},
		"nearly one by name": {as("system:serviceaccounts-of-ann"), ""},
	} {
		told := strategyOf(workspaces()).WarningsOnCreate(tc.who, &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
		if got := strings.Join(told, "; "); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: told %q, want %q", reason, got, tc.want)
		}
	}
}
