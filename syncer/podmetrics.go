package syncer

import (
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/fields"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// What pods use, a workspace reads through to the Metrics API of the physical cluster (docs/design/0015-resource-metrics.md). It is asked for by way of a pod
// that was found, as logs are, and is of that pod, or of all in its namespace, which was found to be there for the workspace's. Both are lists, so that it
// takes no right in the physical cluster that a syncer has not had before.
const (
	metricsOfPod       = "metrics of the pod"
	metricsOfNamespace = "metrics of the namespace"
)

// mostMetrics is how long an answer of the Metrics API may be, in bytes. What it says of a pod with one container takes half a KiB.
const mostMetrics = 8 << 20

// Why somebody might not know of metrics.
const (
	noMetricsAPI  = "it has no Metrics API: install metrics-server there"
	earlierSyncer = "its syncer is of an earlier version, which reads no metrics: apply its manifest anew"
)

// metricsBelow is where the API server of the physical cluster has them.
func (k *kubelet) metricsBelow(pod shownPod, of string) *url.URL {
	at := k.host.JoinPath("apis", "metrics.k8s.io", "v1beta1", "namespaces", pod.below.Namespace, "pods")
	if of == metricsOfPod {
		at.RawQuery = url.Values{"fieldSelector": {fields.OneTermEqualSelector("metadata.name", pod.below.Name).String()}}.Encode()
	}
	return at
}

// metrics answers with what the Metrics API says, up to a length: JSON, or a refusal in words.
func (r *relay) metrics(w http.ResponseWriter, req *http.Request, pod shownPod, of string) {
	ctx, cancel := context.WithTimeout(req.Context(), r.patience)
	defer cancel()
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, r.at(pod, of, "", nil).String(), nil)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	ask.Header.Set("Accept", "application/json")
	ask.Header.Set("User-Agent", workloadv1alpha1.FieldManager)
	answer, err := r.transport.RoundTrip(ask)
	if err != nil {
		r.refuseAway(ctx, w, err)
		return
	}
	defer answer.Body.Close() //nolint:errcheck // only read
	if kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type")); answer.StatusCode != http.StatusOK || kind != "application/json" {
		text, err := io.ReadAll(io.LimitReader(answer.Body, mostOfRefusal))
		if err != nil {
			r.refuseAway(ctx, w, err)
			return
		}
		code, words := r.noMetricsInWords(answer.StatusCode, text)
		http.Error(w, words, code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if n, err := io.Copy(w, io.LimitReader(answer.Body, mostMetrics+1)); err != nil || n > mostMetrics {
		panic(http.ErrAbortHandler) // who reads is to see that it has no end
	}
}

// noMetricsInWords is inWords for an answer of the Metrics API that is none. Of what is neither a Status nor a syncer's own words, nothing is shown: it may not be
// of an API server at all.
func (r *relay) noMetricsInWords(code int, text []byte) (int, string) {
	words := messageOf(text)
	said := strings.HasPrefix(string(text), r.called()) // by the syncer that was asked
	switch {
	case said:
		words = string(text)
	case code == http.StatusNotFound:
		code, words = http.StatusNotImplemented, r.noMetrics
	case code == http.StatusOK:
		words = "its Metrics API answers with something else than JSON"
	case code == http.StatusForbidden:
		words = fmt.Sprintf("its syncer needs the right to list pods of metrics.k8s.io there: %s", words)
	default:
		words = strings.TrimSuffix("its Metrics API does not answer: "+words, ": ")
	}
	return r.inWords(code, words)
}
