package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"atoll.dev/atoll/test/framework"
)

// volume makes a PersistentVolume in a cluster that only claims of the workspace take: its class is the name of the workspace.
func (w *workspace) volume(cluster, name string) {
	w.t.Helper()
	api := w.f.clusters[cluster].Clientset()
	_, err := api.CoreV1().PersistentVolumes().Create(w.t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: w.app + "-" + name},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: w.app, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("3Gi")},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/nowhere"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatalf("make a volume in %s: %v", cluster, err)
	}
}

// claim is the manifest of a claim of the workspace's class.
func (w *workspace) claim() string {
	return strings.ReplaceAll(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: APP, labels: {app: APP}}
spec: {storageClassName: APP, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
`, "APP", w.app)
}

// mounting is the manifest of a Deployment that mounts the claim.
func (w *workspace) mounting(name string, replicas int) string {
	return strings.NewReplacer("APP", w.app, "NAME", name, "REPLICAS", fmt.Sprint(replicas)).Replace(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, labels: {app: APP}}
spec:
  replicas: REPLICAS
  selector: {matchLabels: {name: NAME}}
  template:
    metadata: {labels: {app: APP, name: NAME}}
    spec:
      containers:
      - name: web
        image: registry.example/web:1
        volumeMounts: [{name: data, mountPath: /data}]
      volumes:
      - {name: data, persistentVolumeClaim: {claimName: APP}}
---
`)
}

func (w *workspace) applies(manifests ...string) string {
	w.t.Helper()
	return w.kubectlWithInput(strings.Join(manifests, ""), "apply", "-f", "-")
}

// claimIn returns the claim in a cluster; nil if there is none.
func (w *workspace) claimIn(cluster string) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	list, err := w.f.clusters[cluster].Clientset().CoreV1().PersistentVolumeClaims("").List(w.t.Context(), metav1.ListOptions{LabelSelector: "app=" + w.app})
	if err != nil {
		w.t.Fatalf("list the claims of %s: %v", cluster, err)
	}
	if len(list.Items) == 0 {
		return nil
	}
	return &list.Items[0]
}

func (w *workspace) bound() {
	w.t.Helper()
	w.kubectl("wait", "--for=jsonpath={.status.phase}=Bound", "pvc/"+w.app, "--timeout=100s")
}

// claimBound: a claim goes where the first that mounts it goes, is bound there, and everything that mounts it runs there.
func claimBound(t *testing.T, f *fleet) {
	w := f.workspace(t, "bound")
	for _, cluster := range []string{"east", "west"} {
		w.volume(cluster, cluster)
	}
	w.place("east,west")
	manifests := []string{w.claim(), w.mounting("bound", 4)}
	for line := range strings.Lines(w.applies(manifests...)) {
		// Its volume was made by hand, and has the name of a class that is none.
		if strings.Contains(line, "Warning") && !strings.Contains(line, "names no StorageClass") {
			t.Errorf("who applies them is warned: %s", line)
		}
	}
	w.bound()
	w.rolledOut()
	in, other := "east", "west"
	if w.claimIn(in) == nil {
		in, other = other, in
	}
	w.spread(map[string]int{in: 4})
	down := w.claimIn(in)
	if down == nil || down.Spec.VolumeName != "bound-"+in || w.claimIn(other) != nil {
		t.Fatalf("the claim in %s is %+v, and in %s %+v", in, down, other, w.claimIn(other))
	}
	if out := strings.Fields(w.kubectl("get", "pvc", w.app, "--no-headers")); strings.Join(out[:5], " ") != "bound Bound bound-"+in+" 3Gi RWO" {
		t.Errorf("the claim is shown as %q", out)
	}
	w.show().ends(map[string]string{"east": "east 4/4,west 0/0", "west": "east 0/0,west 4/4"}[in])

	version := func() string {
		return w.kubectl("get", "pvc,deployment", "-o", "jsonpath={.items[*].metadata.resourceVersion}")
	}
	before := version()
	w.applies(manifests...)
	if now := version(); now != before {
		t.Errorf("a second apply changed versions from %s to %s", before, now)
	}

	w.applies(w.mounting("second", 1))
	w.kubectl("rollout", "status", "deployment/second", "--timeout=100s")
	w.spread(map[string]int{in: 5})

	// It may grow if its class says so, in the workspace and below.
	w.applies("{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: " + w.app + "}, provisioner: example.com/none, allowVolumeExpansion: true}")
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: w.app}, Provisioner: "example.com/none", AllowVolumeExpansion: ptr.To(true)}
	if _, err := f.clusters[in].Clientset().StorageV1().StorageClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.kubectl("patch", "pvc", w.app, "--type=merge", "-p", `{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`)
	framework.Eventually(t, patience, "the claim is to grow below", func() string {
		if now := w.claimIn(in); now.Spec.Resources.Requests.Storage().String() != "2Gi" || now.Spec.VolumeName != down.Spec.VolumeName || now.UID != down.UID {
			return fmt.Sprintf("it is %+v", now)
		}
		return ""
	})
}

// mountedStays: neither a claim nor what mounts it leaves the cluster where the data is, and what comes later does not start elsewhere.
func mountedStays(t *testing.T, f *fleet) {
	w := f.workspace(t, "mounted")
	w.volume("east", "east")
	w.volume("west", "west")
	w.place("east")
	w.applies(w.claim(), w.mounting("mounted", 2))
	w.bound()
	w.rolledOut()
	claim := w.claimIn("east")
	placed := func(deployment, want string) {
		t.Helper()
		framework.Eventually(t, patience, deployment+" says where it is, and why", func() string {
			if said := w.kubectl("get", "deployment", deployment, "-o", `jsonpath={.status.conditions[?(@.type=="Placed")]}`); !strings.Contains(said, want) || want == "" && said != "" {
				return said
			}
			return ""
		})
	}
	w.place("west")
	placed("mounted", `It stays on \"east\": its data is in volumes there`)
	framework.Eventually(t, patience, "its Placement says so", func() string {
		if out := w.kubectl("get", "placement", "default"); !strings.Contains(out, "east 2/2 Staying") {
			return out
		}
		return ""
	})
	w.kubectl("scale", "deployment/mounted", "--replicas=3")
	w.applies(w.mounting("later", 1))
	placed("later", `where it does not run: \"mounted\" on \"east\"`)
	w.spread(map[string]int{"east": 3})
	w.place("east,west")
	placed("mounted", "")
	w.kubectl("rollout", "status", "deployment/later", "--timeout=100s")
	w.spread(map[string]int{"east": 4})

	// The claim stays without anything that mounts it, and waits for what comes back.
	w.place("west")
	w.kubectl("delete", "deployment", "mounted", "later")
	w.spread(map[string]int{})
	w.place("east")
	w.applies(w.mounting("mounted", 1))
	w.rolledOut()
	if now := w.claimIn("east"); now == nil || now.UID != claim.UID || w.claimIn("west") != nil {
		t.Errorf("the claim in east is %+v", now)
	}
}

// claimInUse: a claim that is deleted goes below when its pods have gone, as in a cluster; one of its name comes after it. And the
// workspace takes its claims along.
func claimInUse(t *testing.T, f *fleet) {
	w := f.workspace(t, "used")
	w.volume("east", "first")
	w.place("east")
	w.applies(w.claim(), w.mounting("used", 1))
	w.bound()
	w.rolledOut()
	first := w.claimIn("east").UID
	w.kubectl("delete", "pvc", w.app)
	framework.Eventually(t, patience, "the claim is to go below", func() string {
		if now := w.claimIn("east"); now == nil || now.DeletionTimestamp == nil {
			return fmt.Sprintf("it is %+v", now)
		}
		return ""
	})
	w.applies(w.claim())
	framework.Eventually(t, patience, "the user is told what it waits for", func() string {
		if out := w.kubectl("get", "events", "--field-selector=reason=StillThere", "-o", "jsonpath={.items[*].message}"); !strings.Contains(out, `still on "east"`) {
			return out
		}
		return ""
	})
	if now := w.claimIn("east"); now == nil || now.UID != first || w.ready("east") != 1 {
		t.Errorf("while pods mount it the claim is %+v", now)
	}
	w.volume("east", "second")
	w.kubectl("delete", "deployment", "used")
	framework.Eventually(t, patience, "it is gone below", func() string {
		if now := w.claimIn("east"); now != nil && now.UID == types.UID(first) {
			return fmt.Sprintf("it is %+v", now)
		}
		return ""
	})
	w.applies(w.mounting("used", 1))
	w.bound()
	if now := w.claimIn("east"); now.UID == first || now.Spec.VolumeName != "used-second" {
		t.Errorf("the next claim is %+v", now)
	}
	f.MustRun("kubectl", "--context=root", "delete", "workspace", w.app, "--timeout=100s")
	w.gone("east")

	// As it does where nothing mounts them any more.
	w = f.workspace(t, "alone")
	w.volume("east", "first")
	w.place("east")
	w.applies(w.claim(), w.mounting("alone", 1))
	w.bound()
	w.kubectl("delete", "deployment", "alone")
	framework.Eventually(t, patience, "nothing is placed", func() string { return w.kubectl("get", "placements", "-o", "name") })
	if w.claimIn("east") == nil {
		t.Error("the claim went with what mounted it")
	}
	f.MustRun("kubectl", "--context=root", "delete", "workspace", w.app, "--timeout=100s")
	w.gone("east")
}
