package server

import (
	"fmt"
	"sync"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/cached"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// serveOpenAPIv2 serves the document of OpenAPI v2 of the built-in types, and returns it to who adds to it. It is made when it is asked
// for first, by when generic must have them all. By itself the generic server makes it before it serves anything, an eighth of what a
// start costs, and keeps it for the few who ask.
func serveOpenAPIv2(generic *genericapiserver.GenericAPIServer, config *openapicommon.Config) func() (*spec.Swagger, error) {
	swagger := sync.OnceValues(func() (*spec.Swagger, error) {
		made, err := builder.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(generic.Handler.GoRestfulContainer.RegisteredWebServices()), config)
		if err != nil {
			return nil, fmt.Errorf("make the OpenAPI v2 document of the built-in types: %w", err)
		}
		made.Definitions = handler.PruneDefaults(made.Definitions)
		return made, nil
	})
	const version = "1" // it never changes
	handler.NewOpenAPIServiceLazy(cached.Func(func() (*spec.Swagger, string, error) {
		made, err := swagger()
		return made, version, err
	})).RegisterOpenAPIVersionedService("/openapi/v2", generic.Handler.NonGoRestfulMux)
	return swagger
}
