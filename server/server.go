package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/kcp-dev/logicalcluster/v3"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/healthz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilopenapi "k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/client-go/rest"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/klog/v2"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/capabilities"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	builtinopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	"k8s.io/kubernetes/pkg/kubeapiserver"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/utils/clock"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	atollopenapi "atoll.dev/atoll/apis/openapi"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/server/admission"
	"atoll.dev/atoll/server/atollapis"
	"atoll.dev/atoll/server/builtin"
	"atoll.dev/atoll/server/customresources"
	"atoll.dev/atoll/server/discovery"
	"atoll.dev/atoll/server/endpoints"
	"atoll.dev/atoll/server/expressions"
	"atoll.dev/atoll/server/fairness"
	"atoll.dev/atoll/server/garbage"
	"atoll.dev/atoll/server/identity"
	"atoll.dev/atoll/server/nodes"
	"atoll.dev/atoll/server/resourcemetrics"
	"atoll.dev/atoll/server/storage"
	"atoll.dev/atoll/server/webhooks"
)

const (
	// SystemAdminCluster is the logical cluster of the installation itself.
	SystemAdminCluster = logicalcluster.Name("system:admin")
	// rootCluster is that of the workspace that holds all others.
	rootCluster = logicalcluster.Name("root")

	// idleTimeout of connections in memory.
	idleTimeout = 90 * time.Second
	// etcdPatience is how long one check of health waits, kube-apiserver's for etcd.
	etcdPatience = 2 * time.Second
	// watchGrace is how long a stopping server waits for its open watches to end.
	watchGrace = 2 * time.Second
)

// Server serves all logical clusters of one installation.
type Server struct {
	options     *Options
	listener    net.Listener
	generic     *genericapiserver.GenericAPIServer
	backend     *storage.Backend
	nodes       *nodes.Nodes
	fairness    *fairness.Fairness
	custom      *customresources.Server
	webhooks    *webhooks.Caller
	ways        *builtin.Ways
	loopback    *loopback
	syncers     syncerTokens
	serializer  runtime.NegotiatedSerializer
	keys        *pki
	trusted     []byte // authorities of what clients are shown, as PEM
	admin       []byte // certificate in the administrator's kubeconfig; New writes it, and then whoever renews it
	syncerKeys  *pki   // signs for syncers outside this process, and for nobody else
	tokens      *identity.Tokens
	ended       *identity.Ended
	reviewer    authenticator.Request // answers TokenReviews
	directory   Directory
	placer      Placer
	credentials Credentials
	kubelets    Kubelets
	kinds       *garbage.Custom
	url         string
	swagger     func() (*spec.Swagger, error) // OpenAPI v2 of the built-in types
	etcd        *clientv3.Client
	lookups     chan struct{}   // holds one for each request that asks etcd for its logical cluster
	stopping    chan struct{}   // closed when Run's context ends
	drained     <-chan struct{} // closed when the last request is answered, before what it was answered from is
	served      chan struct{}   // closed when that is
	id          string          // of this process, where there may be other servers

	// workspaceKeys sign for users of workspaces, each of one, and for nobody else.
	workspaceKeys *pki

	stopEncrypting func()                  // nil until values can be encrypted
	rewrites       *rewrites               // nil if nothing is encrypted
	noKMS          error                   // why key management did not answer at the start, nil if it did
	keyManagement  []healthz.HealthChecker // of --encryption-provider-config

	// configurations are the webhooks and admission policies of all logical clusters.
	configurations *admission.Configurations
	authorizer     *clusterAuthorizer
	requests       *requester // of this process to itself
}

// New builds the server over an etcd, takes its port, and writes the administrator's kubeconfig. Join comes
// before Run.
func New(ctx context.Context, o *Options, etcd *clientv3.Client) (*Server, error) {
	boundLabels()
	expressions.Environment() // before anything is compiled in it
	if err := refuseFeatures(); err != nil {
		return nil, err
	}
	keys, err := loadPKI(o.pkiDirectory())
	if err != nil {
		return nil, err
	}
	syncerKeys, err := loadPKI(filepath.Join(o.pkiDirectory(), "syncers"))
	if err != nil {
		return nil, err
	}
	workspaceKeys, err := loadPKI(filepath.Join(o.pkiDirectory(), "workspaces"))
	if err != nil {
		return nil, err
	}
	listener, err := listen(o)
	if err != nil {
		return nil, err
	}
	port := listener.Addr().(*net.TCPAddr).Port
	address := net.JoinHostPort(o.externalHost(), strconv.Itoa(port))
	s := &Server{
		options: o, listener: listener, loopback: newLoopback(), serializer: legacyscheme.Codecs,
		keys: keys, syncerKeys: syncerKeys, workspaceKeys: workspaceKeys, url: "https://" + address, etcd: etcd, lookups: make(chan struct{}, lookupsAtOnce), ended: identity.NewEnded(), stopping: make(chan struct{}), served: make(chan struct{}),
	}
	keys.clock = o.clock
	if o.SharedStore {
		s.id = uuid.NewString()
	}
	if s.trusted, err = s.loadGivenCertificate(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	err = s.assemble(ctx, etcd, address)
	if err != nil && s.noKMS != nil {
		err = fmt.Errorf("%w (the key management of --encryption-provider-config %q does not answer: %w)", err, o.Encryption.ConfigFile, s.noKMS)
	}
	if err == nil {
		err = s.writeAdminKubeconfig()
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close gives up the port and ends what New started over etcd, for whoever cannot Run what New returned. After Run there is
// nothing left to close. Further calls do nothing.
func (s *Server) Close() error {
	if s.generic != nil {
		s.generic.Destroy()
	}
	if s.custom != nil {
		s.custom.Stop()
	}
	if s.backend != nil {
		s.backend.Destroy()
	}
	if s.stopEncrypting != nil {
		s.stopEncrypting()
	}
	if err := s.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close the port %s: %w", s.listener.Addr(), err)
	}
	return nil
}

// writeAdminKubeconfig writes it if it has to be another: at a start, and when the administrator's certificate was made anew.
func (s *Server) writeAdminKubeconfig() error {
	admin, err := s.keys.client("admin", "admin", user.SystemPrivilegedGroup)
	if err != nil || bytes.Equal(admin.certPEM, s.admin) {
		return err
	}
	if err := writeAdminKubeconfig(s.options.AdminKubeconfig(), s.url, s.trusted, admin); err != nil {
		return err
	}
	s.admin = admin.certPEM
	return nil
}

// otherCertificates makes those anew that are near their end and that the server does not serve with, each by what it is for.
func (s *Server) otherCertificates() map[string]func() error {
	others := map[string]func() error{"the administrator's kubeconfig": s.writeAdminKubeconfig}
	if s.options.etcdTLS {
		others["the embedded etcd"] = func() error {
			_, err := s.keys.etcd()
			return err
		}
	}
	return others
}

func listen(o *Options) (net.Listener, error) {
	address := net.JoinHostPort(o.BindAddress.String(), strconv.Itoa(o.SecurePort))
	listener, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen on %s: another process has the port: stop it, or choose another with --secure-port (0 takes a free one)", address)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("listen on %s: this machine has no such address: give one that it has with --bind-address, or 0.0.0.0 for all of them", address)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listen on %s: %w: choose another port with --secure-port", address, err)
	case err != nil:
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return listener, nil
}

// CanListen returns the error with which New would fail to listen, before there is anything else that such a start leaves.
func CanListen(o *Options) error {
	listener, err := listen(o)
	if err != nil {
		return err
	}
	return listener.Close()
}

// privileged pods may be asked for in any workspace: what a pod may do is decided where it runs, by the Pod Security
// level of its namespace in the physical cluster.
var privileged = sync.OnceFunc(func() { capabilities.Setup(true, 0) })

func (s *Server) assemble(ctx context.Context, etcd *clientv3.Client, address string) error {
	privileged()
	version := compatibility.DefaultComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
	resources := apiResources()
	factory, err := storageFactory(version, resources)
	if err != nil {
		return err
	}
	config := genericapiserver.NewConfig(legacyscheme.Codecs)
	var encrypting context.Context
	encrypting, s.stopEncrypting = context.WithCancel(context.WithoutCancel(ctx))
	transformers, err := s.encrypt(ctx, encrypting, config)
	if err != nil {
		return err
	}
	if s.fairness, err = fairness.New(fairness.Config{
		Seats: s.options.MaxRequestsInFlight, SeatsPerWorkspace: s.options.MaxRequestsInFlightPerWorkspace,
		Watches: s.watchesLimit, Called: s.called, Refuse: s.answer,
	}); err != nil {
		return err
	}
	if s.backend, s.nodes, err = newBackend(etcd, factory, transformers, s.storageLimits, s.called, s.fairness.Listed, s.ended); err != nil {
		return err
	}
	if err := s.join(ctx); err != nil {
		return err
	}
	if s.webhooks, err = s.options.webhookCaller(); err != nil {
		return err
	}
	s.configurations = admission.NewConfigurations(storedObjects{s.backend})

	// Not among what /readyz looks at: who is not ready is sent no requests, and deletions are what a full store needs.
	asksSpace := newProbe(time.Second, clock.RealClock{}, func(ctx context.Context) error { return hasSpace(ctx, etcd.Endpoints(), etcd.Status) })
	config.HealthzChecks = append(config.HealthzChecks, healthz.NamedCheck("etcd-space", func(req *http.Request) error {
		return asksSpace.check(req.Context())
	}))
	if damage := s.options.StoreDamage; damage != nil {
		// Nor is this: one object that is damaged is no reason to keep everybody from all others.
		config.HealthzChecks = append(config.HealthzChecks, healthz.NamedCheck("etcd-rows", func(*http.Request) error { return damage() }))
	}
	config.EffectiveVersion = version
	s.drained = config.DrainedNotify()
	config.ExternalAddress = address
	config.LoopbackClientConfig = s.loopback.config
	config.RESTOptionsGetter = s.backend
	config.MergedResourceConfig = resources
	config.MaxRequestsInFlight, config.MaxMutatingRequestsInFlight = 0, 0 // fairness bounds them
	config.JSONPatchMaxCopyBytes = mostCopiesOfPatch
	config.ShutdownDelayDuration, config.ShutdownSendRetryAfter = s.options.ShutdownDelay, s.options.ShutdownSendRetryAfter
	// Open watches end with the server, and do not delay it until the limit of ordinary requests.
	config.ShutdownWatchTerminationGracePeriod = watchGrace
	config.LongRunningFunc = longRunning(filters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"), sets.NewString("attach", "exec", "proxy", "log", "portforward", workloadv1alpha1.TunnelSubresource)))
	config.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		api = s.withTunnel(s.withHome(s.withDiscovery(s.withEndOfLog(api))))
		api = s.withBodies(api, c.LongRunningFunc, c.MaxRequestBodyBytes)
		api = s.withNoCluster(s.withEndOfCredential(api, c.LongRunningFunc))
		api = s.fairness.Around(withCharges(api), c.LongRunningFunc, c.RequestTimeout)
		api = s.asAttendant(api, c.LongRunningFunc)
		return s.withRoom(s.withLogicalCluster(genericapiserver.DefaultBuildHandlerChain(api, c), c.Authentication.Authenticator))
	}
	definitions := utilopenapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(openAPIDefinitions)
	namer := openapi.NewDefinitionNamer(legacyscheme.Scheme, apiextensionsapiserver.Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	config.OpenAPIConfig.Info.Title = "Atoll"
	config.OpenAPIConfig.GetDefinitionName = atollapis.DefinitionNames(config.OpenAPIConfig.GetDefinitionName)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	config.OpenAPIV3Config.Info.Title = "Atoll"
	config.OpenAPIV3Config.GetDefinitionName = atollapis.DefinitionNames(config.OpenAPIV3Config.GetDefinitionName)
	if err := s.secure(ctx, config); err != nil {
		return err
	}
	if err := s.options.Audit.ApplyTo(config); err != nil {
		return fmt.Errorf("set up the audit log: %w", err)
	}
	if err := s.options.Tracing.ApplyTo(nil, config); err != nil {
		return fmt.Errorf("set up tracing by --tracing-config-file %q: %w", s.options.Tracing.ConfigFile, err)
	}
	providers, err := s.authorize(config)
	if err != nil {
		return err
	}
	if config.AdmissionControl, err = s.admit(config.Authorization.Authorizer); err != nil {
		return err
	}

	completed := config.Complete(nil)
	openAPIv2 := completed.OpenAPIConfig
	completed.OpenAPIConfig = nil // it would make the document at once
	s.generic, err = completed.New("atoll", genericapiserver.NewEmptyDelegateWithCustomHandler(http.HandlerFunc(s.notBuiltin)))
	if err != nil {
		return fmt.Errorf("assemble the API server: %w", err)
	}
	s.swagger = serveOpenAPIv2(s.generic, openAPIv2)
	apis := &controlplaneapiserver.Server{
		GenericAPIServer: s.generic, APIResourceConfigSource: resources, RESTOptionsGetter: s.backend,
	}
	builtins := customresources.Names{}
	if err := apis.InstallAPIs(withNames(providers, builtins)...); err != nil {
		return fmt.Errorf("install the APIs: %w", err)
	}
	s.generic.Handler.NonGoRestfulMux.UnlistedHandle(BackupPath, http.HandlerFunc(s.serveBackup))
	s.generic.Handler.NonGoRestfulMux.UnlistedHandle(ExportPath, http.HandlerFunc(s.serveExport))
	s.generic.Handler.NonGoRestfulMux.UnlistedHandle(ImportPath, http.HandlerFunc(s.serveImport))
	builtinKinds, err := garbage.NewBuiltin(s.backend.Resources(), resources)
	if err != nil {
		return fmt.Errorf("know the kinds of what is stored: %w", err)
	}
	for _, path := range []string{serviceaccount.OpenIDConfigPath, serviceaccount.JWKSPath} {
		s.generic.Handler.NonGoRestfulMux.HandleFunc(path, s.describeIssuer)
	}
	if s.custom, err = customresources.Install(customresources.Config{
		Backend: s.backend, Generic: s.generic, Builtin: builtins, Webhooks: s.webhooks, Services: admission.Services(storedObjects{s.backend}, s.ways),
		Importing: s.importing,
		Admission: config.AdmissionControl, Authorizer: config.Authorization.Authorizer,
		RequestTimeout: config.RequestTimeout, MinRequestTimeout: time.Duration(config.MinRequestTimeout) * time.Second,
		MaxRequestBodyBytes: config.MaxRequestBodyBytes,
	}); err != nil {
		return fmt.Errorf("install custom resources: %w", err)
	}
	asksEtcd := newProbe(time.Second, clock.RealClock{}, func(ctx context.Context) error { return answers(ctx, etcd) })
	if err := s.generic.AddReadyzChecks(healthz.NamedCheck("etcd", func(req *http.Request) error {
		return asksEtcd.check(req.Context())
	})); err != nil {
		return err
	}
	if err := s.generic.AddReadyzChecks(healthz.NamedCheck("custom-resource-definitions", patiently(func(ctx context.Context) error {
		return s.custom.Definitions().WaitSynced(ctx)
	}))); err != nil {
		return err
	}
	if err := s.generic.AddReadyzChecks(healthz.NamedCheck("admission-configurations", patiently(s.configurations.WaitSynced))); err != nil {
		return err
	}
	s.kinds = garbage.NewCustom(builtinKinds, customKinds{s.custom.Definitions(), s.backend}, s.backend.Metadata)
	if err := s.backend.ForgetEmptyPrefixes(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Left for the next start")
	}
	if err := s.backend.Readable(ctx, transformers); err != nil {
		return err
	}
	return s.generic.AddReadyzChecks(healthz.NamedCheck("watch-caches", patiently(s.backend.WaitReady)))
}

// patiently makes a check of what waits: who asks for health wants an answer, and waits himself.
func patiently(wait func(context.Context) error) func(*http.Request) error {
	return func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), etcdPatience)
		defer cancel()
		return wait(ctx)
	}
}

// hasSpace returns an error if etcd says that it is full. All members know, so all are asked, and the first that answers counts:
// some may be away. If none does, that says nothing.
func hasSpace(ctx context.Context, members []string, status func(ctx context.Context, member string) (*clientv3.StatusResponse, error)) error {
	if len(members) == 0 {
		members = []string{""} // in this process
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // for those that have not answered
	answers := make(chan *clientv3.StatusResponse, len(members))
	for _, member := range members {
		go func() {
			answer, err := status(ctx, member)
			if err != nil {
				answer = nil // that is for the check etcd
			}
			answers <- answer
		}()
	}
	for range members {
		answer := <-answers
		if answer == nil {
			continue
		}
		for _, alarm := range answer.Errors {
			if strings.Contains(alarm, etcdserverpb.AlarmType_NOSPACE.String()) {
				return fmt.Errorf("etcd is full and takes no writes: %d bytes of at most %d are in use, and until some are deleted, or it may have more, there are only reads and deletions", answer.DbSizeInUse, answer.DbSizeQuota)
			}
		}
		return nil
	}
	return nil
}

// answers returns an error unless etcd answers a read that takes a majority of its members before ctx ends. Only /readyz asks: to
// start the server again, as /livez asks for, mends no etcd.
func answers(ctx context.Context, etcd *clientv3.Client) error {
	if _, err := etcd.Get(ctx, "/atoll/health", clientv3.WithCountOnly()); err != nil {
		return fmt.Errorf("etcd does not answer within %s: %w", etcdPatience, err)
	}
	return nil
}

// Placer knows where things run and can run, for warnings to who applies what nothing can run, and to who deletes what runs
// something.
type Placer interface {
	// WhyNowhere says why an object with these annotations would run nowhere now, or not as it wishes, and "" if all is
	// well. It may be a Namespace or a LogicalCluster, with a wish for what is in it.
	WhyNowhere(cluster logicalcluster.Name, resource schema.GroupResource, namespace, name string, annotations map[string]string) string
	// MissingClasses says, in sentences, which classes that an object names are missing in physical clusters that it is placed on.
	MissingClasses(cluster logicalcluster.Name, resource schema.GroupResource, namespace string, object ctrlclient.Object) []string
	// RefusedPods says, in sentences, which physical clusters refuse the pods of an object.
	RefusedPods(cluster logicalcluster.Name, resource schema.GroupResource, namespace string, object ctrlclient.Object) ([]string, error)
	// PlacedOn counts the Placements that name a SyncTarget, and the workspaces that they are in.
	PlacedOn(target types.UID) (placements, workspaces int)
}

// Kubelets lead to where pods run.
type Kubelets interface {
	builtin.Kubelets
	// Hold keeps a connection that the syncer of a mirror has opened, to ask it for logs and streams of its pods, until that or ctx
	// ends, or the syncer has opened another.
	Hold(ctx context.Context, mirror logicalcluster.Name, conn net.Conn) error
	// Holds says whether there is such a connection.
	Holds(mirror logicalcluster.Name) bool
}

// joined are the Kubelets that are joined later.
type joined struct{ *Server }

func (j joined) Reach(ctx context.Context, shown metav1.Object) (func() net.Conn, error) {
	return j.kubelets.Reach(ctx, shown)
}

// Join joins what knows the workspaces, where things run, the syncers, and what they run. It is called once, before Run.
func (s *Server) Join(d Directory, p Placer, c Credentials, k Kubelets) {
	s.directory, s.placer, s.credentials, s.kubelets = d, p, c, k
	d.OnImported(s.custom.Imported)
	d.OnGone(s.fairness.Gone)
}

// DeleteCluster removes every row of a logical cluster, its LogicalCluster too. Of a mirror it ends the identity that MirrorConfig gave.
func (s *Server) DeleteCluster(ctx context.Context, name logicalcluster.Name) error {
	s.syncers.end(name)
	return s.backend.DeleteClusterData(ctx, name, nil)
}

// AddReadyCheck makes /readyz wait until check returns nil. Called before Run.
func (s *Server) AddReadyCheck(name string, check func() error) error {
	return s.generic.AddReadyzChecks(healthz.NamedCheck(name, func(*http.Request) error { return check() }))
}

// BeforeItTurnsAway has end called when the server was told to end, and has served on for as long as it was asked to, just before it turns
// away who comes. It waits for end. Called before Run.
func (s *Server) BeforeItTurnsAway(end func()) error {
	return s.generic.AddPreShutdownHook("atoll-learning", func() error {
		time.Sleep(s.options.ShutdownDelay)
		end()
		return nil
	})
}

// LoopbackConfig is for clients in this process: the server's own identity over connections in memory.
func (s *Server) LoopbackConfig() *rest.Config { return s.loopback.config }

// Kinds is what is stored, for the garbage collector.
func (s *Server) Kinds() garbage.Kinds { return s.kinds }

// Jobs is the store of Jobs, for the controller of CronJobs.
func (s *Server) Jobs() *storage.Resource {
	jobs, _ := s.backend.Resource(schema.GroupResource{Group: "batch", Resource: "jobs"})
	return jobs
}

// CustomIn is how many objects of custom resources a namespace of a logical cluster has, as etcd has it now, served or not.
func (s *Server) CustomIn(ctx context.Context, cluster logicalcluster.Name, namespace string) (map[schema.GroupResource]int64, error) {
	defined, err := s.custom.Definitions().Defines(ctx, cluster)
	if err != nil {
		return nil, err
	}
	return s.backend.CountCustom(ctx, cluster, namespace, defined)
}

// EndpointRows are what the controller of EndpointSlices and Endpoints reads.
func (s *Server) EndpointRows() endpoints.Rows {
	pods, _ := s.backend.Resource(schema.GroupResource{Resource: "pods"})
	slices, _ := s.backend.Resource(schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"})
	older, _ := s.backend.Resource(schema.GroupResource{Resource: "endpoints"})
	nodes, _ := s.backend.Resource(schema.GroupResource{Resource: "nodes"})
	return endpoints.Rows{Pods: pods, EndpointSlices: slices, Endpoints: older, Nodes: nodes}
}

// URL of the server, without a path.
func (s *Server) URL() string { return s.url }

// CACertificate is the PEM of the authorities by which clients verify the server's certificates: its own first.
func (s *Server) CACertificate() []byte { return s.trusted }

// WaitReady blocks until every watch cache holds what etcd holds and, which needs Run, all CustomResourceDefinitions,
// webhooks and admission policies are known, or ctx ends.
func (s *Server) WaitReady(ctx context.Context) error {
	if err := s.backend.WaitReady(ctx); err != nil {
		return err
	}
	if err := s.custom.Definitions().WaitSynced(ctx); err != nil {
		return err
	}
	return s.configurations.WaitSynced(ctx)
}

// CertificateLifetime is how long certificates of workspaces last that do not ask for less.
func (s *Server) CertificateLifetime() time.Duration { return s.options.ClusterSigningDuration }

// MaxBytesPerPhysicalCluster is how much memory may go to what one physical cluster shows; 0 is no limit.
func (s *Server) MaxBytesPerPhysicalCluster() int64 { return s.options.MaxBytesPerPhysicalCluster }

// Definitions are the CustomResourceDefinitions of all logical clusters.
func (s *Server) Definitions() *customresources.Definitions { return s.custom.Definitions() }

// notBuiltin answers what no built-in handler does.
func (s *Server) notBuiltin(w http.ResponseWriter, req *http.Request) { s.custom.ServeHTTP(w, req) }

// withDiscovery says of each logical cluster what it serves. It stands around the server's own endpoints, which are there
// before the first request and after the handler chain.
func (s *Server) withDiscovery(next http.Handler) http.Handler {
	around := sync.OnceValue(func() http.Handler {
		return discovery.New(s.custom.Definitions(), s.generic, s.swagger).Around(next, s.custom)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { around().ServeHTTP(w, req) })
}

// Run serves until ctx ends, then finishes the requests in flight and returns.
func (s *Server) Run(ctx context.Context) error {
	if s.directory == nil || s.placer == nil || s.credentials == nil || s.kubelets == nil {
		return errors.New("run the API server: Join was not called")
	}
	defer s.stopEncrypting()
	defer s.backend.Destroy() // after the last request
	defer close(s.served)
	prepared := s.generic.PrepareRun()
	// Connections in memory outlive the others: controllers and shutdown hooks use them to the end.
	loopbackCtx, stopLoopback := context.WithCancel(context.WithoutCancel(ctx))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { close(s.stopping) })()
	var inMemory sync.WaitGroup
	inMemory.Go(func() {
		if err := s.loopback.serve(loopbackCtx, s.generic.Handler); err != nil {
			cancel(err)
		}
	})
	inMemory.Go(func() { s.custom.Run(loopbackCtx) })
	// What requests are answered by is learned until the last of them is.
	learning, stopLearning := context.WithCancel(loopbackCtx)
	inMemory.Go(func() {
		defer stopLearning()
		select {
		case <-s.drained:
		case <-loopbackCtx.Done():
		}
	})
	inMemory.Go(func() { s.nodes.Run(learning) })
	typeChecks := admission.NewTypeChecks(s.configurations, s.requests) // before there are any
	inMemory.Go(func() { s.configurations.Run(learning) })
	inMemory.Go(func() { typeChecks.Run(ctx) })
	if s.rewrites != nil {
		inMemory.Go(func() { s.rewrites.run(ctx, s.backend.RewriteStale) })
		inMemory.Go(func() { s.mend(ctx) })
	}
	defer inMemory.Wait()
	defer stopLoopback()
	err := prepared.RunWithContext(ctx)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		err = errors.Join(err, cause)
	}
	return err
}

func storageFactory(version basecompatibility.EffectiveVersion, resources *serverstorage.ResourceConfig) (serverstorage.StorageFactory, error) {
	etcd := genericoptions.NewEtcdOptions(storagebackend.NewDefaultConfig(storage.DefaultPrefix, nil))
	etcd.DefaultStorageMediaType = runtime.ContentTypeProtobuf
	config := kubeapiserver.NewStorageFactoryConfigEffectiveVersion(version)
	config.APIResourceConfig = resources
	factory, err := config.Complete(etcd).New()
	if err != nil {
		return nil, fmt.Errorf("decide how resources are stored: %w", err)
	}
	return atollapis.ConfigureStorage(factory), nil
}

func openAPIDefinitions(ref openapicommon.ReferenceCallback) map[string]openapicommon.OpenAPIDefinition {
	all := builtinopenapi.GetOpenAPIDefinitions(ref)
	maps.Copy(all, atollopenapi.Definitions(ref))
	return all
}

// apiResources are the API versions served: kube-apiserver's defaults, metrics-server's, and our own.
func apiResources() *serverstorage.ResourceConfig {
	config := controlplane.DefaultAPIResourceConfigSource()
	config.EnableVersions(atollapis.GroupVersions()...)
	config.EnableVersions(resourcemetrics.GroupVersion)
	return config
}
