package discovery

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver"
	generatedopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilopenapi "k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// upstream is the API server of Kubernetes that serves custom resources, with what it is told of definitions and without a
// store: its own discovery and OpenAPI are what ours is held against.
type upstream struct {
	*genericapiserver.GenericAPIServer
}

// newUpstream returns one that runs until the test ends, if it has definitions: without them there is nothing to run.
func newUpstream(t *testing.T, definitions ...*apiextensionsv1.CustomResourceDefinition) upstream {
	t.Helper()
	told := httptest.NewServer(listOf(definitions))
	ctx, cancel := context.WithCancel(context.Background())
	// What runs stops before the server that it asks, whose watches would keep it open.
	t.Cleanup(told.Close)
	t.Cleanup(told.CloseClientConnections)
	t.Cleanup(cancel)

	config := genericapiserver.NewRecommendedConfig(apiserver.Codecs)
	config.EffectiveVersion = compatibility.DefaultKubeEffectiveVersionForTest()
	config.ExternalAddress = "127.0.0.1:6443"
	config.LoopbackClientConfig = &rest.Config{Host: told.URL}
	config.RESTOptionsGetter = noStore{}
	config.MergedResourceConfig = apiserver.DefaultAPIResourceConfigSource()
	config.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return filters.WithRequestInfo(api, c.RequestInfoResolver)
	}
	types := utilopenapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(generatedopenapi.GetOpenAPIDefinitions)
	namer := openapi.NewDefinitionNamer(apiserver.Scheme, scheme.Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(types, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(types, namer)
	s, err := (&apiserver.Config{
		GenericConfig: config,
		ExtraConfig:   apiserver.ExtraConfig{CRDRESTOptionsGetter: noStore{}, MasterCount: 1},
	}).Complete().New(genericapiserver.NewEmptyDelegate())
	if err != nil {
		t.Fatal(err)
	}
	s.GenericAPIServer.PrepareRun()
	if len(definitions) > 0 {
		s.GenericAPIServer.RunPostStartHooks(ctx)
		if !cache.WaitForCacheSync(t.Context().Done(), s.Informers.Apiextensions().V1().CustomResourceDefinitions().Informer().HasSynced) {
			t.Fatal("the definitions were not listed")
		}
	}
	return upstream{s.GenericAPIServer}
}

func (u upstream) swagger() (*spec.Swagger, error) { return u.StaticOpenAPISpec, nil }

// noStore stores nothing: nobody asks for objects.
type noStore struct{}

func (noStore) GetRESTOptions(gr schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	return generic.RESTOptions{
		StorageConfig: (&storagebackend.Config{}).ForResource(gr), ResourcePrefix: gr.Resource,
		Decorator: func(*storagebackend.ConfigForResource, string, func(runtime.Object) (string, error), func() runtime.Object,
			func() runtime.Object, storage.AttrFunc, storage.IndexerFuncs, *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
			return nil, func() {}, nil
		},
	}, nil
}

// listOf serves a list of definitions, and a watch without events, as long as its client wants it.
func listOf(definitions []*apiextensionsv1.CustomResourceDefinition) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		query := req.URL.Query()
		switch {
		case req.Method != http.MethodGet || query.Get("sendInitialEvents") != "":
			http.Error(w, "no", http.StatusUnprocessableEntity)
		case query.Get("watch") != "":
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-req.Context().Done()
		default:
			list := &apiextensionsv1.CustomResourceDefinitionList{
				TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinitionList"},
				ListMeta: metav1.ListMeta{ResourceVersion: "1"},
			}
			for _, d := range definitions {
				list.Items = append(list.Items, *d)
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(list)
		}
	})
}
