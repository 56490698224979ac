package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"atoll.dev/atoll/internal/cli"
	"atoll.dev/atoll/syncer"
)

// connectTimeout of one request to a physical cluster.
const connectTimeout = 10 * time.Second

// reviewsAtOnce are asked of a physical cluster.
const reviewsAtOnce = 16

// credential is one context of a kubeconfig, complete in itself.
type credential struct {
	file, context, server string
	// data is the kubeconfig with that context alone, and every file it named inlined.
	data   []byte
	config *rest.Config
}

// identity is who a physical cluster says it is.
type identity struct {
	// uid of the namespace kube-system, which no two clusters share.
	uid, version string
}

// String names the kubeconfig, the context and the server, as errors do.
func (c *credential) String() string {
	return fmt.Sprintf("%s (context %q, server %s)", c.file, c.context, c.server)
}

// noKubeconfig is what a person makes of err, which names the Go types that a file does not fit: where it is no YAML, else
// what a kubeconfig is.
func noKubeconfig(file string, err error) error {
	if _, syntax, ok := strings.Cut(err.Error(), "yaml: "); ok {
		return fmt.Errorf("%s is no kubeconfig: %s", file, syntax)
	}
	return fmt.Errorf("%s is no kubeconfig: want YAML with \"kind: Config\" and lists of clusters, users and contexts", file)
}

// loadCredential reads one context of a kubeconfig, the current one if context is empty.
func loadCredential(file, context string) (*credential, error) {
	config, err := clientcmd.LoadFromFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("kubeconfig %s: there is no such file", file)
	}
	var unreadable *fs.PathError
	switch {
	case errors.As(err, &unreadable):
		return nil, fmt.Errorf("kubeconfig %s: %w", file, err)
	case err != nil:
		return nil, noKubeconfig(file, err)
	}
	if context != "" {
		config.CurrentContext = context
	}
	found, ok := config.Contexts[config.CurrentContext]
	switch {
	case config.CurrentContext == "":
		return nil, fmt.Errorf("kubeconfig %s has no current context: name one of %s with --context", file, names(config.Contexts))
	case !ok:
		return nil, fmt.Errorf("kubeconfig %s has no context %q: it has %s", file, config.CurrentContext, names(config.Contexts))
	}
	if config.Clusters[found.Cluster] == nil {
		return nil, fmt.Errorf("kubeconfig %s: context %q names the cluster %q, which is not in it", file, config.CurrentContext, found.Cluster)
	}
	c := &credential{file: file, context: config.CurrentContext, server: config.Clusters[found.Cluster].Server}
	if address, err := cli.ParseAddress(c.server); err == nil && !address.Path.Empty() {
		return nil, fmt.Errorf("%s is a workspace of an Atoll, not a physical cluster: --kubeconfig names the physical cluster's kubeconfig, --hub-kubeconfig that of the Atoll", c)
	}
	if user := config.AuthInfos[found.AuthInfo]; user != nil {
		if user.Exec != nil || user.AuthProvider != nil {
			return nil, fmt.Errorf("%s: the user %q gets its credentials from a plugin, which the server cannot run: make a kubeconfig with the token of a ServiceAccount, or a client certificate", c, found.AuthInfo)
		}
		if user.TokenFile != "" && user.Token == "" {
			token, err := os.ReadFile(user.TokenFile)
			if err != nil {
				return nil, fmt.Errorf("%s: the token of user %q: %w", c, found.AuthInfo, err)
			}
			user.Token, user.TokenFile = strings.TrimSpace(string(token)), ""
		}
	}
	if err := clientcmdapi.MinifyConfig(config); err != nil {
		return nil, fmt.Errorf("%s: %w", c, err)
	}
	if err := clientcmdapi.FlattenConfig(config); err != nil {
		return nil, fmt.Errorf("%s: %w", c, err)
	}
	if c.data, err = clientcmd.Write(*config); err != nil {
		return nil, fmt.Errorf("%s: %w", c, err)
	}
	if c.config, err = clientcmd.RESTConfigFromKubeConfig(c.data); err != nil {
		return nil, fmt.Errorf("%s: %w", c, err)
	}
	c.config.Timeout, c.config.QPS = connectTimeout, -1 // reviewsAtOnce bounds it
	return c, nil
}

func names(contexts map[string]*clientcmdapi.Context) string {
	if len(contexts) == 0 {
		return "none"
	}
	var all []string
	for name := range contexts {
		all = append(all, fmt.Sprintf("%q", name))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// connect asks the physical cluster for its version and its UID.
func (c *credential) connect(ctx context.Context) (identity, error) {
	kube, err := kubernetes.NewForConfig(c.config)
	if err != nil {
		return identity{}, fmt.Errorf("%s: %w", c, err)
	}
	// First what takes rights: that answers whether the credential is good, too.
	system, err := kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	var request *url.Error
	switch {
	case apierrors.IsUnauthorized(err):
		return identity{}, fmt.Errorf("%s: the cluster does not accept the credentials (%w): take a kubeconfig whose token or certificate is valid", c, err)
	case apierrors.IsForbidden(err):
		return identity{}, fmt.Errorf("%s: the user has too few rights (%w): Atoll needs a user that is cluster-admin", c, err)
	case errors.As(err, &request):
		return identity{}, fmt.Errorf("cannot connect to %s: %w. Is the cluster running, and is its address reachable from here and from the server?", c, errors.Unwrap(request))
	case err != nil:
		return identity{}, fmt.Errorf("%s: read namespace %s: %w", c, metav1.NamespaceSystem, err)
	}
	if err := c.mayWrite(ctx, kube); err != nil {
		return identity{}, err
	}
	version, err := kube.Discovery().ServerVersion()
	if err != nil {
		return identity{}, fmt.Errorf("%s: read the version: %w", c, err)
	}
	return identity{uid: string(system.UID), version: version.GitVersion}, nil
}

// mayWrite asks the physical cluster whether the user may do there what a syncer does.
func (c *credential) mayWrite(ctx context.Context, kube kubernetes.Interface) error {
	rules := append(syncer.ClusterRules(), rbacv1.PolicyRule{ // and its heartbeat
		APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create", "update"},
	})
	var asked []*authorizationv1.SelfSubjectAccessReview
	for _, rule := range rules {
		for _, verb := range rule.Verbs {
			asked = append(asked, &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				// Each rule is about one resource.
				ResourceAttributes: &authorizationv1.ResourceAttributes{Group: rule.APIGroups[0], Resource: rule.Resources[0], Verb: verb},
			}})
		}
	}
	// They are a hundred, and a cluster may be far away.
	var asking errgroup.Group
	asking.SetLimit(reviewsAtOnce)
	answers := make([]*authorizationv1.SelfSubjectAccessReview, len(asked))
	for i, review := range asked {
		asking.Go(func() (err error) {
			answers[i], err = kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			return err
		})
	}
	if err := asking.Wait(); err != nil {
		return fmt.Errorf("%s: ask what the user may do: %w", c, err)
	}
	for i, answer := range answers {
		if !answer.Status.Allowed {
			may := asked[i].Spec.ResourceAttributes
			return fmt.Errorf("%s: the user has too few rights (it may not %s %s in all namespaces): Atoll needs a user that is cluster-admin",
				c, may.Verb, schema.GroupResource{Group: may.Group, Resource: may.Resource})
		}
	}
	return nil
}
