package builtin

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	kcplogicalcluster "github.com/kcp-dev/logicalcluster/v3"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/audit"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	clocktesting "k8s.io/utils/clock/testing"

	"k8s.io/kubernetes/pkg/api/legacyscheme"
	appsapi "k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/authentication"
	api "k8s.io/kubernetes/pkg/apis/core"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/internal/logicalcluster"
)

// TestAudienceAsked: what a kubelet of one Secret for all pods asks for, and nothing else.
func TestAudienceAsked(t *testing.T) {
	for name, tc := range map[string]struct {
		asked    authentication.TokenRequestSpec
		audience string
		fails    bool
	}{
		"API":           {authentication.TokenRequestSpec{ExpirationSeconds: 3600}, "", false},
		"API, by none":  {authentication.TokenRequestSpec{Audiences: []string{""}}, "", false},
		"audience":      {authentication.TokenRequestSpec{Audiences: []string{"vault"}, ExpirationSeconds: 600}, "vault", false},
		"two audiences": {authentication.TokenRequestSpec{Audiences: []string{"vault", "sts"}}, "", true},
		"the same ones": {authentication.TokenRequestSpec{Audiences: []string{"vault", "vault"}}, "", true},
		"longer":        {authentication.TokenRequestSpec{ExpirationSeconds: 3601}, "", true},
		"bound":         {authentication.TokenRequestSpec{BoundObjectRef: &authentication.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "p"}}, "", true},
	} {
		audience, err := audienceAsked(&tc.asked)
		if audience != tc.audience || (err != nil) != tc.fails {
			t.Errorf("%s: %q, %v, want %q and that it is refused: %v", name, audience, err, tc.audience, tc.fails)
		}
	}
}

// stored is a mirror and a workspace: what etcd has of them, what their watch caches have, and what cannot be read.
type stored struct {
	now, cached []runtime.Object
	broken      map[string]error // by resource, or name
	lists       int
}

func (s *stored) Get(_ context.Context, resource schema.GroupResource, namespace, name string, cached bool) (runtime.Object, error) {
	for _, o := range s.of(resource, namespace, cached) {
		if m, _ := meta.Accessor(o); m.GetName() == name {
			return o, s.broken[name]
		}
	}
	return nil, apierrors.NewNotFound(resource, name)
}

func (s *stored) List(_ context.Context, resource schema.GroupResource, namespace string, cached bool) ([]runtime.Object, error) {
	s.lists++
	return s.of(resource, namespace, cached), s.broken[resource.Resource]
}

func (s *stored) of(resource schema.GroupResource, namespace string, cached bool) (all []runtime.Object) {
	from := s.now
	if cached {
		from = s.cached
	}
	for _, o := range from {
		gvks, _, _ := legacyscheme.Scheme.ObjectKinds(o)
		plural, _ := meta.UnsafeGuessKindToResource(gvks[0])
		if m, _ := meta.Accessor(o); plural.GroupResource() == resource && m.GetNamespace() == namespace {
			all = append(all, o)
		}
	}
	return all
}

// spaces are the mirror's namespace, and the workspace's that it is for.
func spaces() []runtime.Object {
	return []runtime.Object{
		&api.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: "team-1a", Labels: map[string]string{workloadv1alpha1.WorkspaceLabel: "shop"}, Annotations: map[string]string{workloadv1alpha1.RootAnnotation: "/team"},
		}},
		&api.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}},
	}
}

// wanting is a Deployment, and its leaf whose pods have the token of an account.
func wanting(name, account string) (root, leaf *appsapi.Deployment) {
	root = &appsapi.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-of-" + name)}}
	leaf = &appsapi.Deployment{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team-1a", Name: name, Finalizers: []string{workloadv1alpha1.SyncerFinalizer}, Annotations: map[string]string{workloadv1alpha1.RootAnnotation: "team/" + name, workloadv1alpha1.APIAccessAnnotation: "Mounted"},
		Labels: map[string]string{workloadv1alpha1.WorkspaceLabel: "shop", workloadv1alpha1.RootUIDLabel: "uid-of-" + name},
	}}
	leaf.Spec.Template.Spec = api.PodSpec{ServiceAccountName: account, Volumes: []api.Volume{{Name: "v", VolumeSource: api.VolumeSource{
		Projected: &api.ProjectedVolumeSource{Sources: []api.VolumeProjection{{Secret: &api.SecretProjection{
			LocalObjectReference: api.LocalObjectReference{Name: kinds.TokenSecret(cmp.Or(account, kinds.DefaultAccount))}, Items: []api.KeyToPath{{Key: kinds.TokenKey, Path: "token"}},
		}}}},
	}}}}
	return root, leaf
}

// boundPod is the row of one that is bound to a physical cluster, and has the token of pilot.
func boundPod(mirror, mirrorNamespace string) *api.Pod {
	return &api.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: "op", Labels: map[string]string{workloadv1alpha1.MirrorLabel: mirror}, Finalizers: []string{workloadv1alpha1.SyncerFinalizer},
			Annotations: map[string]string{workloadv1alpha1.MirrorNamespaceAnnotation: mirrorNamespace, workloadv1alpha1.APIAccessAnnotation: "Projected"},
		},
		Spec: api.PodSpec{ServiceAccountName: "pilot", Volumes: []api.Volume{{Name: "v", VolumeSource: api.VolumeSource{
			Projected: &api.ProjectedVolumeSource{Sources: []api.VolumeProjection{{ServiceAccountToken: &api.ServiceAccountTokenProjection{Path: "token"}}}},
		}}}},
	}
}

var noon = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

func requestsOver(s *stored) tokenRequests {
	clk := clocktesting.NewFakeClock(noon)
	return tokenRequests{shown: shownPods{objects: s}, pace: newTokenPace(clk), clock: clk}
}

// TestIsWanted: what a leaf names whose root is there is wanted, by what is stored now.
func TestIsWanted(t *testing.T) {
	type deployment = *appsapi.Deployment
	inMirror := logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: "east", Mirror: true})
	at := &space{mirror: inMirror, cluster: "east", namespace: "team-1a", workspace: "shop", workspaceNamespace: "team"}
	down := errors.New("etcdserver: no leader")
	for name, tc := range map[string]struct {
		reason string
		asks   string
		change func(s *stored, namespace *api.Namespace, root, leaf deployment)
		want   bool
		says   string
	}{
		"named":           {"", "robot", func(*stored, *api.Namespace, deployment, deployment) {}, true, ""},
		"another account": {"", "pilot", func(*stored, *api.Namespace, deployment, deployment) {}, false, ""},
		"default": {"of pods that name none", "default", func(_ *stored, _ *api.Namespace, _, leaf deployment) {
			_, ofDefault := wanting("web", "")
			leaf.Spec = ofDefault.Spec
		}, true, ""},
		"gone": {"a watch cache that is behind still has it", "robot", func(s *stored, _ *api.Namespace, _, _ deployment) { s.cached, s.now = s.now, spaces() }, false, ""},
		"another's leaf": {"", "robot", func(_ *stored, _ *api.Namespace, _, leaf deployment) {
			leaf.Labels[workloadv1alpha1.WorkspaceLabel] = "bank"
		}, false, ""},
		"of another namespace": {"", "robot", func(_ *stored, _ *api.Namespace, _, leaf deployment) {
			leaf.Annotations[workloadv1alpha1.RootAnnotation] = "team2/web"
		}, false, ""},
		"made anew":       {"so may the account of that name be", "robot", func(_ *stored, _ *api.Namespace, root, _ deployment) { root.UID = "another" }, false, ""},
		"root gone":       {"the mirror was not told yet", "robot", func(_ *stored, _ *api.Namespace, root, _ deployment) { root.Name = "other" }, false, ""},
		"namespace going": {"so is the account", "robot", func(_ *stored, n *api.Namespace, _, _ deployment) { n.DeletionTimestamp = &metav1.Time{Time: noon} }, false, ""},
		"namespace gone":  {"so is the account", "robot", func(_ *stored, n *api.Namespace, _, _ deployment) { n.Name = "other" }, false, ""},
		"rendered before": {"nothing was rendered with a token then", "robot", func(_ *stored, _ *api.Namespace, _, leaf deployment) {
			delete(leaf.Annotations, workloadv1alpha1.APIAccessAnnotation)
		}, false, ""},
		"leaf going": {"its pods have their time", "robot", func(_ *stored, _ *api.Namespace, _, leaf deployment) {
			leaf.DeletionTimestamp = &metav1.Time{Time: noon.Add(-29 * time.Second)}
		}, true, ""},
		"leaf's pods gone": {"however long it stays", "robot", func(_ *stored, _ *api.Namespace, _, leaf deployment) {
			leaf.DeletionTimestamp = &metav1.Time{Time: noon.Add(-30 * time.Second)}
		}, false, ""},

		"bound pod": {"as its mirror shows it", "pilot", func(s *stored, _ *api.Namespace, _, _ deployment) { s.now = append(s.now, boundPod("east", "team-1a")) }, true, ""},
		"bound pod of another cluster": {"it runs there", "pilot", func(s *stored, _ *api.Namespace, _, _ deployment) {
			s.now = append(s.now, boundPod("west", "team-1a"))
		}, false, ""},
		"bound pod of another namespace": {"of the mirror", "pilot", func(s *stored, _ *api.Namespace, _, _ deployment) {
			s.now = append(s.now, boundPod("east", "team-1b"))
		}, false, ""},
		"shown pod": {"its syncer wrote it", "pilot", func(s *stored, _ *api.Namespace, _, _ deployment) {
			pod := boundPod("east", "team-1a")
			pod.Finalizers = nil
			s.now = append(s.now, pod)
		}, false, ""},

		// What cannot be read is told where nothing else names it.
		"another kind is not read": {"", "robot", func(s *stored, _ *api.Namespace, root, leaf deployment) {
			s.broken = map[string]error{"deployments": down}
			s.now = append(s.now, &appsapi.StatefulSet{ObjectMeta: root.ObjectMeta}, &appsapi.StatefulSet{ObjectMeta: leaf.ObjectMeta, Spec: appsapi.StatefulSetSpec{Template: leaf.Spec.Template}})
		}, true, ""},
		"another root is not read": {"", "robot", func(s *stored, _ *api.Namespace, _, _ deployment) {
			root, leaf := wanting("first", "robot")
			s.now = slices.Concat([]runtime.Object{root, leaf}, s.now)
			s.broken = map[string]error{"first": down}
		}, true, ""},
		"nothing is read": {"", "robot", func(s *stored, _ *api.Namespace, _, _ deployment) {
			s.broken = map[string]error{"deployments": down, "jobs": errors.New("too many requests")}
		}, false, down.Error() + "\ntoo many requests"},
		"its root is not read": {"", "robot", func(s *stored, _ *api.Namespace, _, _ deployment) { s.broken = map[string]error{"web": down} }, false, down.Error()},
	} {
		root, leaf := wanting("web", "robot")
		s := &stored{now: append(spaces(), root, leaf)}
		tc.change(s, s.now[1].(*api.Namespace), root, leaf)
		before := leaf.DeepCopy()
		got, err := requestsOver(s).isWanted(at, kinds.Token{Account: tc.asks})
		if got != tc.want || (err != nil) != (tc.says != "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, %v, want %v and %q: %s", name, got, err, tc.want, tc.says, tc.reason)
		}
		if !apiequality.Semantic.DeepEqual(before, leaf) {
			t.Errorf("%s: what the watch cache has was changed", name)
		}
	}
}

// TestTokensForPodsInOrder: who is not admitted asks for nothing, who asks too much is told so before much is read, and the audit log says where.
func TestTokensForPodsInOrder(t *testing.T) {
	s := &stored{now: spaces()}
	requests := requestsOver(s)
	clk := clocktesting.NewFakeClock(noon)
	requests.pace = &tokenPace{mirrors: newPace(clk, pacedMirrors, tokensPerSecond, 2), workspaces: newPace(clk, pacedWorkspaces, workspaceTokensPerSecond, burstOfWorkspaceTokens)}
	ctx := audit.WithAuditContext(genericapirequest.WithNamespace(logicalcluster.WithCluster(t.Context(), logicalcluster.Cluster{Name: "east", Mirror: true}), "team-1a"))
	ask := func(admitted error) (lists int, err error) {
		before := s.lists
		_, err = requests.createForPods(ctx, "robot", &authentication.TokenRequest{}, func(context.Context, runtime.Object) error { return admitted })
		return s.lists - before, err
	}
	denied := errors.New("not admitted")
	if lists, err := ask(denied); !errors.Is(err, denied) || lists > 0 {
		t.Errorf("%v after %d lists, want what admission says before anything is read", err, lists)
	}
	audited := audit.AuditContextFrom(ctx)
	if said := audited.GetEventAnnotations(); len(said) > 0 {
		t.Errorf("the audit log says %v of what was not admitted", said)
	}
	for range 2 {
		if lists, err := ask(nil); !apierrors.IsForbidden(err) || lists == 0 {
			t.Errorf("%v after %d lists, want it looked for", err, lists)
		}
	}
	for key, want := range map[string]string{workloadv1alpha1.WorkspaceLabel: "shop", workloadv1alpha1.RootAnnotation: "/team"} {
		if got, _ := audited.GetEventAnnotation(key); got != want {
			t.Errorf("the audit log says %s: %q, want %q", key, got, want)
		}
	}
	if lists, err := ask(nil); !apierrors.IsTooManyRequests(err) || lists > 0 {
		t.Errorf("%v after %d lists, want a third refused at once", err, lists)
	}
	clk.Step(time.Second)
	if _, err := ask(nil); !apierrors.IsForbidden(err) {
		t.Errorf("%v a second later, want it looked for", err)
	}
}

// TestTokenPace: the tokens of one workspace take nothing from those of others in the same cluster.
func TestTokenPace(t *testing.T) {
	p := newTokenPace(clocktesting.NewFakeClock(noon))
	take := func(cluster, workspace kcplogicalcluster.Name) bool {
		return p.take(&space{cluster: cluster, workspace: workspace})
	}
	for range burstOfWorkspaceTokens {
		if !take("east", "flooding") {
			t.Fatal("it has not what it may have at once")
		}
	}
	for range burstOfTokens {
		if take("east", "flooding") {
			t.Fatal("it has more than that")
		}
	}
	if !take("east", "quiet") || !take("west", "flooding") {
		t.Error("others in the cluster, or itself in another, wait for it")
	}
}

// TestPodSpec: there is one of each kind that makes pods, or nobody would get their tokens.
func TestPodSpec(t *testing.T) {
	for _, kind := range kinds.All {
		internal, err := legacyscheme.Scheme.New(kind.GVK.GroupKind().WithVersion(runtime.APIVersionInternal))
		if err != nil {
			t.Fatal(err)
		}
		if got := podSpec(internal) != nil; got != kind.MakesPods() {
			t.Errorf("%s: it has one: %v, want %v", kind.GVK.Kind, got, kind.MakesPods())
		}
	}
}
