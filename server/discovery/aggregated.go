package discovery

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apidiscoveryv2beta1 "k8s.io/api/apidiscovery/v2beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	apidiscoveryv2conversion "k8s.io/apiserver/pkg/apis/apidiscovery/v2"
	endpoints "k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// aggregatedMediaType asks for all groups, versions and resources in one document.
const aggregatedMediaType = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// aggregatedCodecs write the aggregated document in all versions that upstream serves.
var aggregatedCodecs = newAggregatedCodecs()

func newAggregatedCodecs() runtime.NegotiatedSerializer {
	scheme := runtime.NewScheme()
	utilruntime.Must(apidiscoveryv2.AddToScheme(scheme))
	utilruntime.Must(apidiscoveryv2beta1.AddToScheme(scheme))
	utilruntime.Must(apidiscoveryv2conversion.RegisterConversions(scheme))
	return serializer.NewCodecFactory(scheme)
}

// wanted returns the form of the aggregated document that a client asks for, and false if it asks for another document.
func wanted(req *http.Request) (negotiation.MediaTypeOptions, bool) {
	options, ok := negotiation.NegotiateMediaTypeOptions(req.Header.Get("Accept"), aggregatedCodecs.SupportedMediaTypes(), endpoints.DiscoveryEndpointRestrictions)
	return options, ok && endpoints.IsAggregatedDiscoveryGVK(options.Convert)
}

func wantsAggregated(req *http.Request) bool {
	_, ok := wanted(req)
	return ok
}

// serveAggregated answers /apis with all groups, versions and resources, or that they have not changed. It is for requests
// that want it.
func (h *Handler) serveAggregated(w http.ResponseWriter, req *http.Request, s surface) {
	metrics.InstrumentHandlerFunc(request.MethodGet, "", "", "", "apis", "", metrics.APIServerComponent, false, "",
		func(w http.ResponseWriter, req *http.Request) {
			options, _ := wanted(req)
			known, err := h.builtin.aggregated()
			if err != nil {
				h.fail(w, req, err)
				return
			}
			all := &apidiscoveryv2.APIGroupDiscoveryList{Items: allAggregated(known.groups, s)}
			etag, err := aggregatedETag(known.etag, s)
			if err != nil {
				h.fail(w, req, fmt.Errorf("make the ETag of all resources: %w", err))
				return
			}
			endpoints.ServeHTTPWithETag(all, etag, options.Convert.GroupVersion(), aggregatedCodecs, w, req)
		})(w, req)
}

// allAggregated returns the groups as allGroups does, with their resources. What known holds is shared.
func allAggregated(known []apidiscoveryv2.APIGroupDiscovery, s surface) []apidiscoveryv2.APIGroupDiscovery {
	all := make([]apidiscoveryv2.APIGroupDiscovery, 0, len(known)+len(s))
	isKnown := map[string]bool{}
	for _, group := range known {
		isKnown[group.Name] = true
		if custom := aggregatedVersions(group.Name, s); len(custom) > 0 {
			group.Versions = slices.Concat(custom, group.Versions)
		}
		all = append(all, group)
	}
	for _, name := range groupNames(s) {
		if !isKnown[name] {
			all = append(all, apidiscoveryv2.APIGroupDiscovery{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Versions: aggregatedVersions(name, s),
			})
		}
	}
	return all
}

func aggregatedVersions(group string, s surface) []apidiscoveryv2.APIVersionDiscovery {
	var found []apidiscoveryv2.APIVersionDiscovery
	for _, v := range s {
		if v.Group == group {
			found = append(found, v.aggregated())
		}
	}
	return found
}

// aggregatedETag is of what definitions add, and of the ETag that the document has without them.
func aggregatedETag(known string, s surface) (string, error) {
	added, err := json.Marshal(allAggregated(nil, s))
	if err != nil {
		return "", err
	}
	return etagOf(append(added, known...)), nil
}
