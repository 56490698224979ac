package builtin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	api "k8s.io/kubernetes/pkg/apis/core"
	registrypod "k8s.io/kubernetes/pkg/registry/core/pod"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// resizes are pods/resize. What a resize may change, upstream's strategy decides; of a pod that runs in a physical cluster it is
// marked what was changed, which the cluster's syncer carries down (docs/design/0007-pods.md).
type resizes struct {
	store *genericregistry.Store
}

var _ rest.Patcher = resizes{}

// newResizes returns a store of the same rows as pods, as upstream's ResizeREST has one.
func newResizes(pods podstore.PodStorage) resizes {
	store := *pods.Pod.Store
	store.UpdateStrategy = resizing{registrypod.ResizeStrategy}
	return resizes{&store}
}

// New is what is read of a request.
func (resizes) New() runtime.Object { return &api.Pod{} }

// Destroy leaves the store to pods.
func (resizes) Destroy() {}

// Get is for who patches.
func (r resizes) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	if inMirror(ctx) {
		return nil, errShown("resize")
	}
	return r.store.Get(ctx, name, options)
}

// Update changes the resources of a pod of a workspace. In a mirror nobody does: what is shown there is what the workspace has.
func (r resizes) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, validate rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	if inMirror(ctx) {
		return nil, false, errShown("resize")
	}
	return r.store.Update(withResizeAnswers(ctx), name, info, create, validate, false, options)
}

// resizing is upstream's strategy of pods/resize, which takes everything else off that was written, and marks what is left of a
// pod that runs in a physical cluster.
type resizing struct{ rest.RESTUpdateStrategy }

// PrepareForUpdate marks it before it is validated, and before admission asks the physical cluster of it.
func (s resizing) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	s.RESTUpdateStrategy.PrepareForUpdate(ctx, obj, old)
	now, isPod := obj.(*api.Pod)
	was, wasPod := old.(*api.Pod)
	if isPod && wasPod && was.Labels[workloadv1alpha1.MirrorLabel] != "" {
		markResized(now, was)
	}
}

// markResized marks what of a pod's resources is changed now, beside what was before.
func markResized(now, was *api.Pod) {
	before, err := kinds.ResizedOf(was)
	if err != nil {
		before = nil // nobody but this wrote it
	}
	after := kinds.ResizedBy(before, external(&was.Spec), external(&now.Spec))
	if after == nil {
		return
	}
	text, err := json.Marshal(after)
	if err != nil {
		panic(fmt.Sprintf("write what is resized of a pod: %v", err)) // quantities, by names
	}
	annotations := maps.Clone(now.Annotations) // it shares them with what was
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[workloadv1alpha1.ResizedAnnotation] = string(text)
	now.Annotations = annotations
}

// resizedOf returns what is marked as resized of a pod, if that is how its spec has it: a server of before this annotation lets
// its author write it.
func resizedOf(pod *api.Pod) string {
	text := pod.Annotations[workloadv1alpha1.ResizedAnnotation]
	if text == "" {
		return ""
	}
	if resized, err := kinds.ResizedOf(pod); err != nil || !resized.IsIn(external(&pod.Spec)) {
		return ""
	}
	return text
}

const (
	// mayResizePatience is how long who resizes a pod waits for what its physical cluster says to it, however often the write is
	// tried.
	mayResizePatience = 10 * time.Second
	// mostOfResizeRefusal is how much of a refusal is passed on, in bytes.
	mostOfResizeRefusal = 4 << 10
)

// resizeAnswers are what physical clusters have said within one request. A write that somebody else overtakes, as each status of
// the pod does, is tried again, with all that admission does: nobody is asked the same twice for that. One request is one
// goroutine.
type resizeAnswers struct {
	until time.Time // when nobody is asked any more; zero before the first
	said  map[resizeQuestion]resizeAnswer
}

// resizeQuestion is what a physical cluster is asked: of which pod there, and what is resized of it.
type resizeQuestion struct {
	uid     types.UID
	resized string
}

// resizeAnswer is what it says to that.
type resizeAnswer struct {
	code  int // 0 if it said nothing
	words string
}

type resizeAnswersKey struct{}

// withResizeAnswers has what physical clusters say to a resize remembered for as long as the request goes on.
func withResizeAnswers(ctx context.Context) context.Context {
	return context.WithValue(ctx, resizeAnswersKey{}, &resizeAnswers{said: map[resizeQuestion]resizeAnswer{}})
}

// MayResize asks the physical cluster that a pod of the request's logical cluster runs in whether it takes what is resized of the
// pod, and returns its words if it does not. Nothing is changed there. One that is away, or does not say, refuses nothing: as on
// one cluster whose Node is away, the pod is resized when it is back, and what it refuses then an Event tells (syncer/resize.go).
// A warning says that.
func (w *Ways) MayResize(ctx context.Context, pod *api.Pod) error {
	is := resizeQuestion{types.UID(pod.Annotations[workloadv1alpha1.PodUIDAnnotation]), pod.Annotations[workloadv1alpha1.ResizedAnnotation]}
	if is.resized == "" || is.uid == "" { // it does not run yet, and is made as it is by then
		return nil
	}
	answers, ok := ctx.Value(resizeAnswersKey{}).(*resizeAnswers)
	if !ok {
		answers = &resizeAnswers{said: map[resizeQuestion]resizeAnswer{}}
	}
	answer, known := answers.said[is]
	if !known {
		if answers.until.IsZero() {
			answers.until = time.Now().Add(mayResizePatience)
		}
		answer = w.askWhetherResized(ctx, answers.until, pod, is)
		answers.said[is] = answer
	}
	switch {
	case refusesResize(answer.code, answer.words):
		return errors.New(answer.words)
	case answer.code != http.StatusOK:
		warning.AddWarning(ctx, "", fmt.Sprintf("physical cluster %q did not say whether it resizes the pod, and is told to as soon as it can be: if it refuses, an Event of the pod says so (ResizeRefused)", pod.Spec.NodeName))
	}
	return nil
}

func (w *Ways) askWhetherResized(ctx context.Context, until time.Time, pod *api.Pod, is resizeQuestion) resizeAnswer {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	if ctx.Err() != nil {
		return resizeAnswer{} // who resizes has waited long enough
	}
	way, err := w.To(ctx, pod)
	if err != nil {
		return resizeAnswer{} // nobody can be asked now
	}
	code, words := askToResize(ctx, way, pod, is.uid, is.resized)
	return resizeAnswer{code, words}
}

// askToResize asks what answers for a pod at the paths of a kubelet, and returns its answer; 0 for none.
func askToResize(ctx context.Context, way http.RoundTripper, pod *api.Pod, uid types.UID, resized string) (code int, words string) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid}, "spec": json.RawMessage(resized)})
	if err != nil {
		return 0, ""
	}
	at := (&url.URL{Scheme: "http", Host: "kubelet", Path: "/"}).JoinPath("resize", pod.Namespace, pod.Name)
	req, err := http.NewRequestWithContext(ctx, http.MethodPatch, at.String(), bytes.NewReader(patch))
	if err != nil {
		return 0, ""
	}
	req.Header.Set("Content-Type", string(types.StrategicMergePatchType))
	answer, err := way.RoundTrip(req)
	if err != nil {
		return 0, ""
	}
	defer answer.Body.Close() //nolint:errcheck // only read
	said, err := io.ReadAll(io.LimitReader(answer.Body, mostOfResizeRefusal))
	if err != nil {
		return 0, ""
	}
	return answer.StatusCode, strings.TrimSpace(strings.ToValidUTF8(string(said), ""))
}

// refusesResize says whether an answer refuses a resize for what it is. That the pod is gone, that somebody else was quicker,
// that there is too much to do, that something does not answer, and that a webhook cannot be asked for nothing, is no refusal.
func refusesResize(code int, words string) bool {
	switch code {
	case http.StatusBadRequest:
		return !strings.Contains(words, "does not support dry run") // k8s.io/apiserver/pkg/admission/plugin/webhook/errors
	case http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity, http.StatusNotImplemented:
		return true
	}
	return false
}
