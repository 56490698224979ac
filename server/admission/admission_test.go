package admission

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	lc "github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/apis/core"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/logicalcluster"
)

// warnings collects warnings.
type warnings []string

func (w *warnings) AddWarning(_, text string) { *w = append(*w, text) }

func in(cluster logicalcluster.Cluster) (context.Context, *warnings) {
	got := &warnings{}
	return warning.WithWarningRecorder(logicalcluster.WithCluster(context.Background(), cluster), got), got
}

var (
	alice   = &user.DefaultInfo{Name: "alice"}
	server  = &user.DefaultInfo{Name: user.APIServerUser}
	anySync = &user.DefaultInfo{Name: "syncer"}
)

// what describes a request.
type what struct {
	group, resource, kind, subresource string
	namespace, name                    string
	operation                          admission.Operation
	who                                user.Info
	object, old                        runtime.Object
	dryRun                             bool
}

func (w what) attributes() admission.Attributes {
	if w.who == nil {
		w.who = alice
	}
	return admission.NewAttributesRecord(w.object, w.old, schema.GroupVersionKind{Group: w.group, Version: "v1", Kind: w.kind}, w.namespace, w.name,
		schema.GroupVersionResource{Group: w.group, Version: "v1", Resource: w.resource}, w.subresource, w.operation, nil, w.dryRun, w.who)
}

// reads are Objects of which one namespace is read at a time.
type reads func(ctx context.Context, name string, cached bool) (runtime.Object, error)

func (r reads) Get(ctx context.Context, resource schema.GroupResource, namespace, name string, cached bool) (runtime.Object, error) {
	if resource != namespaces || namespace != "" {
		return nil, errors.New("not a namespace: " + resource.String())
	}
	return r(ctx, name, cached)
}

func (reads) List(context.Context, schema.GroupResource, string, bool) ([]runtime.Object, error) {
	return nil, errors.New("nothing is listed")
}

func TestLifecycle(t *testing.T) {
	shop := logicalcluster.Cluster{Name: "shop"}
	going := logicalcluster.Cluster{Name: "going"}
	mirror := logicalcluster.Cluster{Name: "east", Mirror: true}
	broken := errors.New("etcd is away")

	configMap := what{resource: "configmaps", kind: "ConfigMap", namespace: "live", name: "a", operation: admission.Create}
	namespace := what{resource: "namespaces", kind: "Namespace", namespace: "a", name: "a", operation: admission.Create}
	with := func(w what, change func(*what)) what { change(&w); return w }

	tests := map[string]struct {
		cluster  logicalcluster.Cluster
		what     what
		refused  string // "" for allowed, else a part of the message
		code     func(error) bool
		lookedUp []bool // cached, for each read of the namespace
		reason   string
	}{
		"create":                {cluster: shop, what: configMap, lookedUp: []bool{true}},
		"no namespace":          {cluster: shop, what: with(configMap, func(w *what) { w.namespace = "absent" }), refused: "not found", code: apierrors.IsNotFound, lookedUp: []bool{true, false}},
		"namespace just made":   {cluster: shop, what: with(configMap, func(w *what) { w.namespace = "fresh" }), lookedUp: []bool{true, false}, reason: "the cache may lag"},
		"terminating":           {cluster: shop, what: with(configMap, func(w *what) { w.namespace = "dying" }), refused: "being terminated", code: apierrors.IsForbidden, lookedUp: []bool{true}},
		"unreadable":            {cluster: shop, what: with(configMap, func(w *what) { w.namespace = "broken" }), refused: "etcd is away", lookedUp: []bool{true}, reason: "what cannot be known is not allowed"},
		"by the server":         {cluster: shop, what: with(configMap, func(w *what) { w.namespace, w.who = "dying", server }), refused: "being terminated", lookedUp: []bool{true}, reason: "its controllers too: the namespace would never end"},
		"token":                 {cluster: shop, what: with(configMap, func(w *what) { w.subresource = "token" }), lookedUp: []bool{true}},
		"token, no namespace":   {cluster: shop, what: with(configMap, func(w *what) { w.namespace, w.subresource = "absent", "token" }), refused: "not found", code: apierrors.IsNotFound, lookedUp: []bool{true, false}},
		"token, terminating":    {cluster: shop, what: with(configMap, func(w *what) { w.namespace, w.subresource = "dying", "token" }), refused: "being terminated", code: apierrors.IsForbidden, lookedUp: []bool{true}},
		"token of a mirror":     {cluster: mirror, what: with(configMap, func(w *what) { w.namespace, w.subresource = "dying", "token" }), reason: "what still runs in the physical cluster has tokens"},
		"token in it":           {cluster: going, what: with(configMap, func(w *what) { w.subresource = "token" }), lookedUp: []bool{true}, reason: "who empties it may need one"},
		"access review":         {cluster: shop, what: what{group: "authorization.k8s.io", resource: "localsubjectaccessreviews", kind: "LocalSubjectAccessReview", namespace: "dying", operation: admission.Create}},
		"new namespace":         {cluster: shop, what: namespace},
		"cluster-scoped":        {cluster: shop, what: what{group: "rbac.authorization.k8s.io", resource: "clusterroles", kind: "ClusterRole", name: "a", operation: admission.Create}},
		"workspace goes":        {cluster: going, what: configMap, refused: "workspace is being deleted", code: apierrors.IsForbidden},
		"namespace in it":       {cluster: going, what: namespace, refused: "workspace is being deleted"},
		"cluster-scoped in it":  {cluster: going, what: what{group: "rbac.authorization.k8s.io", resource: "clusterroles", kind: "ClusterRole", name: "a", operation: admission.Create}, refused: "workspace is being deleted"},
		"the server in it":      {cluster: going, what: with(configMap, func(w *what) { w.who = server }), lookedUp: []bool{true}, reason: "controllers finish what they do"},
		"review in it":          {cluster: going, what: what{group: "authorization.k8s.io", resource: "selfsubjectaccessreviews", kind: "SelfSubjectAccessReview", operation: admission.Create}},
		"whoami in it":          {cluster: going, what: what{group: "authentication.k8s.io", resource: "selfsubjectreviews", kind: "SelfSubjectReview", operation: admission.Create}},
		"delete in it":          {cluster: going, what: with(configMap, func(w *what) { w.operation = admission.Delete }), reason: "emptying it is what is wanted"},
		"delete":                {cluster: shop, what: with(configMap, func(w *what) { w.operation = admission.Delete })},
		"delete namespace":      {cluster: shop, what: with(namespace, func(w *what) { w.operation = admission.Delete })},
		"delete default":        {cluster: shop, what: with(namespace, func(w *what) { w.operation, w.name = admission.Delete, "default" }), refused: "may not be deleted", code: apierrors.IsForbidden},
		"delete kube-system":    {cluster: shop, what: with(namespace, func(w *what) { w.operation, w.name = admission.Delete, "kube-system" }), refused: "may not be deleted"},
		"delete kube-public":    {cluster: shop, what: with(namespace, func(w *what) { w.operation, w.name = admission.Delete, "kube-public" }), refused: "may not be deleted"},
		"delete a mirror's":     {cluster: mirror, what: with(namespace, func(w *what) { w.operation, w.name = admission.Delete, "default" }), reason: "a mirror's namespaces are leaves"},
		"something of the name": {cluster: shop, what: with(configMap, func(w *what) { w.operation, w.name = admission.Delete, "default" })},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var lookedUp []bool
			l := NewLifecycle(reads(func(ctx context.Context, name string, cached bool) (runtime.Object, error) {
				lookedUp = append(lookedUp, cached)
				if cluster, _ := logicalcluster.ClusterFrom(ctx); cluster != test.cluster {
					t.Errorf("namespace read in %q", cluster)
				}
				switch {
				case name == "broken":
					return nil, broken
				case name == "absent", name == "fresh" && cached:
					return nil, apierrors.NewNotFound(core.Resource("namespaces"), name)
				case name == "dying":
					return &core.Namespace{Status: core.NamespaceStatus{Phase: core.NamespaceTerminating}}, nil
				}
				return &core.Namespace{}, nil
			}), func(name lc.Name) bool { return name == "going" })
			if !l.Handles(test.what.operation) {
				t.Fatalf("does not handle %s", test.what.operation)
			}
			ctx, _ := in(test.cluster)
			err := l.Admit(ctx, test.what.attributes(), nil)
			if (err != nil) != (test.refused != "") || err != nil && !strings.Contains(err.Error(), test.refused) {
				t.Errorf("error %v, want %q: %s", err, test.refused, test.reason)
			}
			if err != nil && test.code != nil && !test.code(err) {
				t.Errorf("error %v is of another kind", err)
			}
			if diff := cmp.Diff(test.lookedUp, lookedUp); diff != "" {
				t.Errorf("reads of the namespace (-want +got): %s\n%s", test.reason, diff)
			}
		})
	}
	t.Run("no logical cluster", func(t *testing.T) {
		l := NewLifecycle(nil, nil)
		if err := l.Admit(context.Background(), configMap.attributes(), nil); !apierrors.IsInternalError(err) {
			t.Errorf("error %v, want an internal one: a forgotten path fails loudly", err)
		}
	})
	t.Run("cause", func(t *testing.T) {
		// Controllers recognise it, and do not try again.
		l := NewLifecycle(reads(func(context.Context, string, bool) (runtime.Object, error) {
			return &core.Namespace{Status: core.NamespaceStatus{Phase: core.NamespaceTerminating}}, nil
		}), func(lc.Name) bool { return false })
		ctx, _ := in(shop)
		if err := l.Admit(ctx, configMap.attributes(), nil); !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			t.Errorf("error %v has no cause %s", err, corev1.NamespaceTerminatingCause)
		}
	})
}

func TestNowhere(t *testing.T) {
	shop := logicalcluster.Cluster{Name: "shop"}
	wants := func(where string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"wants": where}}
	}
	deployment := what{group: "apps", resource: "deployments", kind: "Deployment", namespace: "ns", name: "a", operation: admission.Create,
		object: &apps.Deployment{ObjectMeta: wants("west")}}
	// What is in a path /namespaces/a has that namespace, a itself too.
	namespace := what{resource: "namespaces", kind: "Namespace", namespace: "a", name: "a", operation: admission.Update,
		object: &core.Namespace{ObjectMeta: wants("west")}, old: &core.Namespace{ObjectMeta: wants("east")}}
	workspace := what{group: "core.kcp.io", resource: "logicalclusters", kind: "LogicalCluster", name: "a", operation: admission.Update,
		object: &corev1alpha1.LogicalCluster{ObjectMeta: wants("west")}, old: &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}
	policy := what{group: "placement.atoll.dev", resource: "placementpolicies", kind: "PlacementPolicy", name: "a", operation: admission.Create,
		object: &placementv1alpha1.PlacementPolicy{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: placementv1alpha1.PlacementPolicySpec{
			Default: &placementv1alpha1.PlacementDefault{Clusters: "west"}}}}
	with := func(w what, change func(*what)) what { change(&w); return w }
	const problem = "no cluster"
	tests := map[string]struct {
		ctx    logicalcluster.Cluster
		what   what
		why    string
		asked  string // resource, namespace and name
		reason string
	}{
		"nowhere":     {ctx: shop, what: deployment, why: problem, asked: "deployments.apps ns/a"},
		"somewhere":   {ctx: shop, what: deployment, asked: "deployments.apps ns/a"},
		"update":      {ctx: shop, what: with(deployment, func(w *what) { w.operation = admission.Update }), why: problem, asked: "deployments.apps ns/a"},
		"status":      {ctx: shop, what: with(deployment, func(w *what) { w.subresource = "status" }), why: problem, reason: "nobody applies that"},
		"scale":       {ctx: shop, what: with(deployment, func(w *what) { w.subresource = "scale" }), why: problem, reason: "the object is a Scale"},
		"leaf":        {ctx: logicalcluster.Cluster{Name: "east", Mirror: true}, what: deployment, why: problem, reason: "a leaf is where it runs"},
		"other kind":  {ctx: shop, what: with(deployment, func(w *what) { w.resource = "replicasets" }), why: problem, reason: "it does not go down"},
		"other group": {ctx: shop, what: with(deployment, func(w *what) { w.group = "extensions" }), why: problem, reason: "it does not go down"},

		"namespace":      {ctx: shop, what: namespace, why: problem, asked: "namespaces /a"},
		"good namespace": {ctx: shop, what: namespace, asked: "namespaces /a"},
		"new namespace":  {ctx: shop, what: with(namespace, func(w *what) { w.operation, w.old = admission.Create, nil }), why: problem, asked: "namespaces /a"},
		"same wish":      {ctx: shop, what: with(namespace, func(w *what) { w.old = w.object }), why: problem, reason: "who writes a label is not who wished"},
		"finalize":       {ctx: shop, what: with(namespace, func(w *what) { w.subresource = "finalize" }), why: problem, reason: "nobody applies that"},
		"mirror's":       {ctx: logicalcluster.Cluster{Name: "east", Mirror: true}, what: namespace, why: problem, reason: "nothing is placed in a mirror"},
		"policy":         {ctx: shop, what: policy, why: problem, asked: "placementpolicies.placement.atoll.dev /a"},
		"no default":     {ctx: shop, what: with(policy, func(w *what) { w.object = &placementv1alpha1.PlacementPolicy{} }), why: problem, reason: "it wishes nothing"},
		"workspace":      {ctx: shop, what: workspace, why: problem, asked: "logicalclusters.core.kcp.io /a"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			asked := ""
			n := NewNowhere([]schema.GroupResource{{Group: "apps", Resource: "deployments"}}, func(cluster lc.Name, resource schema.GroupResource, namespace, name string, annotations map[string]string) string {
				asked = resource.String() + " " + namespace + "/" + name
				if cluster != "shop" || annotations["wants"] != "west" && annotations[placementv1alpha1.ClustersAnnotation] != "west" {
					t.Errorf("asked for %q %v", cluster, annotations)
				}
				return test.why
			})
			ctx, warned := in(test.ctx)
			if err := n.Validate(ctx, test.what.attributes(), nil); err != nil {
				t.Errorf("refused: %v", err)
			}
			var want warnings
			if test.asked != "" && test.why != "" {
				want = warnings{test.why}
			}
			if diff := cmp.Diff(want, *warned, cmpopts.EquateEmpty()); diff != "" || asked != test.asked {
				t.Errorf("asked for %q, want %q: %s; warnings (-want +got):\n%s", asked, test.asked, test.reason, diff)
			}
		})
	}
}

func TestInUse(t *testing.T) {
	shop := logicalcluster.Cluster{Name: "shop"}
	target := what{group: "workload.kcp.io", resource: "synctargets", kind: "SyncTarget", name: "east", operation: admission.Delete,
		old: &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "east", UID: "east-uid"}}}
	with := func(w what, change func(*what)) what { change(&w); return w }
	lost := func(w *what) {
		t := w.old.(*workloadv1alpha1.SyncTarget).DeepCopy()
		t.Status.Mirror, t.Status.ClusterUID = "1x2y3z4a5b6c7d8e", "u1"
		t.Status.Conditions = []metav1.Condition{{Type: workloadv1alpha1.SyncTargetReady, Status: metav1.ConditionUnknown, Reason: "Unreachable"}}
		w.old = t
	}
	for name, test := range map[string]struct {
		ctx    logicalcluster.Cluster
		what   what
		placed [2]int
		warned string
		reason string
	}{
		"in use":     {ctx: shop, what: target, placed: [2]int{3, 2}, warned: `cluster "east" is in use by 3 placements of 2 workspaces.`},
		"by one":     {ctx: shop, what: target, placed: [2]int{1, 1}, warned: `by 1 placement of 1 workspace. `},
		"with all":   {ctx: shop, what: with(target, func(w *what) { w.name = "" }), placed: [2]int{3, 2}, warned: `"atoll cluster remove east"`, reason: "a collection is deleted"},
		"unused":     {ctx: shop, what: target, reason: "nothing is there"},
		"lost":       {ctx: shop, what: with(target, lost), warned: "workload.atoll.dev/confirm=abandon", reason: "what has been moved cannot leave it"},
		"lost, runs": {ctx: shop, what: with(target, lost), placed: [2]int{1, 1}, warned: "in use by 1 placement", reason: "that is to be moved first"},
		"twin":       {ctx: logicalcluster.Cluster{Name: "east", Mirror: true}, what: target, placed: [2]int{3, 2}, reason: "nobody asks for that"},
		"other kind": {ctx: shop, what: with(target, func(w *what) { w.resource = "placements" }), placed: [2]int{3, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, warned := in(test.ctx)
			u := NewInUse(func(target types.UID) (placements, workspaces int) {
				if target != "east-uid" {
					t.Errorf("asked for %q", target)
				}
				return test.placed[0], test.placed[1]
			})
			if err := u.Validate(ctx, test.what.attributes(), nil); err != nil {
				t.Errorf("refused: %v", err)
			}
			if got := strings.Join(*warned, "\n"); (got == "") != (test.warned == "") || !strings.Contains(got, test.warned) {
				t.Errorf("%s: warned %q, want %q", test.reason, got, test.warned)
			}
		})
	}
}

// signing are Objects of which so many are CertificateSigningRequests.
type signing int

func (signing) Get(context.Context, schema.GroupResource, string, string, bool) (runtime.Object, error) {
	return nil, errAway
}

func (s signing) List(_ context.Context, resource schema.GroupResource, _ string, _ bool) ([]runtime.Object, error) {
	if resource != signingRequests {
		return nil, errAway
	}
	return make([]runtime.Object, s), nil
}

func TestMirror(t *testing.T) {
	before := func() *apps.Deployment {
		return &apps.Deployment{
			ObjectMeta: metav1.ObjectMeta{
				Name: "leaf", Namespace: "ns", ResourceVersion: "1", Generation: 1,
				Labels:      map[string]string{"workload.atoll.dev/workspace": "shop"},
				Annotations: map[string]string{"workload.atoll.dev/root": "x"},
				Finalizers:  []string{"atoll.dev/other", "orphan"},
			},
			Spec: apps.DeploymentSpec{Replicas: 3},
		}
	}
	request := func(signer string) runtime.Object {
		return &certificates.CertificateSigningRequest{Spec: certificates.CertificateSigningRequestSpec{SignerName: signer}}
	}
	leaf := what{group: "apps", resource: "deployments", kind: "Deployment", namespace: "ns", name: "leaf", operation: admission.Update, who: anySync}
	tests := map[string]struct {
		what   what
		change func(*apps.Deployment)
		ok     bool
		reason string
		there  int // CertificateSigningRequests
	}{
		"nothing":   {what: leaf, change: func(*apps.Deployment) {}, ok: true},
		"finalizer": {what: leaf, change: func(d *apps.Deployment) { d.Finalizers = append(d.Finalizers, "workload.atoll.dev/syncer") }, ok: true},
		"pods not shown": {what: leaf, change: func(d *apps.Deployment) {
			metav1.SetMetaDataAnnotation(&d.ObjectMeta, workloadv1alpha1.UnshownAnnotation, "{}")
		}, ok: true, reason: "its word"},
		"collector's":          {what: leaf, change: func(d *apps.Deployment) { d.Finalizers = d.Finalizers[:1] }, ok: true, reason: "a mirror has no collector"},
		"add collector's":      {what: leaf, change: func(d *apps.Deployment) { d.Finalizers = append(d.Finalizers, "foregroundDeletion") }, reason: "decided above"},
		"another's finalizer":  {what: leaf, change: func(d *apps.Deployment) { d.Finalizers = d.Finalizers[1:] }, reason: "another waits for something"},
		"applied":              {what: leaf, change: func(d *apps.Deployment) { d.Annotations["workload.atoll.dev/applied"] = "x" }, ok: true},
		"refused":              {what: leaf, change: func(d *apps.Deployment) { d.Annotations["workload.atoll.dev/refused"] = "x" }, ok: true},
		"another annotation":   {what: leaf, change: func(d *apps.Deployment) { d.Annotations["workload.atoll.dev/draining"] = "x" }, reason: "decided above"},
		"without annotations":  {what: leaf, change: func(d *apps.Deployment) { d.Annotations = nil }, reason: "takes the root away"},
		"label":                {what: leaf, change: func(d *apps.Deployment) { d.Labels["a"] = "b" }, reason: "decided above"},
		"spec":                 {what: leaf, change: func(d *apps.Deployment) { d.Spec.Replicas = 9 }, reason: "decided above"},
		"status aside":         {what: leaf, change: func(d *apps.Deployment) { d.Status.Replicas = 9 }, reason: "status has its own address"},
		"counted by us":        {what: leaf, change: func(d *apps.Deployment) { d.ResourceVersion, d.ManagedFields = "2", []metav1.ManagedFieldsEntry{{}} }, ok: true},
		"spec by the server":   {what: func() what { w := leaf; w.who = server; return w }(), change: func(d *apps.Deployment) { d.Spec.Replicas = 9 }, ok: true, reason: "the splitter decides"},
		"status":               {what: func() what { w := leaf; w.subresource = "status"; return w }(), change: func(d *apps.Deployment) { d.Status.Replicas = 9 }, ok: true},
		"annotation by status": {what: func() what { w := leaf; w.subresource = "status"; return w }(), change: func(d *apps.Deployment) { d.Annotations["a"] = "b" }, reason: "status takes metadata too"},
		"finalizer by status":  {what: func() what { w := leaf; w.subresource = "status"; return w }(), change: func(d *apps.Deployment) { d.Finalizers = nil }, reason: "status takes metadata too"},
		"create":               {what: func() what { w := leaf; w.operation = admission.Create; return w }(), change: func(*apps.Deployment) {}, reason: "leaves come from above"},
		"certificate":          {what: what{group: "certificates.k8s.io", resource: "certificatesigningrequests", operation: admission.Create, who: anySync, object: request("workload.atoll.dev/syncer")}, change: func(*apps.Deployment) {}, ok: true},
		"another certificate":  {what: what{group: "certificates.k8s.io", resource: "certificatesigningrequests", operation: admission.Create, who: anySync, object: request("kubernetes.io/kube-apiserver-client")}, change: func(*apps.Deployment) {}, reason: "of a user, perhaps"},
		"its last request":     {what: what{group: "certificates.k8s.io", resource: "certificatesigningrequests", operation: admission.Create, who: anySync, object: request("workload.atoll.dev/syncer")}, change: func(*apps.Deployment) {}, there: 99, ok: true},
		"requests for ever":    {what: what{group: "certificates.k8s.io", resource: "certificatesigningrequests", operation: admission.Create, who: anySync, object: request("workload.atoll.dev/syncer")}, change: func(*apps.Deployment) {}, there: 100, reason: "a mirror has no limits"},
		"heartbeat":            {what: what{group: "coordination.k8s.io", resource: "leases", name: "heartbeat", operation: admission.Create, who: anySync}, change: func(*apps.Deployment) {}, ok: true},
		"token":                {what: what{resource: "serviceaccounts", subresource: "token", name: "bot", operation: admission.Create, who: anySync}, change: func(*apps.Deployment) {}, ok: true, reason: "of what it runs"},
		"ServiceAccount":       {what: what{resource: "serviceaccounts", name: "bot", operation: admission.Create, who: anySync}, change: func(*apps.Deployment) {}, reason: "leaves come from above"},
		"another Lease":        {what: what{group: "coordination.k8s.io", resource: "leases", name: "more", operation: admission.Create, who: anySync}, change: func(*apps.Deployment) {}, reason: "a mirror has no limits"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := NewMirror(signing(test.there), func(who user.Info) bool { return who == anySync })
			w, after := test.what, before()
			test.change(after)
			if w.object == nil {
				w.object = after
			}
			if w.operation == admission.Update {
				w.old = before()
			}
			ctx, _ := in(logicalcluster.Cluster{Name: "east", Mirror: true})
			err := m.Validate(ctx, w.attributes(), nil)
			if (err == nil) != test.ok || err != nil && !apierrors.IsForbidden(err) {
				t.Errorf("error %v, want allowed %v: %s", err, test.ok, test.reason)
			}
			if w.old != nil && !cmp.Equal(w.old, runtime.Object(before())) {
				t.Error("the stored object changed")
			}
		})
	}
}
