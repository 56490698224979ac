package server

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// inEast is the namespace of east's mirror for team in shop.
const inEast = "team-1a"

// showing is a server with a Deployment in shop, and its leaf in the mirrors of east and west.
type showing struct {
	*running
	shop       kubernetes.Interface // the server's own
	east, west kubernetes.Interface // syncers
	root       *appsv1.Deployment
	leaf       *appsv1.Deployment // east's
}

func startShowing(t *testing.T) *showing { return startShowingWith(t, func(*Options) {}) }

func startShowingWith(t *testing.T, modify func(*Options)) *showing {
	tokens := withTokens(t)
	s := &showing{running: startServer(t, func(o *Options) {
		tokens(o)
		modify(o)
	})}
	s.shop = s.in(t, shop)
	s.east, s.west = s.as(t, s.MirrorConfig(east), ""), s.as(t, s.MirrorConfig(west), "")
	s.makeNamespace(t, shop, team)
	if _, err := s.shop.CoreV1().ServiceAccounts(team).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.root = s.makeDeployment(t, shop, team, 2, nil, nil)
	ground := s.ground(t)
	for mirror, node := range map[logicalcluster.Name]string{east: "us-east-1", west: "us-west-1"} {
		kube := s.in(t, mirror)
		s.forgetCluster(t, mirror)
		owner := fmt.Sprintf(`{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","metadata":{"name":"cluster"},"spec":{"use":"Mirror","owner":`+
			`{"apiVersion":"workload.kcp.io/v1alpha1","resource":"synctargets","name":%q,"cluster":"root","uid":%q}}}`, node, ground.target(t, "root", node, nil).UID)
		if err := kube.Discovery().RESTClient().Post().AbsPath("/apis/core.kcp.io/v1alpha1/logicalclusters").Body([]byte(owner)).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
		_, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: inEast, Labels: map[string]string{workloadv1alpha1.WorkspaceLabel: string(shop)}, Annotations: map[string]string{workloadv1alpha1.RootAnnotation: "/" + team},
		}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s.makeNamespace(t, mirror, "nobodys")
		leaf := s.makeDeployment(t, mirror, inEast, 2, map[string]string{
			workloadv1alpha1.WorkspaceLabel: string(shop), workloadv1alpha1.RootUIDLabel: string(s.root.UID),
		}, map[string]string{workloadv1alpha1.RootAnnotation: team + "/web"})
		if mirror == east {
			s.leaf = leaf
		}
	}
	return s
}

func (s *showing) makeDeployment(t *testing.T, cluster logicalcluster.Name, namespace string, replicas int32, labels, annotations map[string]string) *appsv1.Deployment {
	t.Helper()
	app := map[string]string{"app": "web"}
	made, err := s.in(t, cluster).AppsV1().Deployments(namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: labels, Annotations: annotations},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: app}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: app}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// below is a pod as the syncer of east shows it.
func (s *showing) below(name string, change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: inEast, Name: name, Labels: map[string]string{"app": "web"}, Annotations: map[string]string{workloadv1alpha1.PodUIDAnnotation: "uid-of-" + name},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: s.leaf.UID, Controller: ptr.To(true)}},
		},
		Spec: corev1.PodSpec{NodeName: "node-7", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if change != nil {
		change(pod)
	}
	return pod
}

// revision is how many writes etcd has seen.
func (s *showing) revision(t *testing.T) int64 {
	t.Helper()
	found, err := s.data.Get(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	return found.Header.Revision
}

// TestShownPods follows a pod of a physical cluster in its workspace.
func TestShownPods(t *testing.T) {
	s := startShowing(t)
	ofEast, ofShop := s.east.CoreV1().Pods(inEast), s.shop.CoreV1().Pods(team)
	events, err := s.east.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()

	before := s.revision(t)
	shown, err := ofEast.Create(t.Context(), s.below("web-1", func(p *corev1.Pod) {
		p.Labels[workloadv1alpha1.MirrorLabel] = string(west)
		p.Annotations["note"] = "kept"
		p.Annotations[workloadv1alpha1.MirrorNamespaceAnnotation] = "elsewhere"
		p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "x"})
		p.Finalizers = []string{"example.dev/stays"}
	}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod, err := ofShop.Get(t.Context(), "web-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	type claims struct {
		Node               string
		Owners             []metav1.OwnerReference
		Labels, Notes      map[string]string
		Finalizers         []string
		ManagedBy, ShownIn string
	}
	delete(pod.Annotations, "kcp.io/cluster")
	want := claims{"us-east-1", []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: s.root.UID, Controller: ptr.To(true)}},
		map[string]string{"app": "web", workloadv1alpha1.MirrorLabel: string(east)},
		map[string]string{"note": "kept", workloadv1alpha1.MirrorNamespaceAnnotation: inEast, workloadv1alpha1.PodUIDAnnotation: "uid-of-web-1"}, nil, "", inEast}
	if diff := cmp.Diff(want, claims{pod.Spec.NodeName, pod.OwnerReferences, pod.Labels, pod.Annotations, pod.Finalizers, "", shown.Namespace}); diff != "" {
		t.Errorf("what is stored is what the server knows, not what the syncer claims (-want +got):\n%s", diff)
	}

	shown.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.2.3", PodIPs: []corev1.PodIP{{IP: "10.1.2.3"}}, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	shown.Spec.NodeName = "node-8"
	relabelled := shown.DeepCopy()
	relabelled.Labels["app"] = "other"
	if _, err := ofEast.UpdateStatus(t.Context(), relabelled, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("%v; want a status to be nothing more", err)
	}
	if shown, err = ofEast.UpdateStatus(t.Context(), shown, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if now, err := ofShop.Get(t.Context(), "web-1", metav1.GetOptions{}); err != nil || now.Status.PodIP != "10.1.2.3" || now.Labels["app"] != "web" || now.Spec.NodeName != "us-east-1" || now.ResourceVersion != shown.ResourceVersion {
		t.Errorf("%v: %+v; want the status, and nothing else", err, now)
	}
	if _, err := ofEast.UpdateStatus(t.Context(), shown, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if writes := s.revision(t) - before; writes != 2 {
		t.Errorf("%d writes, want one for the pod and one for its status; a status that is the same is none", writes)
	}

	if _, err := ofShop.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bare"}, Spec: shown.Spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	all, err := s.east.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{Limit: 1})
	if err != nil || len(all.Items) != 1 || all.Continue != "" || all.Items[0].Name != "web-1" || all.Items[0].Namespace != inEast || len(all.Items[0].OwnerReferences) > 0 {
		t.Errorf("the mirror of east lists %v, %v; want the pod that it shows, and nothing else of the workspace", all.Items, err)
	}
	if others, err := s.west.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); err != nil || len(others.Items) > 0 {
		t.Errorf("the mirror of west lists %v, %v", others.Items, err)
	}

	// A user's request to delete it waits until it was carried out below.
	user := s.MirrorConfig(west)
	user.Host, user.BearerToken = s.LoopbackConfig().Host+clustersPrefix+string(shop), root
	admin := s.as(t, user, "").CoreV1().Pods(team)
	if err := admin.Delete(t.Context(), "web-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if ending, err := ofEast.Get(t.Context(), "web-1", metav1.GetOptions{}); err != nil || ending.DeletionTimestamp == nil {
		t.Errorf("%v: %+v; want a pod that is to go", err, ending)
	}
	if err := ofEast.Delete(t.Context(), "web-1", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(shown.UID)}}); err != nil {
		t.Fatal(err)
	}
	if _, err := ofShop.Get(t.Context(), "web-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("%v; want it gone", err)
	}
	var seen []string
	for e := range events.ResultChan() {
		seen = append(seen, fmt.Sprint(e.Type, " ", e.Object.(*corev1.Pod).Namespace, "/", e.Object.(*corev1.Pod).Name))
		if e.Type == watch.Deleted {
			break
		}
	}
	// As for a kubelet, the last deletion first takes the time that was left.
	if diff := cmp.Diff([]string{"ADDED team-1a/web-1", "MODIFIED team-1a/web-1", "MODIFIED team-1a/web-1", "MODIFIED team-1a/web-1", "DELETED team-1a/web-1"}, seen); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}

	// What the server itself deletes does not wait for a cluster that may be away.
	if _, err := ofEast.Create(t.Context(), s.below("web-2", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func() error{
		"labels": func() error {
			_, err := admin.Patch(t.Context(), "web-2", types.MergePatchType, []byte(`{"metadata":{"labels":{"app":"other"}}}`), metav1.PatchOptions{})
			return err
		},
		"status": func() error {
			_, err := admin.Patch(t.Context(), "web-2", types.MergePatchType, []byte(`{"status":{"podIP":"10.9.9.9"}}`), metav1.PatchOptions{}, "status")
			return err
		},
		"unmarked": func() error {
			_, err := admin.Patch(t.Context(), "web-2", types.MergePatchType, []byte(`{"metadata":{"labels":{"`+workloadv1alpha1.MirrorLabel+`":null},"annotations":{"`+
				workloadv1alpha1.MirrorNamespaceAnnotation+`":null,"`+workloadv1alpha1.PodUIDAnnotation+`":null}}}`), metav1.PatchOptions{})
			return err
		},
		"mark": func() error {
			_, err := admin.Patch(t.Context(), "bare", types.MergePatchType, []byte(`{"metadata":{"labels":{"`+workloadv1alpha1.MirrorLabel+`":"eastname"}}}`), metav1.PatchOptions{})
			return err
		},
		"marked": func() error {
			_, err := admin.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "forged", Annotations: map[string]string{workloadv1alpha1.PodUIDAnnotation: "x"}}, Spec: shown.Spec}, metav1.CreateOptions{})
			return err
		},
	} {
		if err := change(); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want it forbidden: pods that clusters show are changed by nobody in the workspace", name, err)
		}
	}
	if _, err := ofShop.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "unbound"}, Spec: corev1.PodSpec{Containers: shown.Spec.Containers}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	forged := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: "unbound", Labels: map[string]string{workloadv1alpha1.MirrorLabel: string(east)}}, Target: corev1.ObjectReference{Kind: "Node", Name: "us-east-1"},
	}
	if err := admin.Bind(t.Context(), forged, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("%v, want a binding forbidden that marks", err)
	}
	forged.Labels, forged.Annotations = nil, map[string]string{workloadv1alpha1.MirrorNamespaceAnnotation: inEast}
	if err := s.as(t, user, "").CoreV1().RESTClient().Post().Namespace(team).Resource("bindings").Body(forged).Do(t.Context()).Error(); !apierrors.IsForbidden(err) {
		t.Errorf("%v, want a binding of the earlier resource forbidden that marks", err)
	}
	if err := ofShop.Delete(t.Context(), "web-2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := ofShop.Get(t.Context(), "web-2", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("%v; want it gone at once", err)
	}
}

// TestEndOfShownPods: what somebody deletes in the workspace stays until it is gone below, also where nothing of it runs any more; what
// the server deletes goes at once.
func TestEndOfShownPods(t *testing.T) {
	s := startShowing(t)
	user := s.MirrorConfig(west)
	user.Host, user.BearerToken = s.LoopbackConfig().Host+clustersPrefix+string(shop), root
	ofEast, ofUser := s.east.CoreV1().Pods(inEast), s.as(t, user, "").CoreV1().Pods(team)
	ofServer, ofManager := s.shop.CoreV1().Pods(team), s.in(t, east).CoreV1().Pods(inEast)
	after := func(seconds int64) metav1.DeleteOptions { return metav1.DeleteOptions{GracePeriodSeconds: &seconds} }

	ended := func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }
	for name, test := range map[string]struct {
		reason string
		below  func(*corev1.Pod)
		delete func(name string) error
		stays  bool
	}{
		"user": {"it is there below", ended, func(name string) error { return ofUser.Delete(t.Context(), name, metav1.DeleteOptions{}) }, true},
		"now":  {"it is there below", ended, func(name string) error { return ofUser.Delete(t.Context(), name, after(1)) }, true},
		"collection": {"it is there below", ended, func(name string) error {
			return ofUser.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		}, true},
		"graceless": {"it runs, whatever time it asks for", func(pod *corev1.Pod) {
			pod.Spec.TerminationGracePeriodSeconds, pod.Status.Phase = ptr.To(int64(0)), corev1.PodRunning
		}, func(name string) error { return ofUser.Delete(t.Context(), name, metav1.DeleteOptions{}) }, true},
		"ends-below": {"its end is seen later", ended, func(name string) error { return ofEast.Delete(t.Context(), name, after(30)) }, true},
		"forced":     {"it is there below, and would be shown again", ended, func(name string) error { return ofUser.Delete(t.Context(), name, after(0)) }, true},
		"forced-twice": {"the same", ended, func(name string) error {
			return errors.Join(ofUser.Delete(t.Context(), name, after(0)), ofUser.Delete(t.Context(), name, after(0)))
		}, true},
		"forced-after": {"nobody has seen yet that it is to go", ended, func(name string) error {
			return errors.Join(ofUser.Delete(t.Context(), name, after(300)), ofUser.Delete(t.Context(), name, after(0)))
		}, true},
		"forced-collection-after": {"the same", ended, func(name string) error {
			return errors.Join(ofUser.Delete(t.Context(), name, after(300)),
				ofUser.DeleteCollection(t.Context(), after(0), metav1.ListOptions{FieldSelector: "metadata.name=" + name}))
		}, true},
		"forced-collection": {"the same", ended, func(name string) error {
			return ofUser.DeleteCollection(t.Context(), after(0), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		}, true},
		"server":   {"the cluster may be away", ended, func(name string) error { return ofServer.Delete(t.Context(), name, metav1.DeleteOptions{}) }, false},
		"given-up": {"nobody shows it any more", ended, func(name string) error { return ofManager.Delete(t.Context(), name, metav1.DeleteOptions{}) }, false},
	} {
		shown, err := ofEast.Create(t.Context(), s.below(name, test.below), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		test.below(shown)
		if _, err := ofEast.UpdateStatus(t.Context(), shown, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := test.delete(name); err != nil {
			t.Fatal(err)
		}
		now, err := ofEast.Get(t.Context(), name, metav1.GetOptions{})
		switch {
		case !test.stays && !apierrors.IsNotFound(err):
			t.Errorf("%s: %v, %v; want it gone: %s", name, now.DeletionTimestamp, err, test.reason)
		case test.stays && (err != nil || now.DeletionTimestamp == nil || ptr.Deref(now.DeletionGracePeriodSeconds, 0) < 1):
			t.Errorf("%s: %v; want it to stay, and to be on its way out: %s", name, err, test.reason)
		}
	}

	// Nothing of what waits for its end below holds up the server.
	for name, delete := range map[string]func(name string) error{
		"user":       func(name string) error { return ofServer.Delete(t.Context(), name, metav1.DeleteOptions{}) },
		"collection": func(name string) error { return ofManager.Delete(t.Context(), name, metav1.DeleteOptions{}) },
		"graceless":  func(name string) error { return ofEast.Delete(t.Context(), name, after(0)) },
	} {
		if err := delete(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := ofServer.Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v, want it gone", name, err)
		}
	}

	// A pod that is nobody's below goes as in Kubernetes.
	own, err := ofServer.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "own"}, Spec: corev1.PodSpec{NodeName: "us-east-1", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ended(own)
	if _, err := ofServer.UpdateStatus(t.Context(), own, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := ofUser.Delete(t.Context(), "own", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := ofServer.Get(t.Context(), "own", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("%v, want the workspace's own pod gone", err)
	}
}

// TestShownPodsLeaveRoom: what a cluster shows uses up nobody's room to write, which its syncer is told; and who has used that up still
// sees how his pods are.
func TestShownPodsLeaveRoom(t *testing.T) {
	s := startShowingWith(t, func(o *Options) { o.MaxObjectsPerWorkspace = 16 })
	s.makeAdmin(t, shop, "alice")
	ofEast, user := s.east.CoreV1().Pods(inEast), s.MirrorConfig(west)
	user.Host, user.BearerToken = s.LoopbackConfig().Host+clustersPrefix+string(shop), alice
	ofAlice := s.as(t, user, "").CoreV1()

	var one *corev1.Pod
	for i := range 8 {
		var err error
		if one, err = ofEast.Create(t.Context(), s.below(fmt.Sprint("web-", i), nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ofEast.Create(t.Context(), s.below("one-more", nil), metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.HasSuffix(err.Error(), "its workspace has no room for more pods") {
		t.Errorf("%v, want one more refused, and nothing said of whose workspace it is and what it has", err)
	}
	written := 0
	for err := error(nil); err == nil; written++ {
		_, err = ofAlice.ConfigMaps(team).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "note-"}}, metav1.CreateOptions{})
		if err != nil && !strings.Contains(err.Error(), "has 16 objects, and may have 16") {
			t.Fatal(err)
		}
	}
	if written < 10 {
		t.Errorf("%d more objects fit in: the Pods took their room", written)
	}
	one.Status.Phase = corev1.PodRunning
	if _, err := ofEast.UpdateStatus(t.Context(), one, metav1.UpdateOptions{}); err != nil {
		t.Errorf("how a pod is: %v", err)
	}
	bare := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bare"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if _, err := ofAlice.Pods(team).Create(t.Context(), bare, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "has 8 Pods, and may have 8, 1/2 of") {
		t.Errorf("%v, want the workspace told what there is", err)
	}
	if err := ofAlice.Pods(team).Delete(t.Context(), one.Name, metav1.DeleteOptions{}); err != nil {
		t.Errorf("who has used up his room deletes a pod: %v", err)
	}
}

// TestShownPodsOfAHostileCluster: a syncer shows what was asked of its physical cluster, and touches nothing else.
func TestShownPodsOfAHostileCluster(t *testing.T) {
	s := startShowing(t)
	ofShop := s.shop.CoreV1().Pods(team)
	if _, err := ofShop.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bare"}, Spec: corev1.PodSpec{NodeName: "us-east-1", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.east.CoreV1().Pods(inEast).Create(t.Context(), s.below("of-east", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	for name, test := range map[string]struct {
		reason string
		change func(*corev1.Pod)
	}{
		"nobody's":          {"it was not asked for", func(p *corev1.Pod) { p.OwnerReferences = nil }},
		"no controller":     {"an owner may be anything", func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }},
		"another kind":      {"a ReplicaSet of the physical cluster says nothing here", func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "ReplicaSet" }},
		"not shown":         {"a Service has no pods of its own", func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion, p.OwnerReferences[0].Kind = "v1", "Service" }},
		"another group":     {"kinds are of groups", func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "apps/v1beta1" }},
		"another leaf":      {"there is none of that name", func(p *corev1.Pod) { p.OwnerReferences[0].Name = "db" }},
		"an earlier leaf":   {"it is another one now", func(p *corev1.Pod) { p.OwnerReferences[0].UID = "earlier" }},
		"the root":          {"roots are of the workspace", func(p *corev1.Pod) { p.OwnerReferences[0].UID = s.root.UID }},
		"no UID":            {"it could not be told from the next of its name", func(p *corev1.Pod) { delete(p.Annotations, workloadv1alpha1.PodUIDAnnotation) }},
		"generated name":    {"it has one below", func(p *corev1.Pod) { p.Name, p.GenerateName = "", "web-" }},
		"namespace for all": {"it is for no workspace", func(p *corev1.Pod) { p.Namespace = "nobodys" }},
		"workspace's own":   {"the mirror has no such namespace", func(p *corev1.Pod) { p.Namespace = team }},
		"invalid":           {"a pod is a pod", func(p *corev1.Pod) { p.Spec.Containers = nil }},
		"name is taken":     {"by a pod of the workspace", func(p *corev1.Pod) { p.Name = "bare" }},
		"endless": {"room is the workspace's", func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "x", Value: strings.Repeat("x", 256<<10)}}
		}},
	} {
		pod := s.below("forged", test.change)
		if _, err := s.east.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err == nil {
			t.Errorf("%s: is shown: %s", name, test.reason)
		}
	}

	s.checkForgedRows(t)
	s.checkLong(t)
	s.checkCostly(t)

	for reason, touched := range map[string]struct {
		by   kubernetes.Interface
		name string
	}{
		"it says itself that it is on that Node": {s.east, "bare"},
		"it runs in another cluster":             {s.west, "of-east"},
	} {
		pods := touched.by.CoreV1().Pods(inEast)
		if _, err := pods.Get(t.Context(), touched.name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("get %s: %v: %s", touched.name, err, reason)
		}
		if _, err := pods.UpdateStatus(t.Context(), s.below(touched.name, func(p *corev1.Pod) { p.UID = "guess" }), metav1.UpdateOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("status of %s: %v: %s", touched.name, err, reason)
		}
		if err := pods.Delete(t.Context(), touched.name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("guess")}); !apierrors.IsNotFound(err) {
			t.Errorf("delete %s: %v: %s", touched.name, err, reason)
		}
	}
	if _, err := s.east.CoreV1().Pods(inEast).Update(t.Context(), s.below("of-east", nil), metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("update: %v", err)
	}

	// Three times what was asked for, and 20.
	var group sync.WaitGroup
	for i := range 60 {
		group.Go(func() { // more at once than there may be, some of which are refused
			_, err := s.east.CoreV1().Pods(inEast).Create(t.Context(), s.below(fmt.Sprint("at-once-", i), nil), metav1.CreateOptions{})
			if err != nil && !apierrors.IsForbidden(err) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	var full error
	for i := 0; full == nil; i++ {
		_, full = s.east.CoreV1().Pods(inEast).Create(t.Context(), s.below(fmt.Sprint("web-", i), nil), metav1.CreateOptions{})
	}
	shown, err := s.east.CoreV1().Pods(inEast).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(shown.Items) != 3*2+20 || !apierrors.IsForbidden(full) || !strings.Contains(full.Error(), "26 pods of Deployment web are shown, and no more than 26 may be") {
		t.Errorf("%d pods are shown, and one more is refused with %v: %v", len(shown.Items), full, err)
	}

	// The owner is another one by now.
	if err := s.shop.AppsV1().Deployments(team).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.makeDeployment(t, shop, team, 2, nil, nil)
	if _, err := s.west.CoreV1().Pods(inEast).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.east.CoreV1().Pods(inEast).Create(t.Context(), s.below("late", nil), metav1.CreateOptions{}); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `"web" not found`) {
		t.Errorf("%v; want no pod of an owner that is gone", err)
	}
}

// TestShownPodsOfEachWorkload: whatever makes pods below, they are of its root.
func TestShownPodsOfEachWorkload(t *testing.T) {
	s := startShowing(t)
	template, selector := s.root.Spec.Template, s.root.Spec.Selector
	once := *template.DeepCopy()
	once.Spec.RestartPolicy = corev1.RestartPolicyNever
	above, below := s.shop, s.in(t, east)
	meta := func(root metav1.Object) metav1.ObjectMeta {
		if root == nil {
			return metav1.ObjectMeta{Name: "web"}
		}
		return metav1.ObjectMeta{
			Name: "web", Labels: map[string]string{workloadv1alpha1.WorkspaceLabel: string(shop), workloadv1alpha1.RootUIDLabel: string(root.GetUID())},
			Annotations: map[string]string{workloadv1alpha1.RootAnnotation: team + "/web"},
		}
	}
	for kind, tc := range map[string]struct {
		apiVersion, pod string
		make            func(in kubernetes.Interface, namespace string, root metav1.Object) (metav1.Object, error)
	}{
		"StatefulSet": {"apps/v1", "web-0", func(in kubernetes.Interface, namespace string, root metav1.Object) (metav1.Object, error) {
			return in.AppsV1().StatefulSets(namespace).Create(t.Context(), &appsv1.StatefulSet{ObjectMeta: meta(root), Spec: appsv1.StatefulSetSpec{Selector: selector, Template: template}}, metav1.CreateOptions{})
		}},
		"ReplicaSet": {"apps/v1", "web-b6n4d", func(in kubernetes.Interface, namespace string, root metav1.Object) (metav1.Object, error) {
			return in.AppsV1().ReplicaSets(namespace).Create(t.Context(), &appsv1.ReplicaSet{ObjectMeta: meta(root), Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template}}, metav1.CreateOptions{})
		}},
		"ReplicationController": {"v1", "web-t5w9c", func(in kubernetes.Interface, namespace string, root metav1.Object) (metav1.Object, error) {
			return in.CoreV1().ReplicationControllers(namespace).Create(t.Context(), &corev1.ReplicationController{ObjectMeta: meta(root), Spec: corev1.ReplicationControllerSpec{Selector: selector.MatchLabels, Template: &template}}, metav1.CreateOptions{})
		}},
		"DaemonSet": {"apps/v1", "web-x7k2p", func(in kubernetes.Interface, namespace string, root metav1.Object) (metav1.Object, error) {
			return in.AppsV1().DaemonSets(namespace).Create(t.Context(), &appsv1.DaemonSet{ObjectMeta: meta(root), Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template}}, metav1.CreateOptions{})
		}},
		"Job": {"batch/v1", "web-q4z8n", func(in kubernetes.Interface, namespace string, root metav1.Object) (metav1.Object, error) {
			return in.BatchV1().Jobs(namespace).Create(t.Context(), &batchv1.Job{ObjectMeta: meta(root), Spec: batchv1.JobSpec{Template: once}}, metav1.CreateOptions{})
		}},
	} {
		root, err := tc.make(above, team, nil)
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		leaf, err := tc.make(below, inEast, root)
		if err != nil {
			t.Fatalf("leaf of %s: %v", kind, err)
		}
		shown, err := s.east.CoreV1().Pods(inEast).Create(t.Context(), s.below(tc.pod, func(p *corev1.Pod) {
			p.OwnerReferences[0].APIVersion, p.OwnerReferences[0].Kind, p.OwnerReferences[0].UID = tc.apiVersion, kind, leaf.GetUID()
			p.Annotations[workloadv1alpha1.RevisionAnnotation] = "5d8c7b9f4" // only a Deployment has any
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
		}), metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("pod of %s: %v", kind, err)
		}
		shown.Status.Phase = corev1.PodSucceeded
		if _, err := s.east.CoreV1().Pods(inEast).UpdateStatus(t.Context(), shown, metav1.UpdateOptions{}); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		pod, err := above.CoreV1().Pods(team).Get(t.Context(), tc.pod, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("pod of %s: %v", kind, err)
		}
		want := []metav1.OwnerReference{{APIVersion: tc.apiVersion, Kind: kind, Name: "web", UID: root.GetUID(), Controller: ptr.To(true)}}
		if diff := cmp.Diff(want, pod.OwnerReferences); diff != "" || pod.Status.Phase != corev1.PodSucceeded {
			t.Errorf("%s: %s, owners (-want +got):\n%s", kind, pod.Status.Phase, diff)
		}
	}
}

// TestShownPodsOfAReplicaSet: a pod of a Deployment is of the workspace's ReplicaSet that it was made of, as far as that is there and
// the Deployment's, and of the Deployment when the ReplicaSet goes.
func TestShownPodsOfAReplicaSet(t *testing.T) {
	s := startShowing(t)
	const hash = "5d8c7b9f4"
	replicaSet := func(hash string, of types.UID) *appsv1.ReplicaSet {
		labels := map[string]string{"app": "web", appsv1.DefaultDeploymentUniqueLabelKey: hash}
		template := *s.root.Spec.Template.DeepCopy()
		template.Labels = labels
		set, err := s.shop.AppsV1().ReplicaSets(team).Create(t.Context(), &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: "web-" + hash, Labels: labels, OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: of, Controller: ptr.To(true)}}},
			Spec:       appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	set := replicaSet(hash, s.root.UID)
	replicaSet("another", "another")
	of := func(revision string) func(p *corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = "below"
			p.Annotations[workloadv1alpha1.RevisionAnnotation] = revision
		}
	}
	if _, err := s.east.CoreV1().Pods(inEast).Create(t.Context(), s.below("not-yet", of("other")), metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a pod whose ReplicaSet may come is shown: %v", err)
	}
	s.root.Status.ObservedGeneration = s.root.Generation
	if _, err := s.shop.AppsV1().Deployments(team).UpdateStatus(t.Context(), s.root, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	root := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: s.root.UID}
	alone := root
	alone.Controller = ptr.To(true)
	for name, tc := range map[string]struct {
		reason, revision, label string
		want                    []metav1.OwnerReference
	}{
		"of-it":     {"as in one cluster", hash, hash, []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: set.Name, UID: set.UID, Controller: ptr.To(true)}, root}},
		"not-there": {"it is not there any more", "other", "below", []metav1.OwnerReference{alone}},
		"anothers":  {"it is of an earlier Deployment", "another", "below", []metav1.OwnerReference{alone}},
		"unsaid":    {"its cluster's syncer does not know", "", "below", []metav1.OwnerReference{alone}},
	} {
		_, err := s.east.CoreV1().Pods(inEast).Create(t.Context(), s.below(name, of(tc.revision)), metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		pod, err := s.shop.CoreV1().Pods(team).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.want, pod.OwnerReferences); diff != "" || pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey] != tc.label || pod.Annotations[workloadv1alpha1.RevisionAnnotation] != "" {
			t.Errorf("%s: %s: labels %v, owners (-want +got):\n%s", name, tc.reason, pod.Labels, diff)
		}
	}
	// They count for the Deployment, whatever they are of.
	for i := range 3*2 + 20 - 4 {
		if _, err := s.east.CoreV1().Pods(inEast).Create(t.Context(), s.below(fmt.Sprint("web-", i), func(p *corev1.Pod) {
			p.Annotations[workloadv1alpha1.RevisionAnnotation] = hash
		}), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, time.Minute, "one more is refused", func() (string, bool) {
		_, err := s.east.CoreV1().Pods(inEast).Create(t.Context(), s.below("one-more", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return fmt.Sprint(err), apierrors.IsForbidden(err) && strings.Contains(err.Error(), "no more than 26 may be")
	})
}

// TestShownPodsAsWritten: a pod that is told below what its namespace is called here is shown as its author wrote it; of one whose author wrote the annotation
// nothing is changed.
func TestShownPodsAsWritten(t *testing.T) {
	s := startShowing(t)
	at := func(field string) *corev1.ObjectFieldSelector {
		return &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: field}
	}
	for name, tc := range map[string]struct{ annotation, want string }{
		"told": {team, kinds.NamespaceField}, "by-its-author": {"kube-system", kinds.ToldNamespaceField}, "without": {"", kinds.ToldNamespaceField},
	} {
		_, err := s.east.CoreV1().Pods(inEast).Create(t.Context(), s.below(name, func(p *corev1.Pod) {
			if tc.annotation != "" {
				p.Annotations[workloadv1alpha1.NamespaceAnnotation] = tc.annotation
			}
			p.Spec.ServiceAccountName = "default"
			p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "i", Env: []corev1.EnvVar{{Name: "N", ValueFrom: &corev1.EnvVarSource{FieldRef: at(kinds.ToldNamespaceField)}}}}}
			p.Spec.Volumes = []corev1.Volume{{Name: "pod", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "name", FieldRef: at("metadata.name")}, {Path: "namespace", FieldRef: at(kinds.ToldNamespaceField)},
			}}}}}
		}), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		shown, err := s.shop.CoreV1().Pods(team).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, has := shown.Annotations[workloadv1alpha1.NamespaceAnnotation]; has {
			t.Errorf("%s: it is shown with annotations %v", name, shown.Annotations)
		}
		files := shown.Spec.Volumes[0].DownwardAPI.Items
		if got := []string{shown.Spec.InitContainers[0].Env[0].ValueFrom.FieldRef.FieldPath, files[0].FieldRef.FieldPath, files[1].FieldRef.FieldPath}; !slices.Equal(got, []string{tc.want, "metadata.name", tc.want}) {
			t.Errorf("%s: it is shown to read %q, want %s", name, got, tc.want)
		}
		if shown.Spec.ServiceAccountName != "default" || len(shown.Spec.Containers) != 1 || shown.Spec.NodeName != "us-east-1" {
			t.Errorf("%s: of the rest is shown %+v", name, shown.Spec)
		}
	}
}

// TestShownPodsAsAdmitted: what an API server made of a pod when it was made below is shown as it is. It merges what matchLabelKeys and
// mismatchLabelKeys select by into the selectors beside them, once, and takes no pod of which that was done.
func TestShownPodsAsAdmitted(t *testing.T) {
	s := startShowing(t)
	const hash = appsv1.DefaultDeploymentUniqueLabelKey
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	term := corev1.PodAffinityTerm{TopologyKey: "zone", LabelSelector: selector, MatchLabelKeys: []string{hash}}
	others := corev1.PodAffinityTerm{TopologyKey: "zone", LabelSelector: selector, MismatchLabelKeys: []string{hash}}
	weighted := func(t corev1.PodAffinityTerm) []corev1.WeightedPodAffinityTerm {
		return []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: t}}
	}
	authored := s.below("web-5d8c7b9f4-x2x4z", func(p *corev1.Pod) {
		p.Labels[hash] = "5d8c7b9f4"
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector, MatchLabelKeys: []string{hash},
		}}
		p.Spec.Affinity = &corev1.Affinity{
			PodAffinity:     &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}, PreferredDuringSchedulingIgnoredDuringExecution: weighted(others)},
			PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{others}, PreferredDuringSchedulingIgnoredDuringExecution: weighted(term)},
		}
	})
	// A workspace's API server is a physical cluster's here: it is upstream's, too.
	admitted, err := s.shop.CoreV1().Pods(team).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "admitted", Labels: authored.Labels}, Spec: authored.Spec}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if merged := admitted.Spec.TopologySpreadConstraints[0].LabelSelector.MatchExpressions; len(merged) != 1 || merged[0].Key != hash {
		t.Fatalf("matchLabelKeys are not merged when a pod is made, but %v", merged)
	}
	later := s.below("web-5d8c7b9f4-k9q7d", nil)
	later.Labels, later.Spec = authored.Labels, *admitted.Spec.DeepCopy()
	for name, below := range map[string]*corev1.Pod{"merged": later, "not merged, as by one before v1.34": authored} {
		created, err := s.east.CoreV1().Pods(inEast).Create(t.Context(), below, metav1.CreateOptions{})
		if err != nil {
			t.Errorf("%s: a pod that runs is not shown: %v", name, err)
			continue
		}
		created.Status.Phase = corev1.PodRunning
		if _, err := s.east.CoreV1().Pods(inEast).UpdateStatus(t.Context(), created, metav1.UpdateOptions{}); err != nil {
			t.Errorf("%s: how it is, is not shown: %v", name, err)
		}
		shown, err := s.shop.CoreV1().Pods(team).Get(t.Context(), below.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(below.Spec.TopologySpreadConstraints, shown.Spec.TopologySpreadConstraints); diff != "" {
			t.Errorf("%s: shown are other constraints than it has (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(below.Spec.Affinity, shown.Spec.Affinity); diff != "" {
			t.Errorf("%s: shown is another affinity than it has (-want +got):\n%s", name, diff)
		}
	}
	_, err = s.shop.CoreV1().Pods(team).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "again", Labels: authored.Labels}, Spec: admitted.Spec}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("what is merged is made anew in the workspace: %v; want it invalid, as in any cluster", err)
	}
}

// checkForgedRows: whatever got marks into a pod, a mirror shows none as of a namespace that is not for the pod's.
func (s *showing) checkForgedRows(t *testing.T) {
	t.Helper()
	listed, err := s.east.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	events, err := s.east.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: listed.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	s.makeNamespace(t, shop, "other")
	if _, err := s.shop.CoreV1().ServiceAccounts("other").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ofOther := s.shop.CoreV1().Pods("other")
	for name, in := range map[string]string{"of-east": inEast, "of-none": "", "of-nowhere": "gone-1a"} {
		forged, err := ofOther.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{workloadv1alpha1.MirrorLabel: string(east)}, Annotations: map[string]string{workloadv1alpha1.MirrorNamespaceAnnotation: in}},
			Spec:       corev1.PodSpec{ServiceAccountName: "default", AutomountServiceAccountToken: ptr.To(false), Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		forged.Status.PodIP = "10.9.9.9"
		if _, err := ofOther.UpdateStatus(t.Context(), forged, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	listed, err = s.east.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(listed.Items) != 1 || listed.Items[0].Annotations[workloadv1alpha1.PodUIDAnnotation] != "uid-of-of-east" {
		t.Errorf("the mirror lists %v, %v; want the one that it shows", listed.Items, err)
	}
	if err := ofOther.Delete(t.Context(), "of-east", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// What is shown after them is the next that the mirror hears of.
	if _, err := s.east.CoreV1().Pods(inEast).Create(t.Context(), s.below("next", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := <-events.ResultChan(); e.Type != watch.Added || e.Object.(*corev1.Pod).Name != "next" {
		t.Errorf("the mirror hears of %s %+v; want no word of what it does not show", e.Type, e.Object)
	}
	if err := s.east.CoreV1().Pods(inEast).Delete(t.Context(), "next", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// checkLong: what is too long is not shown, however it became so; but that a pod is not Ready the server says of any.
func (s *showing) checkLong(t *testing.T) {
	t.Helper()
	ofEast := s.east.CoreV1().Pods(inEast)
	long, err := ofEast.Create(t.Context(), s.below("long", func(p *corev1.Pod) {
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "x", Value: strings.Repeat("x", 254<<10)}}
	}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	long.Status.Message = strings.Repeat("x", 4<<10)
	if _, err := ofEast.UpdateStatus(t.Context(), long, metav1.UpdateOptions{}); !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("%v, want a status refused that makes the pod too long", err)
	}
	if _, err := s.in(t, east).CoreV1().Pods(inEast).UpdateStatus(t.Context(), long, metav1.UpdateOptions{}); err != nil {
		t.Errorf("the server says what it is: %v", err)
	}
	if err := ofEast.Delete(t.Context(), "long", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// checkCostly: a mirror asks for nothing that reads the pods of all workspaces anew, or again and again.
func (s *showing) checkCostly(t *testing.T) {
	t.Helper()
	listed, err := s.east.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	exact := metav1.ListOptions{ResourceVersion: listed.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact}
	if _, err := s.east.CoreV1().Pods("").List(t.Context(), exact); !apierrors.IsResourceExpired(err) {
		t.Errorf("an earlier version: %v", err)
	}
	open := func(by kubernetes.Interface) (watch.Interface, error) {
		return by.CoreV1().RESTClient().Get().MaxRetries(0).Resource("pods").Param("watch", "true").Watch(t.Context())
	}
	var watches []watch.Interface
	for range 8 {
		w, err := open(s.east)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		watches = append(watches, w)
	}
	if w, err := open(s.east); !apierrors.IsTooManyRequests(err) {
		t.Errorf("one watch more: %v, %v", w, err)
	}
	if w, err := open(s.west); err != nil {
		t.Errorf("a watch of another mirror: %v", err)
	} else {
		w.Stop()
	}
	watches[0].Stop()
	waitFor(t, time.Minute, "a watch may follow one that ended", func() (string, bool) {
		w, err := open(s.east)
		if err == nil {
			w.Stop()
		}
		return fmt.Sprint(err), err == nil
	})
}
