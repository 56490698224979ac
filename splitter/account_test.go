package splitter

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// TestWithAccount: pods have what admission would give them by their account when their template is rendered first, for as long as it is theirs.
func TestWithAccount(t *testing.T) {
	account := func(automount *bool, pulls ...string) *corev1.ServiceAccount {
		return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "default"}, ImagePullSecrets: references(pulls), AutomountServiceAccountToken: automount}
	}
	type pods = corev1.PodSpec
	own := func(change func(*pods)) pods {
		spec := pods{Containers: []corev1.Container{{Name: "web"}}}
		change(&spec)
		return spec
	}
	as := func(spec pods, replicas int32) *appsv1.Deployment {
		return &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "web", UID: "root", Generation: int64(replicas) + 1, Annotations: map[string]string{lcctx.Annotation: "shop"}},
			Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Template: corev1.PodTemplateSpec{Spec: spec}},
		}
	}
	k, _ := kinds.ByKind("Deployment")
	leaf := func(spec pods, access kinds.APIAccess, pulls ...string) ctrlclient.Object {
		root := as(spec, 7)
		down := given(k, root, gift{references(pulls), access, kinds.TemplateDigest(&root.Spec.Template)})
		made, _, err := render(k, down, k.Content(down), "front-1", false)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	before := func(leaf ctrlclient.Object) ctrlclient.Object {
		kinds.SetAnnotation(leaf, workloadv1alpha1.TemplateAnnotation, "")
		return leaf
	}
	sameGeneration := func(leaf ctrlclient.Object) ctrlclient.Object {
		annotations := leaf.GetAnnotations()
		annotations[workloadv1alpha1.RootGenerationAnnotation] = "3"
		leaf.SetAnnotations(annotations)
		return leaf
	}
	plain := own(func(*pods) {})
	changed := own(func(s *pods) { s.Hostname = "web" })
	no := ptr.To(false)
	saysNo := own(func(s *pods) { s.AutomountServiceAccountToken = no })
	saysYes := own(func(s *pods) { s.AutomountServiceAccountToken = ptr.To(true) })
	mine := own(func(s *pods) { s.ImagePullSecrets = references([]string{"mine"}) })
	cases := map[string]struct {
		reason  string
		account *corev1.ServiceAccount // nil: there is none
		pods    pods
		leaves  []ctrlclient.Object
		pulls   []string
		access  kinds.APIAccess
		lacks   bool
	}{
		"new":                        {"as admission would", account(nil), plain, nil, nil, kinds.MountedAPIAccess, false},
		"account says no":            {"as admission would not", account(no), plain, nil, nil, kinds.ProjectedAPIAccess, false},
		"pods say no":                {"whatever the account says", account(ptr.To(true)), own(func(s *pods) { s.AutomountServiceAccountToken = no }), nil, nil, kinds.ProjectedAPIAccess, false},
		"pods say yes":               {"whatever the account says", account(no), own(func(s *pods) { s.AutomountServiceAccountToken = ptr.To(true) }), nil, nil, kinds.MountedAPIAccess, false},
		"no account":                 {"every namespace has that one, in a moment", nil, plain, nil, nil, kinds.MountedAPIAccess, false},
		"another account":            {"that is the one which is not there", account(nil), own(func(s *pods) { s.ServiceAccountName = "robot" }), nil, nil, kinds.MountedAPIAccess, true},
		"account deleted":            {"what is there stays as it is", nil, plain, []ctrlclient.Object{leaf(plain, kinds.ProjectedAPIAccess)}, nil, kinds.ProjectedAPIAccess, false},
		"before":                     {"a version that gives more rolls nothing out", account(nil), plain, []ctrlclient.Object{leaf(plain, kinds.NoAPIAccess)}, nil, kinds.NoAPIAccess, false},
		"account changed":            {"nor does who changes the account", account(no), plain, []ctrlclient.Object{leaf(plain, kinds.MountedAPIAccess)}, nil, kinds.MountedAPIAccess, false},
		"template changed":           {"the next template has it", account(no), changed, []ctrlclient.Object{leaf(plain, kinds.MountedAPIAccess)}, nil, kinds.ProjectedAPIAccess, false},
		"template changed of before": {"the next template has it", account(nil), changed, []ctrlclient.Object{leaf(plain, kinds.NoAPIAccess)}, nil, kinds.MountedAPIAccess, false},
		"rolling":                    {"the template of one cluster is that of all", account(no), changed, []ctrlclient.Object{leaf(plain, kinds.NoAPIAccess), leaf(changed, kinds.MountedAPIAccess)}, nil, kinds.MountedAPIAccess, false},
		"pods say no now":            {"it is another template, though it renders alike", account(nil), saysNo, []ctrlclient.Object{leaf(plain, kinds.MountedAPIAccess)}, nil, kinds.ProjectedAPIAccess, false},
		"pods say yes now":           {"it is another template, though it renders alike", account(no), saysYes, []ctrlclient.Object{leaf(plain, kinds.ProjectedAPIAccess)}, nil, kinds.MountedAPIAccess, false},
		"pulls taken away":           {"they were of the template, and not of the account", account(nil, "a"), plain, []ctrlclient.Object{leaf(mine, kinds.MountedAPIAccess, "mine")}, []string{"a"}, kinds.MountedAPIAccess, false},
		"of before, and scaled":      {"a version that gives more rolls nothing out", account(no, "a"), plain, []ctrlclient.Object{before(leaf(plain, kinds.NoAPIAccess, "old"))}, []string{"old"}, kinds.NoAPIAccess, false},
		"of before, and changed":     {"the next template has it", account(no, "a"), changed, []ctrlclient.Object{before(leaf(plain, kinds.NoAPIAccess, "old"))}, []string{"a"}, kinds.ProjectedAPIAccess, false},
		"of another version":         {"defaults differ, and the generation does not", account(no, "a"), plain, []ctrlclient.Object{sameGeneration(leaf(changed, kinds.MountedAPIAccess, "old"))}, []string{"old"}, kinds.MountedAPIAccess, false},
		"another root's": {"it tells nothing of this one", account(no), plain, []ctrlclient.Object{func() ctrlclient.Object {
			of := leaf(plain, kinds.MountedAPIAccess)
			of.SetLabels(map[string]string{workloadv1alpha1.RootUIDLabel: "earlier"})
			return of
		}()}, nil, kinds.ProjectedAPIAccess, false},

		"pulls":                  {"as admission would", account(nil, "a", "b"), plain, nil, []string{"a", "b"}, kinds.MountedAPIAccess, false},
		"pulls of default":       {"the same account", account(nil, "a"), own(func(s *pods) { s.ServiceAccountName = "default" }), nil, []string{"a"}, kinds.MountedAPIAccess, false},
		"pulls of its own":       {"admission leaves pods with Secrets of their own alone", account(nil, "a"), own(func(s *pods) { s.ImagePullSecrets = references([]string{"mine"}) }), nil, []string{"mine"}, kinds.MountedAPIAccess, false},
		"pulls as rendered":      {"a change of the account rolls out nothing", account(nil, "new"), plain, []ctrlclient.Object{leaf(changed, kinds.MountedAPIAccess), leaf(plain, kinds.MountedAPIAccess, "old")}, []string{"old"}, kinds.MountedAPIAccess, false},
		"none as rendered":       {"nor does one that it did not have", account(nil, "new"), plain, []ctrlclient.Object{leaf(plain, kinds.NoAPIAccess)}, nil, kinds.NoAPIAccess, false},
		"pulls of next template": {"the next template has it", account(nil, "new"), changed, []ctrlclient.Object{leaf(plain, kinds.MountedAPIAccess, "old")}, []string{"new"}, kinds.MountedAPIAccess, false},
		"tokens for pulls":       {"they are no Secrets of its own", account(nil, "atoll-token-robot"), plain, nil, nil, kinds.MountedAPIAccess, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			builder := fake.NewClientBuilder().WithScheme(client.Scheme)
			if tc.account != nil {
				builder.WithObjects(tc.account)
			}
			c := &Controller{clients: &client.Clients{Objects: builder.Build()}}
			root := as(tc.pods, 2)
			unchanged := root.DeepCopy()
			got, lacks, err := c.withAccount(t.Context(), root, tc.leaves)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(references(tc.pulls), podsOf(got).Spec.ImagePullSecrets, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s: pull Secrets (-want +got):\n%s", tc.reason, diff)
			}
			if access := kinds.APIAccessOf(got); access != tc.access || (lacks != nil) != tc.lacks {
				t.Errorf("access %q, lacks %v, want %q and that it lacks something: %v: %s", access, lacks, tc.access, tc.lacks, tc.reason)
			}
			if of := got.GetAnnotations()[workloadv1alpha1.TemplateAnnotation]; of != kinds.TemplateDigest(&root.Spec.Template) {
				t.Errorf("it says that it is of template %q: %s", of, tc.reason)
			}
			if lacks != nil && refusedByHub(lacks).Reason != "NoServiceAccount" {
				t.Errorf("it is told as %+v", refusedByHub(lacks))
			}
			if diff := cmp.Diff(unchanged, root); diff != "" {
				t.Errorf("the informer's object was changed:\n%s", diff)
			}
		})
	}
}

// TestJobKeepsItsPods: the template of what is done once does not change, unless it is suspended, whatever it would be rendered to now.
func TestJobKeepsItsPods(t *testing.T) {
	root := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "once", UID: "root", Annotations: map[string]string{lcctx.Annotation: "shop"}}}
	root.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "atoll-token-bot"}}}}
	leaf := root.DeepCopy() // as it was rendered when such a Secret was one as any
	leaf.Namespace, leaf.UID = "front-hash", "leaf"
	leaf.Labels = map[string]string{workloadv1alpha1.RootUIDLabel: "root"}
	leaf.Annotations = map[string]string{lcctx.Annotation: "mirror"}
	leaf.Spec.Template.Spec.ImagePullSecrets = references([]string{"old"})
	m := newMirrored(t, root, leaf)
	got, lacks, err := m.withAccount(t.Context(), root, []ctrlclient.Object{leaf})
	if err != nil || lacks != nil || kinds.APIAccessOf(got) != kinds.NoAPIAccess {
		t.Fatalf("%v, lacks %v, access %q", err, lacks, kinds.APIAccessOf(got))
	}
	leaf.Spec.Suspend = ptr.To(true)
	if next, _, err := m.withAccount(t.Context(), root, []ctrlclient.Object{leaf}); err != nil || kinds.APIAccessOf(next) != kinds.MountedAPIAccess {
		t.Errorf("what has not begun has access %q, %v", kinds.APIAccessOf(next), err)
	}
	leaf.Spec.Suspend = nil
	put, _, err := m.putWhole(t.Context(), m.sources["Job"], got, mirrorEast, leaf, false)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(leaf.Spec.Template, put.(*batchv1.Job).Spec.Template); diff != "" {
		t.Errorf("its template (-was +is):\n%s", diff)
	}
}

// TestTemplateWaitsForItsAccount: while the account of a template is not there, what runs has the template of before, and is otherwise as it is to be.
func TestTemplateWaitsForItsAccount(t *testing.T) {
	robot := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "robot", Annotations: map[string]string{lcctx.Annotation: "shop"}}, AutomountServiceAccountToken: ptr.To(false)}
	for name, tc := range map[string]struct {
		account []ctrlclient.Object
		runsAs  string
		access  kinds.APIAccess
		told    bool
	}{
		"without": {nil, "", kinds.NoAPIAccess, true},
		"with":    {[]ctrlclient.Object{robot}, "robot", kinds.ProjectedAPIAccess, false},
	} {
		t.Run(name, func(t *testing.T) {
			root, leaf := pair("Deployment", "web")
			root.SetGeneration(2)
			root.(*appsv1.Deployment).Spec.Replicas = ptr.To[int32](5)
			root.(*appsv1.Deployment).Spec.Template.Spec.ServiceAccountName = "robot"
			annotations := leaf.GetAnnotations()
			annotations[workloadv1alpha1.RootGenerationAnnotation] = "1"
			leaf.SetAnnotations(annotations)
			m := newMirrored(t, append(tc.account, root, leaf, placementOf("", "Placed", mirrorEast))...)
			if _, err := m.reconcile(t.Context(), key{"Deployment", client.KeyOf(root)}); err != nil {
				t.Fatal(err)
			}
			down, up := &appsv1.Deployment{}, &appsv1.Deployment{}
			if err := errors.Join(m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(leaf), down), m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(root), up)); err != nil {
				t.Fatal(err)
			}
			if runsAs := down.Spec.Template.Spec.ServiceAccountName; *down.Spec.Replicas != 5 || runsAs != tc.runsAs || kinds.APIAccessOf(down) != tc.access {
				t.Errorf("%d pods run as %q, with access %q; want 5, as %q, with %q", *down.Spec.Replicas, runsAs, kinds.APIAccessOf(down), tc.runsAs, tc.access)
			}
			if generation := down.Annotations[workloadv1alpha1.RootGenerationAnnotation]; (generation == "1") != tc.told {
				t.Errorf("the leaf is of generation %s", generation)
			}
			told := slices.ContainsFunc(up.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
				return c.Type == kinds.ConditionSynced && c.Reason == "NoServiceAccount"
			})
			if told != tc.told {
				t.Errorf("it says that it has no account: %v, want %v: %+v", told, tc.told, up.Status.Conditions)
			}
		})
	}
}

// TestStatefulSetWaitsForItsAccount: without the account of its pods it runs on where it is, with the template that it has, and is not stopped to be made
// elsewhere.
func TestStatefulSetWaitsForItsAccount(t *testing.T) {
	robot := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "robot", Annotations: map[string]string{lcctx.Annotation: "shop"}}}
	as := func(account string, generation int64, replicas int32) *appsv1.StatefulSet {
		set := &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: "front", Name: "db", UID: "root", Generation: generation, Annotations: map[string]string{lcctx.Annotation: "shop"}},
			Spec:       appsv1.StatefulSetSpec{Replicas: &replicas},
		}
		set.Spec.Template.Spec.ServiceAccountName = account
		return set
	}
	for name, tc := range map[string]struct {
		reason   string
		was      string // the account of the leaf in east
		account  bool
		placed   string
		gone     bool
		replicas int32
		runsAs   string
		told     bool
	}{
		"scaled":             {"its template alone waits", "", false, mirrorEast, false, 5, "", true},
		"with its account":   {"", "", true, mirrorEast, false, 5, "robot", false},
		"moved":              {"it could not be started in west", "", false, mirrorWest, false, 5, "", true},
		"moved, unchanged":   {"nor could it with the template that it has", "robot", false, mirrorWest, false, 5, "robot", true},
		"moved with account": {"it is stopped first", "robot", true, mirrorWest, true, 2, "robot", false},
	} {
		t.Run(name, func(t *testing.T) {
			before, root := as(tc.was, 1, 2), as("robot", 2, 5)
			leaf := statefulSetLeaf(t, given(mustKind(t, "StatefulSet"), before, gift{template: kinds.TemplateDigest(&before.Spec.Template)}).(*appsv1.StatefulSet), mirrorEast, 2)
			p := placementOf("", "Placed", tc.placed)
			p.Status.Conditions = nil
			objects := []ctrlclient.Object{root, leaf, targetOf("east", mirrorEast, "statefulsets.apps"), targetOf("west", mirrorWest, "statefulsets.apps"), p}
			if tc.account {
				objects = append(objects, robot.DeepCopy())
			}
			m := newMirrored(t, objects...)
			s, k := m.sources["StatefulSet"], client.KeyOf(root)
			seen, _ := s.get(k)
			if _, err := m.single(t.Context(), s, seen, m.placement(s, k), s.leaves(k), nil); err != nil {
				t.Fatal(err)
			}
			down := &appsv1.StatefulSet{}
			if err := m.objects.Get(t.Context(), ctrlclient.ObjectKeyFromObject(leaf), down); err != nil {
				t.Fatal(err)
			}
			if gone := down.DeletionTimestamp != nil; gone != tc.gone {
				t.Errorf("the leaf in east is a tombstone: %v, want %v: %s", gone, tc.gone, tc.reason)
			}
			if runsAs := down.Spec.Template.Spec.ServiceAccountName; *down.Spec.Replicas != tc.replicas || runsAs != tc.runsAs {
				t.Errorf("%d pods run as %q, want %d as %q: %s", *down.Spec.Replicas, runsAs, tc.replicas, tc.runsAs, tc.reason)
			}
			if generation := down.Annotations[workloadv1alpha1.RootGenerationAnnotation]; tc.told && generation != "1" {
				t.Errorf("the leaf is of generation %s, which it has not the template of", generation)
			}
			events := &corev1.EventList{}
			if err := m.objects.List(t.Context(), events); err != nil {
				t.Fatal(err)
			}
			told := slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.Reason == "NoServiceAccount" })
			if told != tc.told {
				t.Errorf("it says that it has no account: %v, want %v", told, tc.told)
			}
		})
	}
}

func mustKind(t *testing.T, kind string) kinds.Kind {
	t.Helper()
	k, ok := kinds.ByKind(kind)
	if !ok {
		t.Fatalf("no kind %s", kind)
	}
	return k
}

func references(names []string) (refs []corev1.LocalObjectReference) {
	for _, n := range names {
		refs = append(refs, corev1.LocalObjectReference{Name: n})
	}
	return refs
}

// TestSecretBesidePullSecrets: a Secret is looked after also where a Deployment pulls with Secrets of its own, and names no ServiceAccount.
func TestSecretBesidePullSecrets(t *testing.T) {
	t.Parallel()
	root, leaf := pair("Deployment", "web")
	for _, o := range []ctrlclient.Object{root, leaf} {
		pods := &o.(*appsv1.Deployment).Spec.Template.Spec
		pods.ImagePullSecrets = references([]string{"registry"})
		pods.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "password"}}}}
	}
	m := newMirrored(t, root, leaf, placementOf("", "Placed", mirrorEast))
	for _, name := range []string{"password", "registry"} {
		mirrors, err := m.referencing(t.Context(), m.sources["Secret"], client.Key{Cluster: "shop", Namespace: "front", Name: name})
		if diff := cmp.Diff([]logicalcluster.Name{mirrorEast}, mirrors); err != nil || diff != "" {
			t.Errorf("Secret %s goes to (-want +got):\n%s%v", name, diff, err)
		}
	}
}
