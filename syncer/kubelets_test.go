package syncer

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/test/framework"
)

// mirrorOfEast is the hub, as far as Kubelets read it: the mirror of east, which is the SyncTarget of that name in root.
type mirrorOfEast struct {
	ctrlclient.WithWatch
	mirror *corev1alpha1.LogicalCluster
	target *workloadv1alpha1.SyncTarget
}

func (h *mirrorOfEast) Get(ctx context.Context, key ctrlclient.ObjectKey, into ctrlclient.Object, _ ...ctrlclient.GetOption) error {
	at, _ := lcctx.ClusterFrom(ctx)
	switch into := into.(type) {
	case *corev1alpha1.LogicalCluster:
		if at.Name == "eastname" {
			h.mirror.DeepCopyInto(into)
			return nil
		}
	case *workloadv1alpha1.SyncTarget:
		if at.Name == "root" && key.Name == h.target.Name {
			h.target.DeepCopyInto(into)
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{Resource: "rows"}, key.Name)
}

func ready(status metav1.ConditionStatus, reason string) []metav1.Condition {
	return []metav1.Condition{{Type: workloadv1alpha1.SyncTargetReady, Status: status, Reason: reason, Message: "Get https://10.0.0.1: refused"}}
}

// newMirrorOfEast is where east is Ready, and the server has its kubeconfig.
func newMirrorOfEast() *mirrorOfEast {
	return &mirrorOfEast{
		mirror: &corev1alpha1.LogicalCluster{Spec: corev1alpha1.LogicalClusterSpec{
			Use: corev1alpha1.LogicalClusterUseMirror, Owner: &corev1alpha1.LogicalClusterOwner{Name: "east", Cluster: "root", UID: kubeletTarget},
		}},
		target: &workloadv1alpha1.SyncTarget{
			ObjectMeta: metav1.ObjectMeta{Name: "east", UID: kubeletTarget, Annotations: map[string]string{lcctx.Annotation: "root"}},
			Spec:       workloadv1alpha1.SyncTargetSpec{KubeconfigSecretRef: &corev1.SecretReference{Name: "east-kubeconfig"}},
			Status:     workloadv1alpha1.SyncTargetStatus{Mirror: "eastname", Conditions: ready(metav1.ConditionTrue, ReasonConnected)},
		},
	}
}

// rowOfShop is the pod of shop that shows podOfShop.
func rowOfShop() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: podOfShop.namespace, Name: podOfShop.below.Name, Labels: map[string]string{workloadv1alpha1.MirrorLabel: "eastname"},
		Annotations: map[string]string{
			logicalcluster.AnnotationKey: kubeletShop.String(), workloadv1alpha1.PodUIDAnnotation: string(podOfShop.uid),
			workloadv1alpha1.MirrorNamespaceAnnotation: podOfShop.below.Namespace,
		},
	}}
}

// TestKubeletsReach: a stream goes to the physical cluster whose mirror shows the pod, by what mirror and SyncTarget both say, and at once
// nowhere if that cluster is not Ready. What its owner wrote is not told to who asks.
func TestKubeletsReach(t *testing.T) {
	below := httptest.NewServer(newAPIBelow(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a line\n") }))
	t.Cleanup(below.Close)
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: below.URL}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	config.CurrentContext = "c"
	kubeconfig, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(*mirrorOfEast, *corev1.Pod, *corev1.Secret)
		code   int // 0: reached
		words  string
	}{
		"its cluster": {},
		"a pod of another mirror": {func(_ *mirrorOfEast, p *corev1.Pod, _ *corev1.Secret) {
			p.Labels[workloadv1alpha1.MirrorLabel] = "westname"
		}, 503, "not there"},
		"no mirror":                       {func(h *mirrorOfEast, _ *corev1.Pod, _ *corev1.Secret) { h.mirror.Spec.Use = "" }, 503, "not there"},
		"of a SyncTarget that was before": {func(h *mirrorOfEast, _ *corev1.Pod, _ *corev1.Secret) { h.mirror.Spec.Owner.UID = "before" }, 503, "not there"},
		"of one that has another mirror":  {func(h *mirrorOfEast, _ *corev1.Pod, _ *corev1.Secret) { h.target.Status.Mirror = "other" }, 503, "not there"},
		"never heard of":                  {func(h *mirrorOfEast, _ *corev1.Pod, _ *corev1.Secret) { h.target.Status.Conditions = nil }, 503, `"east" is not connected yet`},
		"lost": {func(h *mirrorOfEast, _ *corev1.Pod, _ *corev1.Secret) {
			h.target.Status.Conditions = ready(metav1.ConditionFalse, ReasonHeartbeatLost)
		}, 503, `"east" is not Ready (HeartbeatLost)`},
		"unknown": {func(h *mirrorOfEast, _ *corev1.Pod, _ *corev1.Secret) {
			h.target.Status.Conditions = ready(metav1.ConditionUnknown, ReasonNotConnected)
		}, 503, `"east" is not Ready (NotConnected)`},
		"synced from within": {func(h *mirrorOfEast, _ *corev1.Pod, _ *corev1.Secret) { h.target.Spec.KubeconfigSecretRef = nil }, 503, "pull"},
		"no kubeconfig":      {func(_ *mirrorOfEast, _ *corev1.Pod, s *corev1.Secret) { s.Name = "other" }, 503, "cannot be reached"},
		"one that runs a command": {func(_ *mirrorOfEast, _ *corev1.Pod, s *corev1.Secret) {
			s.Data["kubeconfig"] = []byte(strings.ReplaceAll(string(kubeconfig), "users: null", "users: [{name: u, user: {exec: {command: id, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}}}]"))
		}, 503, "cannot be reached"},
		"another pod": {func(_ *mirrorOfEast, p *corev1.Pod, _ *corev1.Secret) {
			p.Annotations[workloadv1alpha1.PodUIDAnnotation] = "other"
		}, 404, `"east"`},
	} {
		t.Run(name, func(t *testing.T) {
			hub, row := newMirrorOfEast(), rowOfShop()
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "east-kubeconfig"}, Data: map[string][]byte{"kubeconfig": kubeconfig}}
			if tc.change != nil {
				tc.change(hub, row, secret)
			}
			dial, err := NewKubelets(&client.Clients{Objects: hub, Kube: kubefake.NewClientset(secret)}).Reach(t.Context(), row)
			if tc.code != 0 {
				var status apierrors.APIStatus
				if !errors.As(err, &status) || int(status.Status().Code) != tc.code || !strings.Contains(err.Error(), tc.words) || strings.Contains(err.Error(), "10.0.0.1") {
					t.Errorf("%v, want %d and %q", err, tc.code, tc.words)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			hasALine(t, dial())
		})
	}
}

// hasALine asks for the log of podOfShop.
func hasALine(t *testing.T, conn net.Conn) {
	t.Helper()
	defer conn.Close() //nolint:errcheck // a test's
	if _, err := io.WriteString(conn, "GET /containerLogs/prod/web-1/app HTTP/1.1\r\nHost: east\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(res.Body); string(text) != "a line\n" || err != nil {
		t.Errorf("%s: %q %v", res.Status, text, err)
	}
}

// TestKubeletsReachThroughATunnel: a cluster that is synced from within, as long as its syncer holds a tunnel, and that takes streams.
func TestKubeletsReachThroughATunnel(t *testing.T) {
	below := httptest.NewServer(newAPIBelow(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a line\n") }))
	t.Cleanup(below.Close)
	hub := newMirrorOfEast()
	hub.target.Spec.KubeconfigSecretRef = nil
	kubelets := NewKubelets(&client.Clients{Objects: hub, Kube: kubefake.NewClientset()})
	var holding sync.WaitGroup
	hold := func() {
		ours, theirs := pair(t)
		end := &tunnelEnd{cluster: "east", target: kubeletTarget, physical: &rest.Config{Host: below.URL}}
		holding.Go(func() {
			if err := end.serve(t.Context(), theirs); err != nil {
				t.Error(err)
			}
		})
		holding.Go(func() { _ = kubelets.Hold(t.Context(), "eastname", ours) })
		framework.Eventually(t, 10*time.Second, "the tunnel is there", func() string {
			if !kubelets.Holds("eastname") {
				return "not yet"
			}
			return ""
		})
	}
	hold()
	dial, err := kubelets.Reach(t.Context(), rowOfShop())
	if err != nil {
		t.Fatal(err)
	}
	hasALine(t, dial())
	other := rowOfShop()
	other.Labels[workloadv1alpha1.MirrorLabel] = "westname"
	if _, err := kubelets.Reach(t.Context(), other); codeOf(err) != http.StatusServiceUnavailable {
		t.Errorf("a pod of another mirror: %v, want 503", err)
	}

	// One that takes no more streams, though some are open, makes room for the next.
	open, err := kubelets.Reach(t.Context(), rowOfShop())
	if err != nil {
		t.Fatal(err)
	}
	defer open().Close() //nolint:errcheck // a test's
	kubelets.tunnels.get("eastname").client.SetDoNotReuse()
	if kubelets.Holds("eastname") {
		t.Error("a tunnel that takes nothing is kept")
	}
	if _, err := kubelets.Reach(t.Context(), rowOfShop()); codeOf(err) != http.StatusServiceUnavailable {
		t.Errorf("with a tunnel that takes nothing: %v, want 503", err)
	}
	hold()
	if dial, err = kubelets.Reach(t.Context(), rowOfShop()); err != nil {
		t.Fatal(err)
	}
	hasALine(t, dial())
	kubelets.tunnels.get("eastname").close()
	holding.Wait()
}
