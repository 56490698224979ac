package server

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// judging is a kubelet that says whether pods may be resized.
type judging struct {
	mu    sync.Mutex
	code  int
	words string
	asked []string // path and body

	before func() // an answer; nil for nothing
}

func (j *judging) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.asked = append(j.asked, req.Method+" "+req.URL.Path+" "+string(body))
	if j.before != nil {
		j.before()
	}
	if j.code == http.StatusOK {
		return
	}
	http.Error(w, j.words, j.code)
}

// says has it answer so from now on, and forgets what it was asked.
func (j *judging) says(code int, words string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.code, j.words, j.asked = code, words, nil
}

func (j *judging) heard() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.asked
}

// startJudging is startShowing with pods that run in east, and what judges there: web-1, which is shown, and db, which was made
// in the workspace. Both ask for 100m of a CPU, and may use one.
func startJudging(t *testing.T) (*showing, *reaching, *judging) {
	t.Helper()
	s, judge := startShowing(t), &judging{code: http.StatusOK}
	kubelets := &reaching{server: httptest.NewServer(judge)}
	t.Cleanup(kubelets.server.Close)
	s.Server.kubelets = kubelets
	sized := func(p *corev1.Pod) {
		p.Spec.ServiceAccountName = "default" // as each pod is that runs
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: quantity("100m")}, Limits: corev1.ResourceList{corev1.ResourceCPU: quantity("1")},
		}
	}
	if _, err := s.east.CoreV1().Pods(inEast).Create(t.Context(), s.below("web-1", sized), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.bound(t, "db", sized)
	if err := s.told(t, "db", "uid-of-db"); err != nil {
		t.Fatal(err)
	}
	return s, kubelets, judge
}

// resize gives the container of a pod another request, as its owner, and writes whatever else is metadata.
func (s *showing) resize(t *testing.T, pod, cpu, metadata string) (*corev1.Pod, error) {
	t.Helper()
	text := fmt.Sprintf(`{"metadata":{%s},"spec":{"containers":[{"name":"c","image":"other","resources":{"requests":{"cpu":%q}}}]}}`, metadata, cpu)
	pods := s.owner(t).CoreV1().Pods(team)
	// A write begins with what the watch cache has, and is tried again if that was behind: the cluster would be asked of that, too.
	is, err := pods.Get(t.Context(), pod, metav1.GetOptions{})
	if err == nil {
		_, err = pods.Get(t.Context(), pod, metav1.GetOptions{ResourceVersion: is.ResourceVersion}) // which waits for it
	}
	if err != nil {
		t.Fatal(err)
	}
	return pods.Patch(t.Context(), pod, types.StrategicMergePatchType, []byte(text), metav1.PatchOptions{}, "resize")
}

// TestResize: who resizes a pod that runs in a physical cluster changes the row, which says what of it was changed, and nothing
// else; its syncer sees that. The cluster is asked first, and what it refuses, the answer says.
func TestResize(t *testing.T) {
	s, kubelets, judge := startJudging(t)
	marks := fmt.Sprintf(`"labels":{%q:%q,"mine":"now"},"annotations":{%q:"other",%q:"{}"}`, workloadv1alpha1.MirrorLabel, west, workloadv1alpha1.PodUIDAnnotation, workloadv1alpha1.ResizedAnnotation)
	mark := func(cpu string) string {
		return fmt.Sprintf(`{"containers":[{"name":"c","resources":{"requests":{"cpu":%q}}}]}`, cpu)
	}
	for _, pod := range []string{"web-1", "db"} {
		before, err := s.owner(t).CoreV1().Pods(team).Get(t.Context(), pod, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, there := before.Annotations[workloadv1alpha1.ResizedAnnotation]; there {
			t.Errorf("%s is resized at first: %v", pod, before.Annotations)
		}
		judge.says(http.StatusOK, "")
		now, err := s.resize(t, pod, "200m", marks)
		if err != nil {
			t.Fatalf("%s: %v", pod, err)
		}
		want := before.DeepCopy()
		want.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = quantity("200m")
		want.Annotations[workloadv1alpha1.ResizedAnnotation] = mark("200m")
		want.Generation++
		want.ResourceVersion, want.ManagedFields, now.ManagedFields = now.ResourceVersion, nil, nil
		if diff := cmp.Diff(want, now); diff != "" {
			t.Errorf("%s (-want +got):\n%s", pod, diff)
		}
		if diff := cmp.Diff([]string{"PATCH /resize/" + team + "/" + pod + ` {"metadata":{"uid":"uid-of-` + pod + `"},"spec":` + mark("200m") + "}"}, judge.heard()); diff != "" {
			t.Errorf("%s: asked of its cluster (-want +got):\n%s", pod, diff)
		}
		shown, err := s.east.CoreV1().Pods(inEast).Get(t.Context(), pod, metav1.GetOptions{})
		if err != nil || shown.Annotations[workloadv1alpha1.ResizedAnnotation] != mark("200m") || shown.Generation != now.Generation || shown.Spec.Containers[0].Resources.Requests.Cpu().String() != "200m" {
			t.Errorf("%s: %v: its syncer sees %+v", pod, err, shown)
		}

		for _, tc := range []struct {
			reason  string
			code    int
			words   string
			cpu     string
			refused bool
		}{
			{"it says no", http.StatusForbidden, `physical cluster "east": node didn't have enough allocatable resources`, "300m", true},
			{"it knows of none", http.StatusNotImplemented, `physical cluster "east": it resizes no pods`, "300m", true},
			{"it finds a fault", http.StatusUnprocessableEntity, `physical cluster "east": a fault`, "300m", true},
			{"it has a webhook that cannot be asked for nothing", http.StatusBadRequest, `physical cluster "east": admission webhook "w" does not support dry run`, "300m", false},
			{"it does not answer", http.StatusServiceUnavailable, `physical cluster "east" does not answer`, "310m", false},
			{"it has another pod of that name", http.StatusConflict, "another", "320m", false},
		} {
			judge.says(tc.code, tc.words)
			_, err := s.resize(t, pod, tc.cpu, "")
			if len(judge.heard()) == 0 || tc.refused != apierrors.IsForbidden(err) || tc.refused && !strings.Contains(err.Error(), tc.words) || !tc.refused && err != nil {
				t.Errorf("%s: %s: %v, asked %v", pod, tc.reason, err, judge.heard())
			}
			row, err := s.owner(t).CoreV1().Pods(team).Get(t.Context(), pod, metav1.GetOptions{})
			if got := row.Spec.Containers[0].Resources.Requests.Cpu().String(); err != nil || (got == tc.cpu) == tc.refused {
				t.Errorf("%s: %s: it has %s: %v", pod, tc.reason, got, err)
			}
		}

		// Nobody can be asked, and a warning says so.
		judge.says(http.StatusOK, "")
		kubelets.refusing(apierrors.NewServiceUnavailable("away"))
		warned := s.place(t, shop)
		cpu := func(cpu string) []byte {
			return fmt.Appendf(nil, `{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":%q}}}]}}`, cpu)
		}
		if _, err = warned.CoreV1().Pods(team).Patch(t.Context(), pod, types.StrategicMergePatchType, cpu("330m"), metav1.PatchOptions{}, "resize"); err != nil || !warned.told.containing(`physical cluster "us-east-1" did not say whether`) {
			t.Errorf("%s: while its cluster is away: %v, want a warning", pod, err)
		}
		kubelets.refusing(nil)
		if _, err = warned.CoreV1().Pods(team).Patch(t.Context(), pod, types.StrategicMergePatchType, cpu("340m"), metav1.PatchOptions{}, "resize"); err != nil || len(warned.told.take()) > 0 {
			t.Errorf("%s: as its cluster takes it: %v, want no warning", pod, err)
		}
		judge.says(http.StatusOK, "")
		kubelets.refusing(apierrors.NewServiceUnavailable("away"))
		now, err = s.resize(t, pod, "100m", "")
		if err != nil || now.Annotations[workloadv1alpha1.ResizedAnnotation] != mark("100m") || len(judge.heard()) > 0 {
			t.Errorf("%s: set back while its cluster is away: %v %+v, asked %v", pod, err, now, judge.heard())
		}
		kubelets.refusing(nil)

		// Nothing changes, and nobody is asked.
		if same, err := s.resize(t, pod, "0.1", ""); err != nil || same.ResourceVersion != now.ResourceVersion || len(judge.heard()) > 0 {
			t.Errorf("%s: resized to what it has: %v, version %s of %s, asked %v", pod, err, same.ResourceVersion, now.ResourceVersion, judge.heard())
		}
	}

	// One that is bound, and does not run yet, is made as it is by then.
	s.bound(t, "new", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: quantity("100m")}
	})
	if now, err := s.resize(t, "new", "150m", ""); err != nil || len(judge.heard()) > 0 {
		t.Errorf("one that does not run: %+v, %v, asked %v", now, err, judge.heard())
	}
	if shown, err := s.east.CoreV1().Pods(inEast).Get(t.Context(), "new", metav1.GetOptions{}); err != nil || shown.Spec.Containers[0].Resources.Requests.Cpu().String() != "150m" {
		t.Errorf("its syncer is to make %+v: %v", shown, err)
	}
}

// TestResizeIsAskedOnce: while a physical cluster thinks, the status of the pod is written, and goes on to be: each of these
// overtakes the resize, which is tried again. The cluster is asked once, and the resize is taken.
func TestResizeIsAskedOnce(t *testing.T) {
	s, _, judge := startJudging(t)
	written, stop, stopped := make(chan struct{}), make(chan struct{}), make(chan struct{})
	judge.before = func() { // some 1 s
		for range 3 {
			select {
			case <-written:
			case <-stopped:
			}
		}
	}
	go func() {
		defer close(stopped)
		every := time.NewTicker(300 * time.Millisecond)
		defer every.Stop()
		for i := 0; ; i++ {
			shown, err := s.east.CoreV1().Pods(inEast).Get(t.Context(), "db", metav1.GetOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			shown.Status.Message = fmt.Sprint(i)
			if _, err := s.east.CoreV1().Pods(inEast).UpdateStatus(t.Context(), shown, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
				t.Error(err)
				return
			}
			select {
			case written <- struct{}{}: // somebody thinks
			default:
			}
			select {
			case <-every.C:
			case <-stop:
				return
			}
		}
	}()
	now, err := s.resize(t, "db", "200m", "")
	close(stop)
	<-stopped
	if err != nil || now.Spec.Containers[0].Resources.Requests.Cpu().String() != "200m" {
		t.Errorf("%v: %+v", err, now)
	}
	if asked := judge.heard(); len(asked) != 1 {
		t.Errorf("its cluster was asked %d times, want once", len(asked))
	}

	// A status of before the resize meets a conflict, as any other that was overtaken.
	stale, err := s.east.CoreV1().Pods(inEast).Get(t.Context(), "db", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.resize(t, "db", "250m", ""); err != nil {
		t.Fatal(err)
	}
	stale.Status.Message = "of before"
	if _, err := s.east.CoreV1().Pods(inEast).UpdateStatus(t.Context(), stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("a status of before the resize: %v, want a conflict", err)
	}

	// What it refuses is remembered as well.
	judge.says(http.StatusForbidden, "no room")
	judge.mu.Lock()
	judge.before = func() {
		shown, err := s.east.CoreV1().Pods(inEast).Get(t.Context(), "db", metav1.GetOptions{})
		if err == nil {
			shown.Status.Message = "overtaken"
			_, err = s.east.CoreV1().Pods(inEast).UpdateStatus(t.Context(), shown, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Error(err)
		}
	}
	judge.mu.Unlock()
	if _, err := s.resize(t, "db", "300m", ""); !apierrors.IsForbidden(err) || len(judge.heard()) != 1 {
		t.Errorf("%v, asked %d times", err, len(judge.heard()))
	}
}

func (r *reaching) refusing(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = err
}

// TestWhoResizes: nobody but the server says what is resized, and nobody resizes in a mirror.
func TestWhoResizes(t *testing.T) {
	s, _, judge := startJudging(t)
	forged := map[string]string{workloadv1alpha1.ResizedAnnotation: `{"containers":[{"name":"c","resources":{"requests":{"cpu":"7"}}}]}`}
	_, err := s.owner(t).CoreV1().Pods(team).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "forged", Annotations: forged}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("a pod that is made with it: %v, want it forbidden", err)
	}
	text := []byte(`{"metadata":{"annotations":{"` + workloadv1alpha1.ResizedAnnotation + `":"{}"}}}`)
	if _, err := s.owner(t).CoreV1().Pods(team).Patch(t.Context(), "db", types.MergePatchType, text, metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("one that gets it: %v, want it forbidden", err)
	}
	shown, err := s.east.CoreV1().Pods(inEast).Get(t.Context(), "db", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	shown.Annotations[workloadv1alpha1.ResizedAnnotation] = forged[workloadv1alpha1.ResizedAnnotation]
	if _, err := s.east.CoreV1().Pods(inEast).UpdateStatus(t.Context(), shown, metav1.UpdateOptions{}); err != nil {
		t.Errorf("a syncer that tells it: %v, want that nothing is taken of it", err)
	}
	if _, err := s.east.CoreV1().Pods(inEast).Create(t.Context(), s.below("web-2", func(p *corev1.Pod) {
		p.Annotations[workloadv1alpha1.ResizedAnnotation] = forged[workloadv1alpha1.ResizedAnnotation]
	}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"db", "web-2"} {
		if row, err := s.owner(t).CoreV1().Pods(team).Get(t.Context(), name, metav1.GetOptions{}); err != nil || row.Annotations[workloadv1alpha1.ResizedAnnotation] != "" {
			t.Errorf("%s: %v %v, want that nothing is resized of it", name, err, row.Annotations)
		}
	}

	// What a server of before has let somebody write, is not how the pod is.
	for name, mark := range map[string]string{"more than it has": forged[workloadv1alpha1.ResizedAnnotation], "no JSON": "{"} {
		text := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, workloadv1alpha1.ResizedAnnotation, mark)
		if _, err := s.shop.CoreV1().Pods(team).Patch(t.Context(), "db", types.MergePatchType, text, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if shown, err := s.east.CoreV1().Pods(inEast).Get(t.Context(), "db", metav1.GetOptions{}); err != nil || shown.Annotations[workloadv1alpha1.ResizedAnnotation] != "" {
			t.Errorf("%s: %v, its syncer is told %v", name, err, shown.Annotations)
		}
	}

	resize := []byte(`{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"200m"}}}]}}`)
	if _, err := s.east.CoreV1().Pods(inEast).Patch(t.Context(), "db", types.StrategicMergePatchType, resize, metav1.PatchOptions{}, "resize"); !apierrors.IsForbidden(err) {
		t.Errorf("a syncer: %v, want it forbidden", err)
	}
	if _, err := s.in(t, east).CoreV1().Pods(inEast).Patch(t.Context(), "db", types.StrategicMergePatchType, resize, metav1.PatchOptions{}, "resize"); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("the server itself, in a mirror: %v, want that it is not served there", err)
	}
	if len(judge.heard()) > 0 {
		t.Errorf("the physical cluster was asked %v", judge.heard())
	}
}

// TestResizeIsJudgedHere: what Kubernetes says to a resize it says in a workspace, before the physical cluster is asked: its
// validation, by the status that comes from there, and the LimitRanges. ResourceQuotas are charged.
func TestResizeIsJudgedHere(t *testing.T) {
	s, _, judge := startJudging(t)
	s.countQuotas(t)
	owner := s.owner(t)
	patch := func(pod, resources string) error {
		_, err := owner.CoreV1().Pods(team).Patch(t.Context(), pod, types.StrategicMergePatchType, []byte(`{"spec":{"containers":[{"name":"c","resources":`+resources+`}]}}`), metav1.PatchOptions{}, "resize")
		return err
	}
	if _, err := owner.CoreV1().LimitRanges(team).Create(t.Context(), &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "most"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
		{Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{corev1.ResourceCPU: quantity("2")}},
	}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := owner.CoreV1().ResourceQuotas(team).Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
		corev1.ResourceRequestsCPU: quantity("500m"),
	}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	used := func() string {
		q, err := owner.CoreV1().ResourceQuotas(team).Get(t.Context(), "all", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		u, counted := q.Status.Used[corev1.ResourceRequestsCPU]
		return fmt.Sprint(u.String(), " ", counted)
	}
	waitUntil(t, "used at first", "200m true", used)

	for _, pod := range []string{"web-1", "db"} {
		judge.says(http.StatusOK, "") // who resizes by what a cache had of a pod asks, too, and is refused by what it has
		for _, tc := range []struct{ reason, resources, want string }{
			{"it would be of another class", `{"requests":{"cpu":"1","memory":"1Gi"},"limits":{"memory":"1Gi"}}`, "QOS"},
			{"neither CPU nor memory", `{"requests":{"example.com/gpu":"1"},"limits":{"example.com/gpu":"1"}}`, "only cpu and memory"},
			{"more than a LimitRange allows", `{"limits":{"cpu":"3"}}`, "maximum cpu usage per Container is 2"},
		} {
			if err := patch(pod, tc.resources); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %s: %v, want %q", pod, tc.reason, err, tc.want)
			}
		}
		if len(judge.heard()) > 0 {
			t.Errorf("%s: the physical cluster was asked %v", pod, judge.heard())
		}
		// A kubelet that knows of resizes says what its containers have.
		status := func(resources *corev1.ResourceRequirements) {
			shown, err := s.east.CoreV1().Pods(inEast).Get(t.Context(), pod, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			shown.Status.Phase = corev1.PodRunning
			shown.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Resources: resources, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
			if _, err := s.east.CoreV1().Pods(inEast).UpdateStatus(t.Context(), shown, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		status(nil)
		if err := patch(pod, `{"requests":{"cpu":"200m"}}`); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "without support for resize") {
			t.Errorf("%s: by an old kubelet: %v", pod, err)
		}
		status(&corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: quantity("100m")}})
	}

	// What the workspace's own policies refuse, nobody else is asked.
	s.place(t, shop).bind(t, `
metadata: {name: no-resizes}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: ["v1"], operations: ["UPDATE"], resources: ["pods/resize"]}]}
  validations: [{expression: "object.metadata.name != 'web-1'", message: not today}]
`, `
metadata: {name: no-resizes}
spec: {policyName: no-resizes, validationActions: [Deny]}
`)
	refused := func() string {
		judge.says(http.StatusForbidden, "no room")
		return fmt.Sprint(patch("web-1", `{"requests":{"cpu":"110m"}}`))
	}
	waitFor(t, 10*time.Second, "the policy refuses", func() (string, bool) {
		got := refused()
		return got, strings.Contains(got, "not today")
	})
	if len(judge.heard()) > 0 {
		t.Errorf("what a policy refuses: the physical cluster was asked %v", judge.heard())
	}
	if err := s.shop.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(t.Context(), "no-resizes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, 10*time.Second, "the policy refuses no more", func() (string, bool) {
		got := refused()
		return got, strings.Contains(got, "no room")
	})
	judge.says(http.StatusOK, "")

	if err := patch("db", `{"requests":{"cpu":"500m"}}`); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: all") {
		t.Errorf("more than a ResourceQuota allows: %v", err)
	}
	judge.says(http.StatusForbidden, "no room")
	if err := patch("db", `{"requests":{"cpu":"400m"}}`); !apierrors.IsForbidden(err) || used() != "200m true" {
		t.Errorf("what the physical cluster refuses: %v, and used is %s, want nothing charged", err, used())
	}
	judge.says(http.StatusOK, "")
	if err := patch("db", `{"requests":{"cpu":"400m"}}`); err != nil || used() != "500m true" {
		t.Errorf("what there is room for: %v, and used is %s, want 500m", err, used())
	}
	if err := patch("web-1", `{"requests":{"cpu":"200m"}}`); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: all") {
		t.Errorf("another pod: %v", err)
	}
	// What it had counts until it has less.
	if err := patch("db", `{"requests":{"cpu":"50m"}}`); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "used while its kubelet has more", "200m true", used)
	shown, err := s.east.CoreV1().Pods(inEast).Get(t.Context(), "db", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	shown.Status.ContainerStatuses[0].Resources.Requests[corev1.ResourceCPU] = quantity("50m")
	if _, err := s.east.CoreV1().Pods(inEast).UpdateStatus(t.Context(), shown, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "used at last", "150m true", used)
}
