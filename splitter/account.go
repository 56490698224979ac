package splitter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
)

// What admission in the workspace would give pods by their ServiceAccount, the template has that goes down: nobody admits its pods there. It
// holds for as long as the template does: a change of the account concerns pods that are made later, and must not roll out by itself. No
// more must a version that gives pods more.

// noAccount says that a template does not go down yet, since the ServiceAccount of its pods is not there.
type noAccount struct{ name string }

func (e noAccount) Error() string {
	return fmt.Sprintf("there is no ServiceAccount %q in its namespace: pods are made when there is", e.name)
}

func awaitsAccount(err error) bool {
	var lacks noAccount
	return errors.As(err, &lacks)
}

// usesDefault says that pods pull images with the Secrets of the ServiceAccount default: they name neither another one
// nor Secrets of their own.
func usesDefault(pods *corev1.PodSpec) bool {
	return len(pods.ImagePullSecrets) == 0 && kinds.AccountOf(pods) == kinds.DefaultAccount
}

// withAccount returns a workload whose pods have what admission would give them: the Secrets to pull images with, of the account default,
// which does not go down, and a token. It lacks something, and its template goes nowhere, while there is no account to say what that is.
func (c *Controller) withAccount(ctx context.Context, root ctrlclient.Object, leaves []ctrlclient.Object) (down ctrlclient.Object, lacks error, err error) {
	k, _ := kinds.Of(root)
	pods, template := &k.Template(root).Spec, kinds.TemplateDigest(k.Template(root))
	for _, leaf := range leaves {
		if leafUID(leaf) != root.GetUID() {
			continue
		}
		if was, ok := givenTo(k, root, leaf, template); ok {
			return given(k, root, was), nil, nil
		}
	}
	account, lacks, err := c.accountOf(ctx, k, root)
	if err != nil {
		return nil, nil, err
	}
	will := gift{access: kinds.APIAccessFor(pods, account), template: template}
	if usesDefault(pods) {
		for _, r := range kinds.PullSecrets(account) {
			will.pulls = append(will.pulls, corev1.LocalObjectReference{Name: r.Name})
		}
	}
	return given(k, root, will), lacks, nil
}

// accountOf reads the ServiceAccount of a workload's pods. Where there is none it is one that says nothing, and the workload lacks it; every namespace
// has the account default, or will in a moment.
func (c *Controller) accountOf(ctx context.Context, k kinds.Kind, root ctrlclient.Object) (account *corev1.ServiceAccount, lacks, err error) {
	rk, name := client.KeyOf(root), kinds.AccountOf(&k.Template(root).Spec)
	account, err = c.account(ctx, client.Key{Cluster: rk.Cluster, Namespace: rk.Namespace, Name: name})
	if err != nil || account != nil {
		return account, nil, err
	}
	if name != kinds.DefaultAccount {
		lacks = noAccount{name}
	}
	return &corev1.ServiceAccount{}, lacks, nil
}

// gift is what the pods of a template are given of their account.
type gift struct {
	pulls  []corev1.LocalObjectReference
	access kinds.APIAccess
	// template is the digest of the template, as somebody wrote it; empty if that was not written down.
	template string
}

// givenTo is what the pods of a leaf were given when it was rendered; false if that was of another template than the root has. Versions
// differ in defaults, and so in digests: what is of the root's generation is of its template whatever its digest says, which is written anew
// then. Leaves of before have none, and are of this template if it renders to what they have.
func givenTo(k kinds.Kind, root, leaf ctrlclient.Object, template string) (gift, bool) {
	annotations := leaf.GetAnnotations()
	was := gift{pulls: k.Template(leaf).Spec.ImagePullSecrets, access: kinds.APIAccessOf(leaf), template: annotations[workloadv1alpha1.TemplateAnnotation]}
	switch {
	case k.KeepsTemplate(leaf): // whatever it would be rendered to now
		return was, true
	case annotations[workloadv1alpha1.RootGenerationAnnotation] == strconv.FormatInt(root.GetGeneration(), 10):
		if was.template != "" { // where there is none, its generation brings one
			was.template = template
		}
		return was, true
	case was.template != "":
		return was, was.template == template
	}
	was.template = template // its generation is written anew in any case
	return was, equality.Semantic.DeepEqual(k.Template(k.Content(given(k, root, was))), k.Template(leaf))
}

// given returns a copy of a root whose pods have that of their account.
func given(k kinds.Kind, root ctrlclient.Object, what gift) ctrlclient.Object {
	root = root.DeepCopyObject().(ctrlclient.Object)
	if pods := &k.Template(root).Spec; len(what.pulls) > 0 && usesDefault(pods) {
		pods.ImagePullSecrets = slices.Clone(what.pulls)
	}
	kinds.SetAPIAccess(root, what.access)
	kinds.SetAnnotation(root, workloadv1alpha1.TemplateAnnotation, what.template)
	return root
}

// isTold says whether the pods of a workload are told in a cluster what their namespace is called in the workspace, given the leaf that it has there, nil
// for none, and whether the cluster's DNS knows it by now. It holds for as long as the template does, as what they are given; but what a leaf
// elsewhere says is of another DNS.
func isTold(k kinds.Kind, root, leaf ctrlclient.Object, template string, known bool) bool {
	if leaf != nil && leafUID(leaf) == root.GetUID() {
		if _, ok := givenTo(k, root, leaf, template); ok {
			return kinds.IsToldNamespace(leaf)
		}
	}
	return known
}

// toldAs returns a workload, given what its pods are, as it goes down to where these are told what their namespace is called in the workspace, or to
// where they are not.
func toldAs(root ctrlclient.Object, told bool) ctrlclient.Object {
	if !told {
		return root
	}
	root = root.DeepCopyObject().(ctrlclient.Object)
	kinds.SetToldNamespace(root, true)
	return root
}

// copyGift has one object say of what it is rendered from what another says.
func copyGift(to, from ctrlclient.Object) {
	for _, a := range []string{workloadv1alpha1.APIAccessAnnotation, workloadv1alpha1.TemplateAnnotation} {
		kinds.SetAnnotation(to, a, from.GetAnnotations()[a])
	}
}

// account reads a ServiceAccount, uncached; nil if there is none.
func (c *Controller) account(ctx context.Context, k client.Key) (*corev1.ServiceAccount, error) {
	account := &corev1.ServiceAccount{}
	err := c.clients.Objects.Get(client.In(ctx, k.Cluster), types.NamespacedName{Namespace: k.Namespace, Name: k.Name}, account)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read ServiceAccount %s: %w", k, err)
	}
	return account, nil
}

// pullSecrets returns the Secrets that an account pulls images with, none if there is no such account.
func (c *Controller) pullSecrets(ctx context.Context, k client.Key) ([]kinds.Reference, error) {
	account, err := c.account(ctx, k)
	if err != nil || account == nil {
		return nil, err
	}
	return kinds.PullSecrets(account), nil
}

// awaitingAccount asks for the workloads that may have waited for a ServiceAccount which is there now.
func (c *Controller) awaitingAccount(account client.Key) {
	for _, s := range c.sources {
		if !s.MakesPods() || !s.HasLeaves() {
			continue
		}
		for _, o := range s.list(account.Cluster, account.Namespace) {
			if kinds.AccountOf(&s.Template(o).Spec) == account.Name {
				c.queue.Add(key{s.GVK.Kind, client.KeyOf(o)})
			}
		}
	}
}
