package server

import (
	"maps"
	"slices"
	"strings"
	"sync"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-base/metrics"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// labelled are upstream's metrics that name what a request is for. Tenants choose the names of custom resources.
var labelled = map[string][]string{
	"apiserver_request_total":                           {"group", "version", "resource", "subresource"},
	"apiserver_request_body_size_bytes":                 {"group", "resource"},
	"apiserver_request_duration_seconds":                {"group", "version", "resource", "subresource"},
	"apiserver_request_slo_duration_seconds":            {"group", "version", "resource", "subresource"},
	"apiserver_request_sli_duration_seconds":            {"group", "version", "resource", "subresource"},
	"apiserver_request_terminations_total":              {"group", "version", "resource", "subresource"},
	"apiserver_request_aborts_total":                    {"group", "version", "resource", "subresource"},
	"apiserver_requested_deprecated_apis":               {"group", "version", "resource", "subresource"},
	"apiserver_longrunning_requests":                    {"group", "version", "resource", "subresource"},
	"apiserver_response_sizes":                          {"group", "version", "resource", "subresource"},
	"apiserver_selfrequest_total":                       {"group", "resource", "subresource"},
	"apiserver_watch_events_total":                      {"group", "version", "resource"},
	"apiserver_watch_events_sizes":                      {"group", "version", "resource"},
	"apiserver_watch_list_duration_seconds":             {"group", "version", "resource"},
	"apiserver_storage_list_total":                      {"group", "resource"},
	"apiserver_storage_decode_errors_total":             {"group", "resource"},
	"apiserver_storage_events_received_total":           {"group", "resource"},
	"apiserver_resource_objects":                        {"group", "resource"},
	"apiserver_resource_size_estimate_bytes":            {"group", "resource"},
	"etcd_request_duration_seconds":                     {"group", "resource"},
	"etcd_requests_total":                               {"group", "resource"},
	"etcd_request_errors_total":                         {"group", "resource"},
	"etcd_bookmark_counts":                              {"group", "resource"},
	"etcd_bookmark_total":                               {"group", "resource"},
	"apiserver_storage_list_fetched_objects_total":      {"group", "resource"},
	"apiserver_storage_list_evaluated_objects_total":    {"group", "resource"},
	"apiserver_storage_list_returned_objects_total":     {"group", "resource"},
	"apiserver_crd_conversion_webhook_duration_seconds": {"crd_name", "from_version", "to_version"},
}

// transformed is upstream's metric of what is encrypted and decrypted. Its resource has the group behind it.
const transformed = "apiserver_storage_transformation_operations_total"

// subresources are those of built-in resources, and of custom ones. A request that is for no resource has its path in this
// label when it is refused for being one too many.
var subresources = []string{
	"approval", "attach", "binding", "ephemeralcontainers", "eviction", "exec", "finalize", "log", "portforward", "proxy",
	"resize", "scale", "status", "token",
}

// boundLabels lets upstream's metrics have series for what is built in, and for all custom resources together one, whose
// labels are "unexpected". Metrics look it up when they are first used, and are the process's.
var boundLabels = sync.OnceFunc(func() {
	values := map[string]sets.Set[string]{
		"group": sets.New(""), "version": sets.New(""), "resource": sets.New(""), "subresource": sets.New("").Insert(subresources...),
		"crd_name": sets.New(""), "from_version": sets.New(""), "to_version": sets.New(""),
	}
	withGroup := sets.New("") // of what is neither
	for _, scheme := range []*runtime.Scheme{legacyscheme.Scheme, apiextensionsapiserver.Scheme} {
		for gvk := range scheme.AllKnownTypes() {
			plural, _ := meta.UnsafeGuessKindToResource(gvk)
			values["group"].Insert(gvk.Group)
			values["version"].Insert(gvk.Version)
			values["resource"].Insert(plural.Resource)
			withGroup.Insert(plural.GroupResource().String())
		}
	}
	// Rows that hold allocated addresses and ports have no kind of their own.
	values["resource"].Insert("serviceipallocations", "servicenodeportallocations")
	allowed := map[string]string{transformed + ",resource": strings.Join(slices.Sorted(maps.Keys(withGroup)), ",")}
	for metric, labels := range labelled {
		for _, label := range labels {
			allowed[metric+","+label] = strings.Join(slices.Sorted(maps.Keys(values[label])), ",")
		}
	}
	metrics.SetLabelAllowList(allowed)
})
