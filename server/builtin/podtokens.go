package builtin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"k8s.io/kubernetes/pkg/api/legacyscheme"
	appsapi "k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/authentication"
	batchapi "k8s.io/kubernetes/pkg/apis/batch"
	api "k8s.io/kubernetes/pkg/apis/core"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/server/nodes"
)

// For so many tokens a physical cluster may ask at once, and so many a second after that: each costs a look at what is to run in a namespace.
// A syncer asks for each token twice in its hour, so that it has 36,000. Those of one workspace are a twentieth of them: what is asked for, its
// people write, and others wait for theirs in the same cluster.
const (
	burstOfTokens, tokensPerSecond                   = 1000, 20
	burstOfWorkspaceTokens, workspaceTokensPerSecond = 100, 1
	// pacedWorkspaces is of how many workspaces in physical clusters that is remembered.
	pacedWorkspaces = 65536
)

// tokenPace bounds for how many tokens physical clusters ask.
type tokenPace struct {
	mirrors    *pace
	workspaces *pace // by mirror, too
}

func newTokenPace(clk clock.PassiveClock) *tokenPace {
	return &tokenPace{newPace(clk, pacedMirrors, tokensPerSecond, burstOfTokens), newPace(clk, pacedWorkspaces, workspaceTokensPerSecond, burstOfWorkspaceTokens)}
}

// take takes of the workspace's first: what it has not takes nothing from others.
func (p *tokenPace) take(at *space) bool {
	return p.workspaces.take([2]logicalcluster.Name{at.cluster, at.workspace}) && p.mirrors.take(at.cluster)
}

// createForPods issues a token for the pods that a physical cluster runs: its syncer asks for it in its mirror, as a kubelet does for those of
// its Node. The server issues, in the workspace that the mirror's namespace is for, what is named by what that cluster is to run, and nothing
// else (docs/design/0014-api-access.md). Nothing says whether there is a ServiceAccount to who may not have its token.
func (r tokenRequests) createForPods(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc) (runtime.Object, error) {
	request, ok := obj.(*authentication.TokenRequest)
	if !ok {
		return nil, apierrors.NewBadRequest("this is no TokenRequest")
	}
	if err := validate(ctx, request.DeepCopy()); err != nil {
		return nil, err
	}
	refuse := func(err error) error { return apierrors.NewForbidden(api.Resource("serviceaccounts/token"), name, err) }
	audience, err := audienceAsked(&request.Spec)
	if err != nil {
		return nil, refuse(err)
	}
	at, err := r.shown.space(ctx)
	if err != nil {
		return nil, err
	}
	if !r.pace.take(at) {
		return nil, apierrors.NewTooManyRequests("the physical cluster asks for too many tokens at once, of this workspace or of all", 0) // as for too many events
	}
	// As the mirror's namespace says it.
	audit.AddAuditAnnotations(ctx, workloadv1alpha1.WorkspaceLabel, string(at.workspace), workloadv1alpha1.RootAnnotation, "/"+at.workspaceNamespace)
	switch wanted, err := r.isWanted(at, kinds.Token{Account: name, Audience: audience}); {
	case err != nil:
		return nil, err
	case !wanted:
		return nil, refuse(fmt.Errorf("nothing that is to run in namespace %s has a token of this ServiceAccount for %s: ask for what the volumes name of leaves, and of pods that are bound, until their pods have ended",
			at.namespace, audienceInWords(audience)))
	}
	owner, err := r.shown.owner(at)
	if err != nil {
		return nil, err
	}
	one := []string{audience}
	if audience == "" {
		one = r.audiences.Default(at.workspace)[:1]
	}
	// What a policy has withdrawn from the workspace is no Node there, and may still run what stays in it.
	made, err := r.TokenREST.Create(nodes.WithUID(at.inWorkspace("", "serviceaccounts"), owner.UID), name, &authentication.TokenRequest{
		ObjectMeta: metav1.ObjectMeta{Name: request.Name, UID: request.UID}, // the UID is a precondition
		Spec: authentication.TokenRequestSpec{
			Audiences: one, ExpirationSeconds: request.Spec.ExpirationSeconds,
			BoundObjectRef: &authentication.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: owner.Name, UID: owner.UID},
		},
	}, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		return nil, untold("serviceaccounts/token", err, name)
	}
	issued, ok := made.(*authentication.TokenRequest)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("a TokenRequest is answered by a %T", made))
	}
	issued.Namespace = at.namespace
	return issued, nil
}

// audienceAsked returns the audience that a request is for, empty for the API of the workspace. It refuses what no pod has. What the token is
// bound to is not for the syncer to say: one Secret serves all pods of an account in its physical cluster.
func audienceAsked(asked *authentication.TokenRequestSpec) (audience string, err error) {
	switch ref := asked.BoundObjectRef; {
	case len(asked.Audiences) > 1:
		return "", fmt.Errorf("it is asked for with %d audiences: ask for a token for each", len(asked.Audiences))
	case asked.ExpirationSeconds > kinds.TokenSeconds:
		return "", fmt.Errorf("it is asked for with %d seconds: a token that goes down is good for %d at most", asked.ExpirationSeconds, kinds.TokenSeconds)
	case ref != nil:
		return "", fmt.Errorf("it is asked for bound to %.64s %.253s: name nothing, and it is bound to the physical cluster", ref.Kind, ref.Name)
	case len(asked.Audiences) == 1:
		return asked.Audiences[0], nil
	}
	return "", nil
}

func audienceInWords(audience string) string {
	if audience == "" {
		return "the API"
	}
	return fmt.Sprintf("the audience %.253q", audience)
}

// isWanted says whether something that the space's physical cluster is to run names a token, as its mirror shows it, by consistent reads: a watch
// cache that is behind would show for a moment what is gone. What the cluster shows is not among it, since its syncer writes that. What cannot be
// read is an error only where nothing else names the token.
func (r tokenRequests) isWanted(at *space, token kinds.Token) (bool, error) {
	var errs []error
	for _, kind := range kinds.All {
		if !kind.MakesPods() {
			continue
		}
		ctx, resource, namespace := at.mirror, kind.GVR.GroupResource(), at.namespace
		if !kind.HasLeaves() {
			ctx, namespace = at.inWorkspace(resource.Group, resource.Resource), at.workspaceNamespace
		}
		found, err := r.shown.objects.List(ctx, resource, namespace, false)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, o := range found {
			if !mayWant(o, token) {
				continue
			}
			switch wanted, err := r.wants(at, kind, o, token); {
			case err != nil:
				errs = append(errs, err)
			case wanted:
				return true, nil
			}
		}
	}
	if len(errs) > 0 {
		return false, apierrors.NewInternalError(errors.Join(errs...))
	}
	return false, nil
}

// wants says whether one object of a mirror's namespace, or of the workspace's that it is for, names a token.
func (r tokenRequests) wants(at *space, kind kinds.Kind, o runtime.Object, token kinds.Token) (bool, error) {
	if pod, ok := o.(*api.Pod); ok {
		if !at.shows(pod) {
			return false, nil
		}
		o = view(pod, at.cluster)
	}
	leaf := kind.New()
	if err := legacyscheme.Scheme.Convert(o.DeepCopyObject(), leaf, nil); err != nil {
		return false, fmt.Errorf("convert a %s of namespace %s: %w", kind.GVK.Kind, at.namespace, err)
	}
	if !slices.Contains(kind.WantedTokens(leaf, r.clock.Now()), token) {
		return false, nil
	}
	if !kind.HasLeaves() {
		return true, nil
	}
	if !at.isLeaf(leaf) {
		return false, nil
	}
	// In a namespace that was made anew the account of that name is another one.
	_, err := r.shown.root(at, kind, leaf)
	if apierrors.IsNotFound(err) || errors.Is(err, errGoing) {
		return false, nil
	}
	return err == nil, err
}

// mayWant says whether an object may name a token, as cheaply as that can be told: there may be thousands in a namespace, nearly all of one account.
// Of a pod that is bound its row says it, of which the mirror's view is made.
func mayWant(o runtime.Object, token kinds.Token) bool {
	spec := podSpec(o)
	metadata, err := meta.Accessor(o)
	if spec == nil || err != nil || cmp.Or(spec.ServiceAccountName, kinds.DefaultAccount) != token.Account || kinds.APIAccessOf(metadata) == kinds.NoAPIAccess {
		return false
	}
	pod, isPod := o.(*api.Pod)
	if isPod && (!kinds.IsBound(metadata) || pod.Status.Phase == api.PodSucceeded || pod.Status.Phase == api.PodFailed) {
		return false
	}
	key, ok := kinds.TokenKeyOf(token.Audience)
	secret := kinds.TokenSecret(token.Account)
	names := func(s api.VolumeProjection) bool {
		if isPod {
			return s.ServiceAccountToken != nil && s.ServiceAccountToken.Audience == token.Audience
		}
		return s.Secret != nil && s.Secret.Name == secret && slices.ContainsFunc(s.Secret.Items, func(i api.KeyToPath) bool { return i.Key == key })
	}
	return ok && slices.ContainsFunc(spec.Volumes, func(v api.Volume) bool { return v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, names) })
}

// podSpec is that of the pods which an object makes, or is.
func podSpec(o runtime.Object) *api.PodSpec {
	switch o := o.(type) {
	case *appsapi.Deployment:
		return &o.Spec.Template.Spec
	case *appsapi.ReplicaSet:
		return &o.Spec.Template.Spec
	case *api.ReplicationController:
		if o.Spec.Template == nil {
			return &api.PodSpec{}
		}
		return &o.Spec.Template.Spec
	case *appsapi.DaemonSet:
		return &o.Spec.Template.Spec
	case *appsapi.StatefulSet:
		return &o.Spec.Template.Spec
	case *batchapi.Job:
		return &o.Spec.Template.Spec
	case *api.Pod:
		return &o.Spec
	}
	return nil
}
