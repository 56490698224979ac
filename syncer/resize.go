package syncer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// What of a pod's resources is changed in its workspace (pods/resize) is changed of the pod below, whether that was made of a
// template or is bound. The row says what that is, and holds for it: what somebody below sets otherwise is set again. Whoever
// changes it was told at once what the physical cluster refuses, if it could be asked (relay.mayResize); what it refuses all the
// same an Event tells. So does one of what does not last there, such as where an autoscaler of that cluster sizes the same pod.

// resizeSubresource is the subresource of pods below, and the path of a kubelet here.
const resizeSubresource = "resize"

// The reasons of the events by which who resizes a pod learns that the physical cluster refuses it, or makes something else of
// it, and that somebody there undoes it.
const (
	reasonResizeRefused = "ResizeRefused"
	reasonResizeUndone  = "ResizeUndone"
)

// What they say where no API server has words for it.
const (
	resizedOtherwise = "the physical cluster takes it, and makes something else of it: an admission webhook or a policy there may. It is tried again"
	resizeUndone     = "something in the physical cluster, such as an autoscaler, sets the resources otherwise soon after. They are set again ever less often"
)

const (
	// undoneSoon is within what time of its success a resize that is lacking again counts as undone by somebody who will go on
	// to; and how long it waits in the end for its next turn. With the resizePolicy RestartContainer each turn ends a container.
	undoneSoon = 10 * time.Minute
	// firstUndone is how long it waits the first time; twice as long each time from then on.
	firstUndone = time.Second
	// mostTried is of how many pods of a physical cluster that is remembered, some 100 bytes of each: of more than an autoscaler of one
	// workspace resizes in its round, or it would be forgotten of others.
	mostTried = 16384
)

// Why somebody might not know of resizes.
const (
	noResizeBelow         = "it resizes no pods that run: Kubernetes does from v1.33 on"
	earlierSyncerNoResize = "its syncer is of an earlier version, which resizes no pods: apply its manifest anew"
)

// lacksSize says that a pod below has not the resources that were given to it in its workspace.
func lacksSize(shown, below *unstructured.Unstructured) bool {
	if shown == nil || below == nil || shown.GetDeletionTimestamp() != nil || below.GetDeletionTimestamp() != nil || hasEnded(below) ||
		shown.GetAnnotations()[workloadv1alpha1.PodUIDAnnotation] != string(below.GetUID()) {
		return false
	}
	resized, err := kinds.ResizedOf(shown)
	if err != nil || resized == nil {
		return false // the server wrote it: there is nothing that could be asked for
	}
	spec, ok := below.Object["spec"].(map[string]any)
	if !ok {
		return false // it is thin
	}
	var is corev1.PodSpec
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &is); err != nil {
		return false // as no pod is
	}
	return !resized.IsIn(&is)
}

// lacksWhatWasAdded says that a pod below has not all that was added to it, or changed of it, in its workspace.
func lacksWhatWasAdded(shown, below *unstructured.Unstructured) bool {
	return len(addedContainers(shown, below)) > 0 || lacksSize(shown, below)
}

// tried is what is remembered of the resizes of one pod below. It keeps two that size the same pod from undoing each other as
// fast as they can; who remembers nothing, as after a start, asks at once.
type tried struct {
	resized string    // what was asked for: asksFor
	taken   time.Time // when the physical cluster made the pod so; zero if it did not, or if it is known to be otherwise since
	undone  int       // how many times in a row it did not last, or was made otherwise at once
	altered bool      // the last of these was at once
	next    time.Time // no sooner is the same asked for again
}

// asksFor stands for what a row says is resized, which may be long.
func asksFor(shown *unstructured.Unstructured) string {
	sum := sha256.Sum256([]byte(shown.GetAnnotations()[workloadv1alpha1.ResizedAnnotation]))
	return string(sum[:])
}

// lacking is what is remembered when a fresh look at the pod shows that it has not what is resized.
func (t tried) lacking(resized string, now time.Time) tried {
	switch {
	case t.resized != resized, !t.taken.IsZero() && now.Sub(t.taken) >= undoneSoon:
		return tried{resized: resized}
	case t.taken.IsZero():
		return t
	}
	return t.again(now)
}

// again is it when what was asked for did not last, or was made otherwise.
func (t tried) again(now time.Time) tried {
	t.taken, t.altered = time.Time{}, false
	t.undone++
	t.next = now.Add(min(firstUndone<<min(t.undone-1, 16), undoneSoon))
	return t
}

// wait is how long it is until what is resized may be asked for.
func (t tried) wait(resized string, now time.Time) time.Duration {
	if t.resized != resized {
		return 0
	}
	return min(max(0, t.next.Sub(now)), undoneSoon) // the clock may have been turned back
}

// triedOf is what is remembered of a pod below.
func (s *Syncer) triedOf(below types.UID) tried {
	t, ok := s.tries.Get(below)
	if !ok {
		return tried{}
	}
	return t.(tried)
}

// waitsForResize says how long there is nothing to do for a pod, of which all is below but what is resized.
func (s *Syncer) waitsForResize(shown, below *unstructured.Unstructured) time.Duration {
	if len(addedContainers(shown, below)) > 0 {
		return 0
	}
	return s.triedOf(below.GetUID()).wait(asksFor(shown), s.config.Clock.Now())
}

// resize gives the pod below, as it is now, the resources that it lacks.
func (s *Syncer) resize(ctx context.Context, k key, asks, now *unstructured.Unstructured) error {
	if !lacksSize(asks, now) {
		return nil
	}
	uid, asked := now.GetUID(), asksFor(asks)
	event, undone := "resize-"+string(uid), "undone-"+string(uid)
	t := s.triedOf(uid).lacking(asked, s.config.Clock.Now())
	s.tries.Add(uid, t)
	switch {
	case t.undone == 0:
		s.toldOfPods.Remove(undone) // it would be news
	case !t.altered:
		s.tellPodRefused(ctx, k, uid, undone, reasonResizeUndone, &refusal{refusedInvalid, resizeUndone})
	}
	if wait := t.wait(asked, s.config.Clock.Now()); wait > 0 {
		s.queue.AddAfter(k, wait)
		return nil
	}
	resized, err := kinds.ResizedOf(asks)
	if err != nil {
		return err
	}
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid}, "spec": resized})
	if err != nil {
		return fmt.Errorf("write what is resized of %s: %w", k, err)
	}
	answered, err := s.physical.dynamic.Resource(podsGVR).Namespace(k.namespace).Patch(ctx, k.name, types.StrategicMergePatchType, data,
		metav1.PatchOptions{FieldManager: workloadv1alpha1.FieldManager}, resizeSubresource)
	switch {
	case err == nil && lacksSize(asks, answered):
		t = t.again(s.config.Clock.Now())
		t.altered = true
		s.tries.Add(uid, t)
		s.tellPodRefused(ctx, k, uid, event, reasonResizeRefused, &refusal{refusedInvalid, resizedOtherwise})
		s.queue.AddAfter(k, t.wait(asked, s.config.Clock.Now()))
		return nil
	case err == nil:
		t.taken, t.altered = s.config.Clock.Now(), false
		s.tries.Add(uid, t)
		s.toldOfPods.Remove(event) // the next refusal is news
		return nil
	case apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err):
		return nil // it is gone: its event brings us back
	case apierrors.IsNotFound(err): // not in an API server's words: it does not know of the subresource
		err = &refusal{refusedSchema, noResizeBelow}
	}
	// A conflict may be another pod of its name, which the next try sees, or a webhook's, or that of a quota.
	s.tellPodRefused(ctx, k, uid, event, reasonResizeRefused, err)
	return fmt.Errorf("resize %s: %w", k, err)
}

// statusOf is what is told of a pod's status: that below, but for the generations in it. They count what was changed of the spec
// there, and the row's what was changed of it in the workspace: its generation is told as observed when all of that is below, and
// observed there. Until then what was told before stays, as an API server leaves it.
func statusOf(shown, below *unstructured.Unstructured) any {
	status, ok := below.Object["status"].(map[string]any)
	if !ok || below.GetGeneration() == 0 || shown.GetGeneration() == 0 {
		return below.Object["status"]
	}
	lacks := lacksWhatWasAdded(shown, below)
	if !lacks && shown.GetGeneration() == 1 && below.GetGeneration() == 1 {
		return status // as nearly all are. Any other number that both have may be of different changes
	}
	// to gives a copy of fields the generation that is told of it, given what was told before.
	to := func(fields, before map[string]any) map[string]any {
		told := map[string]any{}
		for name, value := range fields {
			told[name] = value
		}
		is, _ := fields[observedGeneration].(int64)
		was, _ := before[observedGeneration].(int64)
		switch {
		case !lacks && is >= below.GetGeneration():
			told[observedGeneration] = shown.GetGeneration()
		case was > 0:
			told[observedGeneration] = was
		default:
			delete(told, observedGeneration)
		}
		return told
	}
	before, _ := shown.Object["status"].(map[string]any)
	told := to(status, before)
	conditions, _ := status["conditions"].([]any)
	if len(conditions) == 0 {
		return told
	}
	earlier, _ := before["conditions"].([]any)
	all := make([]any, len(conditions))
	for i, c := range conditions {
		condition, ok := c.(map[string]any)
		if !ok {
			all[i] = c
			continue
		}
		all[i] = to(condition, conditionOf(earlier, condition["type"]))
	}
	told["conditions"] = all
	return told
}

const observedGeneration = "observedGeneration"

// conditionOf returns the first condition of a type, nil if there is none.
func conditionOf(conditions []any, kind any) map[string]any {
	for _, c := range conditions {
		if condition, ok := c.(map[string]any); ok && condition["type"] == kind {
			return condition
		}
	}
	return nil
}

// mostOfResize is how long what is resized of a pod may be, in bytes.
const mostOfResize = 64 << 10

// mayResizeBelow is where the API server of the physical cluster is asked whether it takes a resize: nothing is changed there.
func (k *kubelet) mayResizeBelow(pod shownPod) *url.URL {
	at := k.host.JoinPath("api", "v1", "namespaces", pod.below.Namespace, "pods", pod.below.Name, resizeSubresource)
	at.RawQuery = url.Values{"dryRun": {metav1.DryRunAll}, "fieldManager": {workloadv1alpha1.FieldManager}}.Encode()
	return at
}

// mayResize answers whether the physical cluster takes a resize of the pod, with its words if it does not.
func (r *relay) mayResize(w http.ResponseWriter, req *http.Request, pod shownPod) {
	ctx, cancel := context.WithTimeout(req.Context(), r.patience)
	defer cancel()
	patch, err := io.ReadAll(http.MaxBytesReader(w, req.Body, mostOfResize))
	if err != nil {
		http.Error(w, fmt.Sprintf("%s: read what is resized, of at most %d bytes: %v", r.called(), mostOfResize, err), http.StatusRequestEntityTooLarge)
		return
	}
	ask, err := http.NewRequestWithContext(ctx, http.MethodPatch, r.at(pod, resizeSubresource, "", nil).String(), bytes.NewReader(patch))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	ask.Header.Set("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json")
	ask.Header.Set("Content-Type", string(types.StrategicMergePatchType))
	ask.Header.Set("User-Agent", workloadv1alpha1.FieldManager)
	answer, err := r.transport.RoundTrip(ask)
	if err != nil {
		r.refuseAway(ctx, w, err)
		return
	}
	defer answer.Body.Close() //nolint:errcheck // only read
	if answer.StatusCode == http.StatusOK {
		w.WriteHeader(http.StatusOK) // nothing of the pod below is anybody's to see here
		return
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, mostOfRefusal))
	if err != nil {
		r.refuseAway(ctx, w, err)
		return
	}
	code, words := r.noResizeInWords(pod.below.Name, answer.StatusCode, text)
	klog.FromContext(ctx).V(2).Info("A physical cluster does not take a resize", "cluster", r.cluster, "pod", pod.below, "code", answer.StatusCode, "words", string(text))
	http.Error(w, words, code)
}

// noResizeInWords is inWords for a resize that is refused. Of what is neither a Status nor a syncer's own words, nothing is
// shown: it may not be of an API server at all.
func (r *relay) noResizeInWords(pod string, code int, text []byte) (int, string) {
	words := messageOf(text)
	switch {
	case strings.HasPrefix(string(text), r.called()): // by the syncer that was asked
		words = string(text)
	case code == http.StatusNotFound && words == "": // where a subresource is not known, no API server says so in a Status
		code, words = http.StatusNotImplemented, r.noResize
	default:
		words = ofNobodyElse(pod, words)
	}
	return r.inWords(code, words)
}

// What the plugins of Kubernetes say to a resize that they forbid. All in it is of the pod, of its Node, and of its namespace.
var forbidsResize = regexp.MustCompile(`^(?:` +
	`node didn't have enough allocatable resources: (?:(?:; )?(?:cpu|memory), requested: \d+, allocatable: \d+)+` + // podresize
	`|pod resize is only supported on linux nodes, node "[-a-z0-9.]+" is "\w+"` +
	`|exceeded quota: [-a-z0-9.]+, requested: [-\w./=,]+, used: [-\w./=,]+, limited: [-\w./=,]+` + // resourcequota
	`|\[?(?:,? ?(?:minimum|maximum) [-\w./]+ usage per (?:Pod|Container) is \w+(?:, but (?:request|limit) is \w+|\.  No (?:request|limit) is specified)` + // limitranger
	`|,? ?[-\w./]+ max limit to request ratio per (?:Pod|Container) is \w+, but [\w. ]+)+\]?` +
	`)$`)

// Who else forbids something, by the beginning of what is said.
var (
	byWebhook = regexp.MustCompile(`^admission webhook "([-a-z0-9.]+)" (does not support dry run$)?`)
	byPolicy  = regexp.MustCompile(`^ValidatingAdmissionPolicy '([-a-z0-9.]+)' `)
)

// ofNobodyElse returns of what an API server says to a resize of a pod what can name nobody else: its own validation, what its
// own plugins say, and which right is missing. Webhooks and policies may say who has what was asked for. Which of these are
// others' names a Syncer knows, which has their namespaces (refusalIn); here nobody does. "" is for nothing.
func ofNobodyElse(pod, words string) string {
	const unsaid = "refuses it. The words are for administrators there, since they may name others"
	forbidden, is := strings.CutPrefix(words, fmt.Sprintf("pods %q is forbidden: ", pod))
	webhook, policy := byWebhook.FindStringSubmatch(words), byPolicy.FindStringSubmatch(forbidden)
	switch {
	case webhook != nil && webhook[2] != "", strings.HasPrefix(words, fmt.Sprintf("Pod %q is invalid", pod)), is && forbidsResize.MatchString(forbidden):
		return words
	case webhook != nil:
		return fmt.Sprintf("its admission webhook %q %s", webhook[1], unsaid)
	case policy != nil:
		return fmt.Sprintf("its ValidatingAdmissionPolicy %q %s", policy[1], unsaid)
	case is && strings.HasPrefix(forbidden, `User "`) && strings.Contains(forbidden, `cannot patch resource "pods/resize"`):
		return "its syncer needs the right to patch pods/resize there"
	case is:
		return "it " + unsaid
	}
	return ""
}
