package atollapis

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// resources is the table of what is served, in the order of discovery.
func resources(urlBase string) []served {
	return []served{logicalClusters(), workspaces(), workspaceTypes(urlBase), syncTargets(), placements(), placementPolicies()}
}

func logicalClusters() *resource[*corev1alpha1.LogicalCluster] {
	type T = *corev1alpha1.LogicalCluster
	return &resource[T]{
		version: corev1alpha1.GroupVersion,
		plural:  "logicalclusters", singular: "logicalcluster",
		categories: []string{"kcp"},

		new:     func() T { return &corev1alpha1.LogicalCluster{} },
		newList: func() runtime.Object { return &corev1alpha1.LogicalClusterList{} },

		validName:      logicalClusterName,
		prepareCreate:  prepareLogicalCluster,
		prepareUpdate:  keepLogicalCluster,
		validate:       validateLogicalCluster,
		validateCreate: validateNewLogicalCluster,
		validateUpdate: validateLogicalClusterUpdate,
		validateDelete: mayDeleteLogicalCluster,

		sameSpec:      func(a, b T) bool { return equality.Semantic.DeepEqual(a.Spec, b.Spec) },
		copySpec:      func(to, from T) { to.Spec = from.Spec },
		copyStatus:    func(to, from T) { to.Status = from.Status },
		statusAtBirth: true,

		prepareStatus:  prepareLogicalClusterStatus,
		validateStatus: validateLogicalClusterStatus,

		columns: []metav1.TableColumnDefinition{
			column("Phase", "string", "where the logical cluster is in its life"),
			column("URL", "string", "the address of the logical cluster"),
		},
		cells: func(c T) []any { return []any{string(c.Status.Phase), c.Status.URL} },
	}
}

func workspaces() *resource[*tenancyv1alpha1.Workspace] {
	type T = *tenancyv1alpha1.Workspace
	return &resource[T]{
		version: tenancyv1alpha1.GroupVersion,
		plural:  "workspaces", singular: "workspace",
		shortNames: []string{"ws"}, categories: []string{"kcp"},

		new:     func() T { return &tenancyv1alpha1.Workspace{} },
		newList: func() runtime.Object { return &tenancyv1alpha1.WorkspaceList{} },

		validName:      workspaceName,
		prepareCreate:  prepareWorkspace,
		prepareUpdate:  keepWorkspace,
		validateCreate: validateNewWorkspace,
		warn:           warnOfNoOwner,
		validateUpdate: validateWorkspaceUpdate,

		sameSpec:   func(a, b T) bool { return equality.Semantic.DeepEqual(a.Spec, b.Spec) },
		copySpec:   func(to, from T) { to.Spec = from.Spec },
		copyStatus: func(to, from T) { to.Status = from.Status },

		prepareStatus: func(_ context.Context, w, _ T) { showPhase(w) },

		columns: []metav1.TableColumnDefinition{
			column("Type", "string", "type of the workspace"),
			column("Region", "string", "where the workspace lives, by its label region"),
			column("Phase", "string", "where the workspace is in its life"),
			column("URL", "string", "the address of the workspace"),
			wide("Cluster", "string", "the workspace's logical cluster"),
		},
		cells: func(w T) []any {
			kind := ""
			if w.Spec.Type != nil {
				kind = w.Spec.Type.Name
			}
			return []any{kind, w.Labels["region"], string(w.Status.Phase), w.Spec.URL, w.Spec.Cluster}
		},
	}
}

func workspaceTypes(urlBase string) *resource[*tenancyv1alpha1.WorkspaceType] {
	type T = *tenancyv1alpha1.WorkspaceType
	return &resource[T]{
		version: tenancyv1alpha1.GroupVersion,
		plural:  "workspacetypes", singular: "workspacetype",
		categories: []string{"kcp"},

		new:     func() T { return &tenancyv1alpha1.WorkspaceType{} },
		newList: func() runtime.Object { return &tenancyv1alpha1.WorkspaceTypeList{} },

		validName:     workspaceTypeName,
		prepareCreate: func(ctx context.Context, t T) { showVirtualWorkspaces(ctx, t, urlBase) },
		prepareUpdate: func(ctx context.Context, t, _ T) { showVirtualWorkspaces(ctx, t, urlBase) },
		validate:      validateWorkspaceType,

		sameSpec:   func(a, b T) bool { return equality.Semantic.DeepEqual(a.Spec, b.Spec) },
		copySpec:   func(to, from T) { to.Spec = from.Spec },
		copyStatus: func(to, from T) { to.Status = from.Status },

		columns: []metav1.TableColumnDefinition{
			column("Extends", "string", "types that this one extends"),
			column("Default child", "string", "type of the workspaces in one of this type that name none"),
			column("Initializer", "boolean", "whether somebody has to initialize workspaces of this type"),
			column("Terminator", "boolean", "whether somebody has to clean up after workspaces of this type"),
		},
		cells: func(t T) []any {
			var extends []string
			for _, ref := range t.Spec.Extend.With {
				extends = append(extends, typeCell(ref))
			}
			child := ""
			if t.Spec.DefaultChildWorkspaceType != nil {
				child = typeCell(*t.Spec.DefaultChildWorkspaceType)
			}
			return []any{strings.Join(extends, ","), child, t.Spec.Initializer, t.Spec.Terminator}
		},
	}
}

// typeCell shows a reference as root:org:team, or team where it is to a type beside.
func typeCell(ref tenancyv1alpha1.WorkspaceTypeReference) string {
	if ref.Path == "" {
		return ref.Name
	}
	return ref.Path + ":" + ref.Name
}

func syncTargets() *resource[*workloadv1alpha1.SyncTarget] {
	type T = *workloadv1alpha1.SyncTarget
	return &resource[T]{
		version: workloadv1alpha1.GroupVersion,
		plural:  "synctargets", singular: "synctarget",
		shortNames: []string{"st"}, categories: []string{"kcp"},

		new:     func() T { return &workloadv1alpha1.SyncTarget{} },
		newList: func() runtime.Object { return &workloadv1alpha1.SyncTargetList{} },

		validName: validation.IsDNS1123Label,
		validate:  validateSyncTarget,
		validateCreate: func(ctx context.Context, t T) field.ErrorList {
			return append(validateTwin(ctx, t), validateAbandon(ctx, t, nil)...)
		},
		validateUpdate: func(ctx context.Context, t, old T) field.ErrorList {
			return append(validateTwin(ctx, t), validateAbandon(ctx, t, old)...)
		},

		sameSpec:   func(a, b T) bool { return equality.Semantic.DeepEqual(a.Spec, b.Spec) },
		copySpec:   func(to, from T) { to.Spec = from.Spec },
		copyStatus: func(to, from T) { to.Status = from.Status },

		columns: []metav1.TableColumnDefinition{
			column("Ready", "string", "whether the physical cluster answers"),
			column("Version", "string", "Kubernetes version of the physical cluster"),
			column("Nodes", "integer", "ready nodes of the physical cluster"),
			wide("Mirror", "string", "logical cluster that holds what the physical cluster should run"),
			column("Reason", "string", "why it is ready or not"),
		},
		cells: func(t T) []any {
			ready, reason := conditionCells(t.Status.Conditions, workloadv1alpha1.SyncTargetReady)
			if t.Spec.Unschedulable {
				ready += ",Cordoned"
			}
			return []any{ready, t.Status.Version, int64(t.Status.Nodes), t.Status.Mirror, reason}
		},
	}
}

func placements() *resource[*placementv1alpha1.Placement] {
	type T = *placementv1alpha1.Placement
	return &resource[T]{
		version: placementv1alpha1.GroupVersion,
		plural:  "placements", singular: "placement",
		shortNames: []string{"pl"}, categories: []string{"atoll"},

		new:     func() T { return &placementv1alpha1.Placement{} },
		newList: func() runtime.Object { return &placementv1alpha1.PlacementList{} },

		validName: validation.IsDNS1123Subdomain,
		validate:  validatePlacement,

		sameSpec:   func(a, b T) bool { return equality.Semantic.DeepEqual(a.Spec, b.Spec) },
		copySpec:   func(to, from T) { to.Spec = from.Spec },
		copyStatus: func(to, from T) { to.Status = from.Status },
		decided:    true,

		columns: []metav1.TableColumnDefinition{
			column("Namespace", "string", "namespace that is placed"),
			column("Object", "string", "object that is placed by itself; empty for the whole namespace"),
			column("Clusters", "string", "physical clusters, with ready of wanted replicas"),
			column("Ready", "string", "whether what was asked for can be met, and all of them run what they should"),
			column("Reason", "string", "why it is not placed as wished, or not ready"),
		},
		cells: placementCells,
	}
}

func placementPolicies() *resource[*placementv1alpha1.PlacementPolicy] {
	type T = *placementv1alpha1.PlacementPolicy
	return &resource[T]{
		version: placementv1alpha1.GroupVersion,
		plural:  "placementpolicies", singular: "placementpolicy",
		shortNames: []string{"plp"}, categories: []string{"atoll"},

		new:     func() T { return &placementv1alpha1.PlacementPolicy{} },
		newList: func() runtime.Object { return &placementv1alpha1.PlacementPolicyList{} },

		validName: validation.IsDNS1123Subdomain,
		validate:  validatePlacementPolicy,

		sameSpec: func(a, b T) bool { return equality.Semantic.DeepEqual(a.Spec, b.Spec) },

		columns: []metav1.TableColumnDefinition{
			column("Allow", "string", "clusters that may be used; empty allows all that policies above allow"),
			column("Default", "string", "clusters of a namespace that asks for nothing"),
		},
		cells: func(p T) []any {
			allow, def := "", ""
			if a := p.Spec.Allow; a != nil {
				allow = joined(strings.Join(a.Names, ","), metav1.FormatLabelSelector(a.Selector), a.Selector != nil)
			}
			if d := p.Spec.Default; d != nil {
				def = joined(d.Clusters, d.Selector, d.Selector != "")
			}
			return []any{allow, def}
		},
	}
}

// joined shows clusters by name and by selector as "east,west;tier=gold".
func joined(names, selector string, selected bool) string {
	switch {
	case !selected:
		return names
	case names == "":
		return selector
	}
	return names + ";" + selector
}

// placementCells say where, how much, ready and why. Clusters read "east 3/3,west 1/3": ready of wanted replicas; just
// the name before anything is known of a cluster, and "east 1/3 Draining" for one that is being left or refuses.
func placementCells(p *placementv1alpha1.Placement) []any {
	object := ""
	if o := p.Spec.Object; o != nil {
		object = o.Resource + "/" + o.Name
	}
	known, left := clustersOf(p)
	var clusters []string
	for _, c := range p.Spec.Clusters {
		if status, ok := known[c.Name]; ok {
			clusters = append(clusters, clusterCell(status))
		} else {
			clusters = append(clusters, c.Name)
		}
	}
	for _, c := range left {
		clusters = append(clusters, clusterCell(c))
	}
	placed, reason := conditionCells(p.Status.Conditions, placementv1alpha1.PlacementPlaced)
	shown := metav1.ConditionFalse
	if placed == string(metav1.ConditionTrue) {
		if lacks := lackOf(p); lacks != "" {
			reason = lacks
		} else {
			shown = metav1.ConditionTrue
		}
	}
	return []any{p.Spec.Namespace, object, strings.Join(clusters, ","), string(shown), reason}
}

// clustersOf returns what is known of the clusters that a Placement names, and those that are being left.
func clustersOf(p *placementv1alpha1.Placement) (known map[string]placementv1alpha1.PlacedClusterStatus, left []placementv1alpha1.PlacedClusterStatus) {
	known = map[string]placementv1alpha1.PlacedClusterStatus{}
	for _, c := range p.Status.Clusters {
		if slices.ContainsFunc(p.Spec.Clusters, func(named placementv1alpha1.PlacedCluster) bool { return named.Name == c.Name }) {
			known[c.Name] = c
		} else {
			left = append(left, c)
		}
	}
	return known, left
}

// lackOf says why a Placement that is as wished is not ready; "" if it is. It is ready if every cluster runs what it is to run in
// the end (the splitter calls none Ready before), no other has anything of it any more, and all that is said of the present
// decision. A cluster that refuses comes before those that only lack something, and what is to come before what is to go; but what does
// not come because it stays elsewhere stays.
func lackOf(p *placementv1alpha1.Placement) (lacks string) {
	known, left := clustersOf(p)
	if len(p.Spec.Clusters) == 0 {
		return placementv1alpha1.ReasonNowhere
	}
	for _, c := range p.Spec.Clusters {
		phase := placementv1alpha1.PhasePending
		if status, ok := known[c.Name]; ok {
			phase = status.Phase
		}
		if lacks == "" || phase == placementv1alpha1.PhaseRefused {
			lacks = lackCell(phase)
		}
	}
	stays := slices.ContainsFunc(left, func(c placementv1alpha1.PlacedClusterStatus) bool { return c.Phase == placementv1alpha1.PhaseStaying })
	switch {
	case stays && lacks == string(placementv1alpha1.PhasePending) && p.Status.ObservedGeneration == p.Generation:
		return string(placementv1alpha1.PhaseStaying) // which is why, and does not pass by itself
	case lacks != "":
		return lacks
	case p.Status.ObservedGeneration != p.Generation:
		return progressing
	case len(left) > 0:
		return string(left[0].Phase)
	}
	return ""
}

// progressing is the reason of what is on its way.
const progressing = "Progressing"

// lackCell says what a cluster in that phase lacks to be ready; "" if it is. Synced would read as if nothing were missing.
func lackCell(phase placementv1alpha1.PlacedClusterPhase) string {
	switch phase {
	case placementv1alpha1.PhaseReady:
		return ""
	case placementv1alpha1.PhaseSynced:
		return progressing
	}
	return string(phase)
}

func clusterCell(c placementv1alpha1.PlacedClusterStatus) string {
	cell := fmt.Sprintf("%s %d/%d", c.Name, c.ReadyReplicas, c.Replicas)
	switch c.Phase {
	case placementv1alpha1.PhaseRefused, placementv1alpha1.PhaseDraining, placementv1alpha1.PhaseDeleting, placementv1alpha1.PhaseStaying:
		cell += " " + string(c.Phase)
	}
	return cell
}
