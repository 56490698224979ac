package builtin

import (
	"context"
	"fmt"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/utils/clock"

	"k8s.io/kubernetes/pkg/apis/authentication"
	authenticationrest "k8s.io/kubernetes/pkg/registry/authentication/rest"
	"k8s.io/kubernetes/pkg/registry/authentication/tokenreview"
	serviceaccountstore "k8s.io/kubernetes/pkg/registry/core/serviceaccount/storage"

	"atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/identity"
)

// tokenRequests issues tokens that are, unless asked otherwise, for the API in the logical cluster of their ServiceAccount:
// upstream's registry has one set of audiences. The ServiceAccounts of a mirror are nobody: who asks there gets tokens of workspaces
// (podtokens.go).
type tokenRequests struct {
	*serviceaccountstore.TokenREST
	audiences Audiences

	// Of mirrors.
	shown shownPods
	pace  *tokenPace
	clock clock.PassiveClock
}

// Create implements rest.NamedCreater.
func (r tokenRequests) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	cluster, err := oneCluster(ctx)
	if err != nil {
		return nil, err
	}
	if cluster.Mirror {
		return r.createForPods(ctx, name, obj, validate)
	}
	if request, ok := obj.(*authentication.TokenRequest); ok && len(request.Spec.Audiences) == 0 {
		request.Spec.Audiences = r.audiences.Default(cluster.Name)
	}
	return r.TokenREST.Create(ctx, name, obj, validate, options)
}

// authenticationProvider is upstream's, with TokenReviews that say who a token is in the logical cluster of the request.
type authenticationProvider struct {
	authenticationrest.RESTStorageProvider
	cfg Config
}

func (p authenticationProvider) NewRESTStorage(enabled serverstorage.APIResourceConfigSource, getter generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info, err := p.RESTStorageProvider.NewRESTStorage(enabled, getter)
	if err != nil {
		return genericapiserver.APIGroupInfo{}, err
	}
	resources := info.VersionedResourcesStorageMap[authenticationv1.SchemeGroupVersion.Version]
	upstream, ok := resources["tokenreviews"].(*tokenreview.REST)
	if !ok {
		return genericapiserver.APIGroupInfo{}, fmt.Errorf("%s has no tokenreviews", authenticationv1.SchemeGroupVersion)
	}
	resources["tokenreviews"] = tokenReviews{REST: upstream, reviewer: p.cfg.Reviewer, audiences: p.cfg.Audiences}
	return info, nil
}

// tokenReviews asks with the context of the request: upstream's registry makes a request of its own, without one.
type tokenReviews struct {
	*tokenreview.REST
	reviewer  authenticator.Request
	audiences Audiences
}

// Create implements rest.Creater.
func (r tokenReviews) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	cluster, err := oneCluster(ctx)
	if err != nil {
		return nil, err
	}
	ctx = identity.WithRoom(ctx) // what is said there is of the token, and not of the request's credential
	var reviewer authenticator.Request
	if r.reviewer != nil {
		reviewer = inContext{ctx, r.reviewer}
	}
	review, err := tokenreview.NewREST(reviewer, r.audiences.Audiences(cluster.Name)).Create(ctx, obj, validate, options)
	if err == nil && identity.IsUndecided(ctx) {
		// Who asks would tell the client that its token is not valid.
		undecided := apierrors.NewServiceUnavailable("it cannot be found out now whether the token is valid, try again")
		undecided.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
		return nil, undecided
	}
	return review, err
}

// inContext authenticates requests in a context of its own, with the audiences of the request's.
type inContext struct {
	ctx   context.Context
	inner authenticator.Request
}

func (i inContext) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	ctx := i.ctx
	if audiences, ok := authenticator.AudiencesFrom(req.Context()); ok {
		ctx = authenticator.WithAudiences(ctx, audiences)
	}
	return i.inner.AuthenticateRequest(req.WithContext(ctx))
}

// oneCluster is the logical cluster of a request that is for one.
func oneCluster(ctx context.Context) (logicalcluster.Cluster, error) {
	cluster, ok := logicalcluster.ClusterFrom(ctx)
	if !ok || cluster.Wildcard {
		return cluster, apierrors.NewInternalError(fmt.Errorf("the request's context names no one logical cluster"))
	}
	return cluster, nil
}
