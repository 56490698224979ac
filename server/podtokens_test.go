package server

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	kubestorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// Another namespace of shop, and that of east's mirror for it.
const (
	team2   = "team2"
	inEast2 = "team2-1b"
)

// issuing is a showing whose physical clusters are registered in the workspace above shop.
type issuing struct {
	*showing
	ground *ground
}

func startIssuing(t *testing.T, modify func(*Options)) *issuing {
	t.Helper()
	s := startShowingWith(t, modify)
	i := &issuing{s, s.ground(t)}
	i.ground.cluster(t, shop, "root:shop", "root")
	// What is above a workspace is read from the watch cache, since it does not change.
	waitFor(t, time.Minute, "the watch cache knows what is above shop", func() (string, bool) {
		lc := &corev1alpha1.LogicalCluster{}
		err := i.ground.objects.Get(client.In(t.Context(), shop), types.NamespacedName{Name: corev1alpha1.LogicalClusterName}, lc,
			&ctrlclient.GetOptions{Raw: &metav1.GetOptions{ResourceVersion: "0"}})
		return fmt.Sprint(lc.Spec.Owner, err), lc.Spec.Owner != nil
	})
	return i
}

// makeAccounts makes ServiceAccounts in a namespace of shop.
func (i *issuing) makeAccounts(t *testing.T, namespace string, names ...string) {
	t.Helper()
	for _, name := range names {
		_, err := i.shop.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		must(t, err)
	}
}

// workload is one of a kind, and the spec of its pods, which are of an account.
func workload(kind, namespace, name, account string) (ctrlclient.Object, *corev1.PodSpec) {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	app := map[string]string{"app": name}
	selector := &metav1.LabelSelector{MatchLabels: app}
	pods := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: app}, Spec: corev1.PodSpec{ServiceAccountName: account, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	var made ctrlclient.Object
	switch kind {
	case "Deployment":
		made = &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Selector: selector, Template: pods}}
	case "ReplicaSet":
		made = &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: pods}}
	case "ReplicationController":
		made = &corev1.ReplicationController{ObjectMeta: meta, Spec: corev1.ReplicationControllerSpec{Selector: app, Template: &pods}}
	case "DaemonSet":
		made = &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: pods}}
	case "StatefulSet":
		made = &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Selector: selector, Template: pods}}
	case "Job":
		pods.Spec.RestartPolicy = corev1.RestartPolicyNever
		made = &batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Template: pods}}
	}
	k, _ := kinds.ByKind(kind)
	return made, &k.Template(made).Spec
}

// placed makes a workload in shop, and a leaf of it in a mirror.
func (i *issuing) placed(t *testing.T, mirror logicalcluster.Name, root, leaf ctrlclient.Object) {
	t.Helper()
	must(t, i.ground.objects.Create(client.In(t.Context(), shop), root))
	access := kinds.APIAccessOf(leaf)
	leaf.SetFinalizers([]string{workloadv1alpha1.SyncerFinalizer})
	leaf.SetAnnotations(map[string]string{workloadv1alpha1.RootAnnotation: root.GetNamespace() + "/" + root.GetName()})
	kinds.SetAPIAccess(leaf, access)
	leaf.SetLabels(map[string]string{workloadv1alpha1.WorkspaceLabel: string(shop), workloadv1alpha1.RootUIDLabel: string(root.GetUID())})
	must(t, i.ground.objects.Create(client.In(t.Context(), mirror), leaf))
}

// wanting places a workload whose pods want the tokens of an account for those audiences.
func (i *issuing) wanting(t *testing.T, mirror logicalcluster.Name, kind, namespace, name, account string, audiences ...string) {
	t.Helper()
	of := map[string]string{inEast: team, inEast2: team2}[namespace]
	root, _ := workload(kind, of, name, account)
	from, spec := workload(kind, namespace, name, account)
	for _, audience := range audiences {
		if audience != "" {
			spec.Volumes = append(spec.Volumes, tokenVolume("for-"+audience, audience))
		}
	}
	access := kinds.ProjectedAPIAccess
	if slices.Contains(audiences, "") {
		access = kinds.MountedAPIAccess
	}
	i.placed(t, mirror, root, rendered(from, access))
}

// rendered is a leaf with pods as they are rendered.
func rendered(from ctrlclient.Object, access kinds.APIAccess) ctrlclient.Object {
	kinds.SetAPIAccess(from, access)
	k, _ := kinds.Of(from)
	leaf := from.DeepCopyObject().(ctrlclient.Object)
	k.Template(leaf).Spec = k.Template(k.Content(from)).Spec
	return leaf
}

func tokenVolume(name, audience string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: audience, Path: "token", ExpirationSeconds: ptr.To(int64(3600))}},
	}}}}
}

// byHand is what somebody writes who knows how a token is mounted.
func byHand(account string) corev1.Volume {
	return corev1.Volume{Name: "by-hand", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: kinds.TokenSecret(account)}, Items: []corev1.KeyToPath{{Key: kinds.TokenKey, Path: "token"}}}},
	}}}}
}

// boundFor makes a pod of an account in shop, and binds it to a mirror, with access. Admission mounts a token into it, if there are no volumes.
func (i *issuing) boundFor(t *testing.T, mirror logicalcluster.Name, name, account string, access kinds.APIAccess, volumes ...corev1.Volume) {
	t.Helper()
	pod, err := i.owner(t).CoreV1().Pods(team).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		ServiceAccountName: account, AutomountServiceAccountToken: ptr.To(len(volumes) == 0), Volumes: volumes, Containers: []corev1.Container{{Name: "c", Image: "i"}},
	}}, metav1.CreateOptions{})
	must(t, err)
	binding := i.binding(pod)
	binding.Labels[workloadv1alpha1.MirrorLabel] = string(mirror)
	if access != kinds.NoAPIAccess {
		binding.Annotations[workloadv1alpha1.APIAccessAnnotation] = string(access)
	}
	must(t, i.shop.CoreV1().Pods(team).Bind(t.Context(), binding, metav1.CreateOptions{}))
}

// patchLeaf changes a Deployment in east's mirror as the splitter does.
func (i *issuing) patchLeaf(t *testing.T, name, patch string) {
	t.Helper()
	_, err := i.in(t, east).AppsV1().Deployments(inEast).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
}

// buryLeaf deletes one whose pods have so many seconds to end.
func (i *issuing) buryLeaf(t *testing.T, name string, seconds int) {
	t.Helper()
	i.patchLeaf(t, name, fmt.Sprintf(`{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":%d}}}}`, seconds))
	must(t, i.in(t, east).AppsV1().Deployments(inEast).Delete(t.Context(), name, metav1.DeleteOptions{}))
}

// asksFor asks for a token as a syncer does.
func asksFor(t *testing.T, kube kubernetes.Interface, namespace, account string, spec authenticationv1.TokenRequestSpec) (*authenticationv1.TokenRequest, error) {
	t.Helper()
	return kube.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{})
}

// TestTokensOfPods: a syncer gets the tokens that are named by what it is to run, of the workspace and for an hour.
func TestTokensOfPods(t *testing.T) {
	i := startIssuing(t, func(*Options) {})
	i.makeAccounts(t, team, robot, "set", "crew", "hands", "daemon", "job", "late")
	i.wanting(t, east, "Deployment", inEast, "bot", robot, "", "vault")
	i.wanting(t, east, "StatefulSet", inEast, "set", "set", "")
	i.wanting(t, east, "ReplicaSet", inEast, "crew", "crew", "")
	i.wanting(t, east, "ReplicationController", inEast, "hands", "hands", "")
	i.wanting(t, east, "DaemonSet", inEast, "daemon", "daemon", "")
	i.wanting(t, east, "Job", inEast, "job", "job", "")
	i.wanting(t, east, "Deployment", inEast, "late", "late", "")
	i.wanting(t, east, "Deployment", inEast, "absent", "absent", "")
	i.buryLeaf(t, "late", 3600)
	i.makeAccounts(t, team, "op", "projects")
	i.boundFor(t, east, "op", "op", kinds.ProjectedAPIAccess)
	i.boundFor(t, east, "projects", "projects", kinds.ProjectedAPIAccess, tokenVolume("v", ""))
	target := &workloadv1alpha1.SyncTarget{}
	must(t, i.ground.objects.Get(client.In(t.Context(), "root"), types.NamespacedName{Name: "us-east-1"}, target))

	api, err := asksFor(t, i.east, inEast, robot, authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(3600))})
	must(t, err)
	issuer := i.URL() + clustersPrefix + string(shop)
	if diff := cmp.Diff([]string{issuer}, api.Spec.Audiences); diff != "" || *api.Spec.ExpirationSeconds != 3600 || api.Namespace != inEast || api.Name != robot {
		t.Errorf("the answer is of %s/%s, %d seconds, for (-want +got):\n%s", api.Namespace, api.Name, *api.Spec.ExpirationSeconds, diff)
	}
	var as []string
	for _, place := range []string{"/clusters/shopname", "", "/clusters/eastname", "/clusters/bankname"} {
		as = append(as, i.whoAmI(t, place, api.Status.Token))
	}
	if diff := cmp.Diff([]string{robotUser, robotUser, "401", "401"}, as); diff != "" {
		t.Errorf("who shows it in the workspace, nowhere, the mirror and another workspace (-want +got):\n%s", diff)
	}
	claims := payload(t, api.Status.Token)
	of, _ := claims["kubernetes.io"].(map[string]any)
	if claims["iss"] != issuer || !cmp.Equal(claims["aud"], []any{issuer}) || claims["exp"].(float64)-claims["iat"].(float64) != 3600 || of["namespace"] != team || len(of) != 3 {
		t.Errorf("its claims are %v, want an hour, one audience, a ServiceAccount and a Node", claims)
	}
	if diff := cmp.Diff(map[string]any{"name": "us-east-1", "uid": string(target.UID)}, of["node"]); diff != "" {
		t.Errorf("the Node that it is bound to (-want +got):\n%s", diff)
	}

	vault, err := asksFor(t, i.east, inEast, robot, authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}})
	must(t, err)
	if claims := payload(t, vault.Status.Token); !cmp.Equal(claims["aud"], []any{"vault"}) || i.whoAmI(t, "/clusters/shopname", vault.Status.Token) != "401" {
		t.Errorf("the claims of a token for another audience are %v, and the API takes it for %s", claims, i.whoAmI(t, "/clusters/shopname", vault.Status.Token))
	}

	for account, reason := range map[string]string{"set": "a StatefulSet's", "crew": "a ReplicaSet's", "hands": "a ReplicationController's", "daemon": "a DaemonSet's", "job": "a Job's", "late": "its pods have an hour to end, and its root stays",
		"op": "admission mounts it into a pod that is bound", "projects": "such a pod projects it itself"} {
		made, err := asksFor(t, i.east, inEast, account, authenticationv1.TokenRequestSpec{})
		must(t, err)
		if who := i.whoAmI(t, "/clusters/shopname", made.Status.Token); who != "system:serviceaccount:team:"+account {
			t.Errorf("the token of %s is %s: %s", account, who, reason)
		}
	}

	// As everywhere, the request may say whose token is meant.
	for name, tc := range map[string]struct {
		meta metav1.ObjectMeta
		is   func(error) bool
	}{
		"the same":  {metav1.ObjectMeta{Namespace: inEast, Name: robot, UID: api.UID}, func(err error) bool { return err == nil && api.UID != "" }},
		"name":      {metav1.ObjectMeta{Name: "other"}, apierrors.IsInvalid},
		"namespace": {metav1.ObjectMeta{Namespace: team}, apierrors.IsBadRequest},
		"UID":       {metav1.ObjectMeta{UID: "another"}, apierrors.IsConflict},
	} {
		if _, err := i.east.CoreV1().ServiceAccounts(inEast).CreateToken(t.Context(), robot, &authenticationv1.TokenRequest{ObjectMeta: tc.meta}, metav1.CreateOptions{}); !tc.is(err) {
			t.Errorf("%s: %v", name, err)
		}
	}

	// There is no token of an account that is none, whoever names it.
	if _, err := asksFor(t, i.east, inEast, "absent", authenticationv1.TokenRequestSpec{}); !apierrors.IsNotFound(err) {
		t.Errorf("%v, want the account not to be found", err)
	}
}

// TestTokensOfPodsAreForOneAudience: of those that the API has, the first.
func TestTokensOfPodsAreForOneAudience(t *testing.T) {
	i := startIssuing(t, func(o *Options) { o.Authentication.APIAudiences = []string{"first", "second"} })
	i.makeAccounts(t, team, robot)
	i.wanting(t, east, "Deployment", inEast, "bot", robot, "")
	made, err := asksFor(t, i.east, inEast, robot, authenticationv1.TokenRequestSpec{})
	must(t, err)
	if claims := payload(t, made.Status.Token); !cmp.Equal(claims["aud"], []any{"first"}) || i.whoAmI(t, "/clusters/shopname", made.Status.Token) != robotUser {
		t.Errorf("its claims are %v, and it is %s", claims, i.whoAmI(t, "/clusters/shopname", made.Status.Token))
	}
}

// TestTokensEndWithTheirCluster: a token is good while the physical cluster is registered that it was issued to, whatever policies say, and
// whatever else has its name.
func TestTokensEndWithTheirCluster(t *testing.T) {
	i := startIssuing(t, func(*Options) {})
	i.makeAccounts(t, team, robot)
	i.wanting(t, east, "StatefulSet", inEast, "bot", robot, "")
	made, err := asksFor(t, i.east, inEast, robot, authenticationv1.TokenRequestSpec{})
	must(t, err)
	good := func(reason string) {
		t.Helper()
		if who := i.whoAmI(t, "/clusters/shopname", made.Status.Token); who != robotUser {
			t.Errorf("%s: the token is %s", reason, who)
		}
		if _, err := asksFor(t, i.east, inEast, robot, authenticationv1.TokenRequestSpec{}); err != nil {
			t.Errorf("%s: a new one: %v", reason, err)
		}
	}
	good("its cluster is there")

	i.ground.allow(t, shop, "narrow", "us-west-1")
	if shown := i.ground.nodes(t, shop, metav1.ListOptions{}); !slices.Equal(shown, []string{"us-west-1"}) {
		t.Fatalf("shop is shown %v, want the cluster withdrawn", shown)
	}
	good("a policy has withdrawn its cluster: what stays there runs on")

	i.ground.target(t, shop, "us-east-1", nil)
	good("a nearer one has its cluster's name")

	target := &workloadv1alpha1.SyncTarget{}
	must(t, i.ground.objects.Get(client.In(t.Context(), "root"), types.NamespacedName{Name: "us-east-1"}, target))
	i.ground.update(t, "root", target, func() { target.Finalizers = []string{"example.dev/emptied"} })
	must(t, i.ground.objects.Delete(client.In(t.Context(), "root"), target))
	must(t, i.ground.objects.Get(client.In(t.Context(), "root"), types.NamespacedName{Name: "us-east-1"}, target))
	const row = "/registry/workload.kcp.io/synctargets/root/us-east-1"
	found, err := i.data.Get(t.Context(), row)
	must(t, err)
	now := fmt.Sprintf(`"deletionTimestamp":%q`, target.DeletionTimestamp.UTC().Format(time.RFC3339))
	since := strings.Replace(string(found.Kvs[0].Value), now, `"deletionTimestamp":"2001-01-01T00:00:00Z"`, 1)
	if since == string(found.Kvs[0].Value) {
		t.Fatalf("the row has no %s: %s", now, since)
	}
	_, err = i.data.Put(t.Context(), row, since)
	must(t, err)
	good("its cluster is being emptied, for long already")

	good("remembered")
	// Behind the server's back, as by another one: it ends as soon as the watch cache has heard of that, which tells its watches
	// after.
	heard := i.watchTargets(t)
	_, err = i.data.Delete(t.Context(), row)
	must(t, err)
	select {
	case <-heard:
	case <-time.After(time.Minute):
		t.Fatal("the watch cache does not hear that its cluster is gone")
	}
	if who := i.whoAmI(t, "/clusters/shopname", made.Status.Token); who != "401" {
		t.Errorf("its cluster is gone: the token is %s", who)
	}
	review, err := i.shop.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: made.Status.Token}}, metav1.CreateOptions{})
	if err != nil || review.Status.Authenticated {
		t.Errorf("its cluster is gone: a TokenReview of the token says %+v, %v", review.Status, err)
	}
	if _, err := asksFor(t, i.east, inEast, robot, authenticationv1.TokenRequestSpec{}); !apierrors.IsNotFound(err) {
		t.Errorf("its cluster is gone: a new one: %v", err)
	}
}

// watchTargets returns what is closed when a SyncTarget of root is gone, as the watch cache has it.
func (i *issuing) watchTargets(t *testing.T) <-chan struct{} {
	t.Helper()
	targets, _ := i.backend.Resource(syncTargets)
	ctx := lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: "root"})
	now, err := targets.Storage.GetCurrentResourceVersion(ctx)
	must(t, err)
	watched, err := targets.Storage.Watch(ctx, targets.Key("", ""), kubestorage.ListOptions{
		ResourceVersion: strconv.FormatUint(now, 10), Recursive: true, Predicate: kubestorage.Everything,
	})
	must(t, err)
	gone := make(chan struct{})
	go func() {
		defer watched.Stop()
		for event := range watched.ResultChan() {
			if event.Type == watch.Deleted {
				close(gone)
				return
			}
		}
	}()
	return gone
}

// TestTokensOfAHostileSyncer: a syncer gets no other token. All ServiceAccounts are there, so what is let through is issued.
func TestTokensOfAHostileSyncer(t *testing.T) {
	i := startIssuing(t, func(*Options) {})
	i.makeNamespace(t, shop, team2)
	_, err := i.in(t, east).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: inEast2, Labels: map[string]string{workloadv1alpha1.WorkspaceLabel: string(shop)}, Annotations: map[string]string{workloadv1alpha1.RootAnnotation: "/" + team2},
	}}, metav1.CreateOptions{})
	must(t, err)
	i.makeAccounts(t, team, robot, "cook", "late", "ghost", "pilot", "writer", "admin-bot", "before", "of-west", "of-bank", "orphan", "anew")
	i.makeAccounts(t, team2, robot, "cook")
	i.wanting(t, east, "Deployment", inEast, "bot", robot, "", "vault")
	i.wanting(t, east, "Deployment", inEast2, "kitchen", "cook", "")
	i.wanting(t, west, "Deployment", inEast, "far", "of-west", "")

	// A leaf of another workspace that got into the namespace; one that goes and that nobody lets go; and two that nobody told the mirror of
	// since: their roots are gone, or others.
	i.wanting(t, east, "Deployment", inEast, "astray", "of-bank", "")
	i.patchLeaf(t, "astray", `{"metadata":{"labels":{"`+workloadv1alpha1.WorkspaceLabel+`":"bankname"}}}`)
	i.wanting(t, east, "Deployment", inEast, "late", "late", "")
	i.buryLeaf(t, "late", 0)
	for _, name := range []string{"orphan", "anew"} {
		i.wanting(t, east, "Deployment", inEast, name, name, "")
		must(t, i.shop.AppsV1().Deployments(team).Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	again, _ := workload("Deployment", team, "anew", "anew")
	must(t, i.ground.objects.Create(client.In(t.Context(), shop), again))

	// What was bound, or rendered, before pods had any token has none: neither what admission mounted, nor what somebody wrote as if it were
	// rendered. Later that is taken out.
	i.boundFor(t, east, "op", "pilot", kinds.NoAPIAccess)
	pod, err := i.shop.CoreV1().Pods(team).Get(t.Context(), "op", metav1.GetOptions{})
	must(t, err)
	if len(pod.Spec.Volumes) != 1 || !strings.HasPrefix(pod.Spec.Volumes[0].Name, "kube-api-access-") {
		t.Fatalf("the pod has the volumes %v, want what admission mounts", pod.Spec.Volumes)
	}
	i.boundFor(t, east, "written", "writer", kinds.ProjectedAPIAccess, byHand("writer"))
	for name, access := range map[string]kinds.APIAccess{"admin-bot": kinds.ProjectedAPIAccess, "before": kinds.NoAPIAccess} {
		root, spec := workload("Deployment", team, name, name)
		spec.Volumes = append(spec.Volumes, byHand(name))
		leaf := root.DeepCopyObject().(ctrlclient.Object)
		if access != kinds.NoAPIAccess {
			leaf = rendered(leaf, access)
		}
		leaf.SetNamespace(inEast)
		i.placed(t, east, root, leaf)
	}

	// What the syncer shows says what it likes: of its volumes, and as what a leaf says.
	_, err = i.east.CoreV1().Pods(inEast).Create(t.Context(), i.below("web-1", func(p *corev1.Pod) {
		p.Spec.ServiceAccountName = "ghost"
		p.Spec.Volumes = []corev1.Volume{byHand("ghost"), tokenVolume("v", "vault")}
		p.Finalizers = []string{workloadv1alpha1.SyncerFinalizer}
	}), metav1.CreateOptions{})
	must(t, err)

	ofWest := i.MirrorConfig(west)
	at := func(config *rest.Config, cluster logicalcluster.Name) kubernetes.Interface {
		elsewhere := rest.CopyConfig(config)
		elsewhere.Host = i.LoopbackConfig().Host
		return i.as(t, elsewhere, clustersPrefix+string(cluster))
	}
	westInEast := at(ofWest, east)
	type asks = authenticationv1.TokenRequestSpec
	for name, tc := range map[string]struct {
		reason             string
		who                kubernetes.Interface
		namespace, account string
		spec               asks
		says               string
	}{
		"another account":         {"it is named in another namespace", i.east, inEast, "cook", asks{}, "nothing that is to run in namespace team-1a has a token of this ServiceAccount for the API"},
		"another namespace":       {"it is named in another one", i.east, inEast2, robot, asks{}, "nothing that is to run in namespace team2-1b"},
		"nobody's namespace":      {"it is for no workspace", i.east, "nobodys", robot, asks{}, "for no workspace"},
		"another audience":        {"no volume names it", i.east, inEast, robot, asks{Audiences: []string{"sts"}}, `for the audience "sts"`},
		"two audiences":           {"one would be shown the other's", i.east, inEast, robot, asks{Audiences: []string{"vault", "sts"}}, "ask for a token for each"},
		"longer":                  {"no long-lived credential goes down", i.east, inEast, robot, asks{ExpirationSeconds: ptr.To(int64(3601))}, "3600 at most"},
		"bound to an object":      {"it would be looked up", i.east, inEast, robot, asks{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "op"}}, "name nothing"},
		"tombstone":               {"its pods have no time", i.east, inEast, "late", asks{}, "until their pods have ended"},
		"root gone":               {"the splitter was away", i.east, inEast, "orphan", asks{}, "nothing that is to run"},
		"root made anew":          {"so may the account be", i.east, inEast, "anew", asks{}, "nothing that is to run"},
		"bound before":            {"it was bound without a token", i.east, inEast, "pilot", asks{}, "nothing that is to run"},
		"bound pod, by hand":      {"its author wrote it", i.east, inEast, "writer", asks{}, "nothing that is to run"},
		"leaf, by hand":           {"its author wrote it", i.east, inEast, "admin-bot", asks{}, "nothing that is to run"},
		"leaf, by hand, before":   {"it went down as it was written", i.east, inEast, "before", asks{}, "nothing that is to run"},
		"shown pod":               {"its syncer wrote it", i.east, inEast, "ghost", asks{}, "nothing that is to run"},
		"shown pod, audience":     {"its syncer wrote it", i.east, inEast, "ghost", asks{Audiences: []string{"vault"}}, "nothing that is to run"},
		"another's leaf":          {"what a namespace is for is one workspace's", i.east, inEast, "of-bank", asks{}, "nothing that is to run"},
		"another mirror's leaf":   {"it is to run elsewhere", i.east, inEast, "of-west", asks{}, "nothing that is to run"},
		"an account that is none": {"what there is it is not told", i.east, inEast, "absent", asks{}, "nothing that is to run"},
		"another syncer":          {"a mirror is its own syncer's", westInEast, inEast, robot, asks{}, "mirror of its own physical cluster only"},
		"the workspace":           {"a mirror is where it is somebody", at(ofWest, shop), team, robot, asks{}, "mirror of its own physical cluster only"},
	} {
		got, err := asksFor(t, tc.who, tc.namespace, tc.account, tc.spec)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), tc.says) || got != nil && got.Status.Token != "" {
			t.Errorf("%s: %v, want it forbidden with %q: %s", name, err, tc.says, tc.reason)
		}
	}

	// What is gone names nothing.
	if _, err := asksFor(t, i.east, inEast, robot, asks{}); err != nil {
		t.Errorf("%v, want a token while it is named", err)
	}
	ofEast := i.in(t, east).AppsV1().Deployments(inEast)
	must(t, ofEast.Delete(t.Context(), "bot", metav1.DeleteOptions{}))
	_, err = i.east.AppsV1().Deployments(inEast).Patch(t.Context(), "bot", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	must(t, err)
	if _, err := ofEast.Get(t.Context(), "bot", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("%v, want the leaf gone", err)
	}
	if _, err := asksFor(t, i.east, inEast, robot, asks{}); !apierrors.IsForbidden(err) {
		t.Errorf("%v, want none when what named it is gone", err)
	}
}
