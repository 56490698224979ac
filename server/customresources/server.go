package customresources

import (
	"container/list"
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/storage"
	"atoll.dev/atoll/server/webhooks"
)

// definitions is the plural name of the resource, whose group is apiextensions.k8s.io.
const definitions = "customresourcedefinitions"

// Config is what custom resources are served with.
type Config struct {
	// Backend stores definitions and objects.
	Backend *storage.Backend
	// Generic is the API server that they become part of.
	Generic *genericapiserver.GenericAPIServer
	// Admission and Authorizer are those of all other resources.
	Admission  admission.Interface
	Authorizer authorizer.Authorizer
	// Builtin are the names of what is served by others; those of definitions themselves are added.
	Builtin Names
	// Webhooks calls those that convert.
	Webhooks *webhooks.Caller
	// Services says how the Services of a logical cluster are reached.
	Services func(lcctx.Cluster) webhooks.Service
	// Importing says whether an import fills a logical cluster; Server.Imported is told when none does any more.
	Importing func(context.Context, logicalcluster.Name) (bool, error)
	// RequestTimeout and MinRequestTimeout are the limits of ordinary requests and the least ones of watches;
	// MaxRequestBodyBytes of what is sent. As in genericapiserver.Config.
	RequestTimeout, MinRequestTimeout time.Duration
	MaxRequestBodyBytes               int64
}

// Server serves CustomResourceDefinitions and what they define in every logical cluster. It is an http.Handler for the
// requests that nothing built-in answers.
type Server struct {
	definitions *Definitions
	instances   *instances
	reconciler  *reconciler
}

// Install adds CustomResourceDefinitions to c.Generic, once for a server. Definitions that exist are known, and new ones
// established, while Run runs.
func Install(c Config) (*Server, error) {
	getter := c.Backend.Uncached(cutting{apiextensionsapiserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)})
	registry, err := customresourcedefinition.NewREST(apiextensionsapiserver.Scheme, getter)
	if err != nil {
		return nil, fmt.Errorf("store CustomResourceDefinitions: %w", err)
	}
	status := customresourcedefinition.NewStatusREST(apiextensionsapiserver.Scheme, registry)
	info := genericapiserver.NewDefaultAPIGroupInfo(apiextensions.GroupName, apiextensionsapiserver.Scheme, metav1.ParameterCodec, apiextensionsapiserver.Codecs)
	info.VersionedResourcesStorageMap[apiextensionsv1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		definitions: registry, definitions + "/status": status,
	}
	if err := c.Builtin.Add(&info); err != nil {
		return nil, err
	}
	if err := c.Generic.InstallAPIGroup(&info); err != nil {
		return nil, fmt.Errorf("install %s: %w", apiextensions.GroupName, err)
	}
	rows, ok := c.Backend.Resource(apiextensions.Resource(definitions))
	if !ok {
		return nil, fmt.Errorf("store CustomResourceDefinitions: no store is open")
	}
	s := &Server{definitions: newDefinitions(rows, c.Builtin)}
	s.instances = &instances{
		config: c, objects: c.Backend.Custom(unstructured.UnstructuredJSONScheme), models: info.StaticOpenAPISpec,
		isHeld: s.definitions.isHeld, most: instancesBytes, byHash: map[string]*instance{}, idle: list.New(),
	}
	s.instances.make = s.instances.serve
	s.reconciler = newReconciler(s.definitions, status, s.instances.objectsOf, func(ctx context.Context, def *Definition) (bool, error) {
		return c.Backend.HasRows(ctx, clusterOf(def), schema.GroupResource{Group: def.Spec.Group, Resource: def.Spec.Names.Plural})
	})
	s.reconciler.rows, s.reconciler.importing = c.Backend, c.Importing
	s.definitions.unheld = s.instances.drop
	s.definitions.changed = s.reconciler.onChange
	return s, nil
}

// Definitions are those of all logical clusters.
func (s *Server) Definitions() *Definitions { return s.definitions }

// InstanceBytes is how much memory what serves definitions counts for, by estimate.
func (s *Server) InstanceBytes() int64 {
	s.instances.mu.Lock()
	defer s.instances.mu.Unlock()
	return s.instances.bytes
}

// Imported ends those definitions of a logical cluster that are being deleted and waited for its import.
func (s *Server) Imported(cluster logicalcluster.Name) { s.reconciler.endAll(cluster) }

// Run keeps the definitions up to date, establishes new ones, and deletes the objects of those that are deleted, until
// ctx ends.
func (s *Server) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { s.definitions.run(ctx) })
	running.Go(func() { s.reconciler.run(ctx) })
}

// Stop ends what a Server has running of its own even if it is never run.
func (s *Server) Stop() { s.reconciler.stop() }

var _ http.Handler = &Server{}
