package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// Hub is the Atoll that a kubeconfig points to.
type Hub struct {
	Address
	// Objects reads and writes everything; the context says in which logical cluster (In, client.Everywhere).
	Objects ctrlclient.WithWatch
	// Namespace is that of the kubeconfig's context; empty for default.
	Namespace string
	// CA is the PEM of the authorities that the server's certificate is checked against; empty means the system's.
	CA []byte

	files  clientcmd.ConfigAccess
	source string       // the context and its files, for people
	config *rest.Config // nil in tests
}

// New returns the Hub at an address, whose kubeconfig is in files.
func New(address Address, objects ctrlclient.WithWatch, files clientcmd.ConfigAccess) *Hub {
	return &Hub{Address: address, Objects: objects, files: files}
}

// Open reads the kubeconfig that Locate finds. No request is made.
func Open(kubeconfig string) (*Hub, error) {
	files := access(Locate(kubeconfig))
	config, err := files.GetStartingConfig()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	where := strings.Join(files.GetLoadingPrecedence(), ", ")
	if files.IsExplicitFile() {
		where = files.GetExplicitFile()
	}
	if env := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); len(config.Clusters) == 0 && (env != "" || files.IsExplicitFile()) {
		return nil, emptyError(where, !files.IsExplicitFile())
	}
	if len(config.Clusters) == 0 {
		return nil, fmt.Errorf("no kubeconfig of an Atoll: neither %s here nor anything in %s; run this where \"%s start\" runs, or name the file with --kubeconfig (cluster commands: --hub-kubeconfig) or KUBECONFIG", adminKubeconfig, where, Self)
	}
	hub, err := connect(config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	hub.files, hub.source = files, fmt.Sprintf("context %q of %s", config.CurrentContext, where)
	return hub, nil
}

// emptyError says that the files, which a flag or the environment names, have no cluster in them, or are not there.
func emptyError(where string, environment bool) error {
	problem := "it has no cluster"
	if _, err := os.Stat(where); os.IsNotExist(err) {
		problem = "there is no such file"
	}
	if environment {
		return fmt.Errorf("KUBECONFIG=%s: %s; name the file that \"%s start\" wrote, or unset KUBECONFIG to use %s here or your own", where, problem, Self, adminKubeconfig)
	}
	return fmt.Errorf("kubeconfig %s: %s; name the file that \"%s start\" wrote", where, problem, Self)
}

// connect makes a client of the Atoll that the kubeconfig's current context points to. No request is made.
func connect(config *clientcmdapi.Config) (*Hub, error) {
	context, cluster, err := current(config)
	if err != nil {
		return nil, err
	}
	address, err := ParseAddress(cluster.Server)
	if err != nil {
		return nil, fmt.Errorf("context %q: %w", config.CurrentContext, err)
	}
	cfg, err := clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("context %q: %w", config.CurrentContext, err)
	}
	if err := rest.LoadTLSFiles(cfg); err != nil {
		return nil, fmt.Errorf("context %q: %w", config.CurrentContext, err)
	}
	cfg.Host = address.Base
	if cfg.UserAgent == "" {
		cfg.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	clients, err := client.New(cfg)
	if err != nil {
		return nil, err
	}
	return &Hub{Address: address, Objects: clients.Objects, Namespace: context.Namespace, CA: cfg.CAData, config: cfg}, nil
}

// Download asks for a path of the server outside of all logical clusters, which answers with something long. The caller
// closes the body. What the server refuses is an error in its words.
func (h *Hub) Download(ctx context.Context, path string) (*http.Response, error) {
	return h.ask(ctx, http.MethodGet, path, nil, 0)
}

// Upload sends something long, of a size in bytes, to a path of the server outside of all logical clusters. The caller closes
// the body of the answer. What the server refuses is an error in its words.
func (h *Hub) Upload(ctx context.Context, path string, body io.Reader, size int64) (*http.Response, error) {
	return h.ask(ctx, http.MethodPost, path, body, size)
}

func (h *Hub) ask(ctx context.Context, method, path string, body io.Reader, size int64) (*http.Response, error) {
	client, err := rest.HTTPClientFor(h.config)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", h.Base, err)
	}
	req, err := http.NewRequestWithContext(ctx, method, h.Base+path, body)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", h.Base, err)
	}
	req.ContentLength = size
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", h.Base, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	words, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	if err != nil {
		return nil, fmt.Errorf("ask %s: %s: %w", h.Base, resp.Status, err)
	}
	status := &metav1.Status{}
	if err := json.Unmarshal(words, status); err == nil && status.Kind == "Status" {
		return nil, apierrors.FromObject(status)
	}
	return nil, fmt.Errorf("%s%s: %s: %s", h.Base, path, resp.Status, strings.TrimSpace(string(words)))
}

// maxRefusal is how much of a refusal is read, in bytes.
const maxRefusal = 64 << 10

// In returns a context whose requests go to the workspace of that path, or the logical cluster of that name.
func In(ctx context.Context, path logicalcluster.Path) context.Context {
	return client.In(ctx, logicalcluster.Name(path.String())) // the server takes paths and names alike
}

// Current is the path of the workspace that the kubeconfig points to. Where its URL has only a name, the server is
// asked for the path; a logical cluster without one is called by its name.
func (h *Hub) Current(ctx context.Context) (logicalcluster.Path, error) {
	if h.Path.Empty() {
		return h.Path, fmt.Errorf("the kubeconfig's context names no workspace: choose one, for instance with \"%s workspace use root\"", Self)
	}
	if h.Path == Root || strings.Contains(h.Path.String(), ":") {
		return h.Path, nil
	}
	return h.PathOf(ctx, logicalcluster.Name(h.Path.String()))
}

// PathOf returns the path of the workspace whose logical cluster has that name, and the name itself if it has none.
func (h *Hub) PathOf(ctx context.Context, name logicalcluster.Name) (logicalcluster.Path, error) {
	cluster, err := logicalCluster(ctx, h.Objects, name.Path())
	if err != nil {
		return logicalcluster.Path{}, err
	}
	if path := cluster.Annotations[lcctx.PathAnnotation]; path != "" {
		return logicalcluster.NewPath(path), nil
	}
	return name.Path(), nil
}

// Resolve returns the path that arg means, see ResolvePath, without asking whether it is there.
func (h *Hub) Resolve(ctx context.Context, arg string) (logicalcluster.Path, error) {
	from := h.Path
	if !from.Empty() {
		var err error
		if from, err = h.Current(ctx); err != nil {
			return logicalcluster.Path{}, err
		}
	}
	return ResolvePath(from, arg)
}

// Home returns the path of the caller's own workspace, which the server makes when he asks first.
func (h *Hub) Home(ctx context.Context) (logicalcluster.Path, error) {
	home := &tenancyv1alpha1.Workspace{}
	err := h.Objects.Get(In(ctx, Root), ctrlclient.ObjectKey{Name: "~"}, home)
	if apierrors.IsNotFound(err) {
		return logicalcluster.Path{}, fmt.Errorf("this server knows no home workspaces: %w", err)
	}
	if err != nil {
		return logicalcluster.Path{}, fmt.Errorf("ask for your home workspace: %w", err)
	}
	address, err := ParseAddress(home.Spec.URL)
	if err != nil {
		return logicalcluster.Path{}, fmt.Errorf("home workspace %q: %w", home.Name, err)
	}
	return address.Path, nil
}

// Gone returns an error that says so, and what to do, if the workspace that the kubeconfig points to is deleted; else nil.
func (h *Hub) Gone(ctx context.Context) error {
	if h.Path.Empty() {
		return nil
	}
	err := h.Objects.Get(In(ctx, h.Path), ctrlclient.ObjectKey{Name: corev1alpha1.LogicalClusterName}, &corev1alpha1.LogicalCluster{})
	if !apierrors.IsNotFound(err) {
		return nil // whatever it is, it is not known to be gone
	}
	return fmt.Errorf("the kubeconfig points into workspace %q, which is gone: leave it with \"%s workspace use root\"", h.Path, Self)
}

// Enter switches the kubeconfig to the workspace of that path, if the server has it.
func (h *Hub) Enter(ctx context.Context, path logicalcluster.Path) error {
	if _, err := logicalCluster(ctx, h.Objects, path); err != nil {
		return err
	}
	return h.modify(func(c *clientcmdapi.Config) error { return Enter(c, path) })
}

// Back switches the kubeconfig to the workspace that was current before, if its server still has it, and returns its path.
func (h *Hub) Back(ctx context.Context) (logicalcluster.Path, error) {
	var to Address
	err := h.modify(func(c *clientcmdapi.Config) (err error) {
		if err = Back(c); err != nil {
			return err
		}
		if to, err = ParseAddress(c.Clusters[CurrentContext].Server); err != nil || to.Path.Empty() {
			return err
		}
		objects := h.Objects
		if to.Base != h.Base { // somebody chose a context of another server in between
			other, err := connect(c)
			if err != nil {
				return err
			}
			objects = other.Objects
		}
		if _, err = logicalCluster(ctx, objects, to.Path); err != nil {
			return fmt.Errorf("the workspace before cannot be entered, %q stays the current one: %w", h.Path, err)
		}
		return nil
	})
	return to.Path, err
}

func (h *Hub) modify(change func(*clientcmdapi.Config) error) error {
	config, err := h.files.GetStartingConfig()
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	if err := change(config); err != nil {
		return err
	}
	if err := clientcmd.ModifyConfig(h.files, *config, true); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	return nil
}

func logicalCluster(ctx context.Context, objects ctrlclient.Client, path logicalcluster.Path) (*corev1alpha1.LogicalCluster, error) {
	cluster := &corev1alpha1.LogicalCluster{}
	err := objects.Get(In(ctx, path), ctrlclient.ObjectKey{Name: corev1alpha1.LogicalClusterName}, cluster)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is no workspace %q: \"%s workspace tree\" shows what there is", path, Self)
	case apierrors.IsForbidden(err) && path != Root && !strings.Contains(path.String(), ":"):
		// A path of one part that is not root is the name of a logical cluster, which people do not type: they mean what is below root.
		return nil, fmt.Errorf("there is no logical cluster of the name %q, or you may not enter it; \"%s workspace tree\" shows the workspaces by path: %w", path, Self, err)
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("workspace %q: there is none, or you may not enter it: %w", path, err)
	case err != nil:
		return nil, fmt.Errorf("look up workspace %q: %w", path, err)
	}
	return cluster, nil
}
