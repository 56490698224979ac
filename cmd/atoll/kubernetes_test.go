package main

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const kubernetesVersion = `{"major":"1","minor":"36","gitVersion":"v1.36.3"}`

// kubeconfigOf returns a kubeconfig, with a context named east, of a server that answers with serve.
func kubeconfigOf(t *testing.T, path string, serve http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewTLSServer(serve)
	t.Cleanup(server.Close)
	config := clientcmdapi.NewConfig()
	config.Clusters["east"] = &clientcmdapi.Cluster{
		Server:                   server.URL + path,
		CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}
	config.Contexts["east"] = &clientcmdapi.Context{Cluster: "east", AuthInfo: "admin"}
	config.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Token: "t"}
	config.CurrentContext = "east"
	file := filepath.Join(t.TempDir(), "east.kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// commandLine runs the command line of a command that asks an Atoll.
func commandLine(t *testing.T, args ...string) error {
	t.Helper()
	streams, _, _, _ := genericiooptions.NewTestIOStreams()
	cmd := &cobra.Command{Use: "atoll", SilenceErrors: true, SilenceUsage: true}
	cmd.AddCommand(newWorkspaceCommand(streams), newClusterCommand(streams), newBackupCommand(streams))
	cmd.SetArgs(args)
	return cmd.ExecuteContext(t.Context())
}

// forbidPath is how Kubernetes and Atoll refuse a path that is no resource.
func forbidPath(w http.ResponseWriter, req *http.Request, path string) {
	err := apierrors.NewForbidden(schema.GroupResource{}, "", fmt.Errorf("User %q cannot get path %q", "ann", path))
	responsewriters.ErrorNegotiated(err, scheme.Codecs, schema.GroupVersion{Version: "v1"}, w, req)
}

// Who gives the kubeconfig of a Kubernetes cluster is told just that, whatever command it was and whatever he may do there.
func TestKubernetesIsNoAtoll(t *testing.T) {
	answers := map[string]http.HandlerFunc{
		"an administrator": http.NotFound,
		"a user":           func(w http.ResponseWriter, req *http.Request) { forbidPath(w, req, req.URL.Path) },
	}
	output := filepath.Join(t.TempDir(), "file")
	for who, answer := range answers {
		for _, path := range []string{"", "/clusters/root:shop"} { // as the administrator of an Atoll that moved has it
			file := kubeconfigOf(t, path, func(w http.ResponseWriter, req *http.Request) {
				if req.URL.Path != "/version" {
					answer(w, req)
					return
				}
				fmt.Fprint(w, kubernetesVersion)
			})
			for _, args := range []string{
				"workspace list", "workspace list root", "workspace tree", "workspace use root", "workspace use", "workspace current", "workspace create root:shop",
				"workspace create shop --ignore-existing", "workspace delete shop", "workspace delete root:shop", "workspace export root:shop -o " + output,
				"cluster list", "cluster status east", "cluster remove east", "cluster cordon east", "cluster add east --kubeconfig " + file, "backup -o " + output,
			} {
				flag := "--kubeconfig"
				if strings.HasPrefix(args, "cluster") {
					flag = "--hub-kubeconfig"
				}
				if args == "workspace current" && path != "" {
					continue // which only reads the kubeconfig
				}
				err := commandLine(t, append(strings.Fields(args), flag, file)...)
				for _, want := range []string{"this is a Kubernetes cluster, not an Atoll: https://127.0.0.1:", "version v1.36.3", `context "east" of ` + file, "start", "cluster add NAME --kubeconfig"} {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("%s at %q, atoll %s: %v; want an error with %q", who, path, args, err, want)
						break
					}
				}
			}
		}
	}
}

// What an Atoll answers stays what is said of it, and so does what nobody can tell.
func TestAnAtollIsNoKubernetes(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "as it is", code) }
	}
	for reason, answer := range map[string]http.HandlerFunc{
		"root may be read":           func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, kubernetesVersion) },
		"root may not be read":       func(w http.ResponseWriter, req *http.Request) { forbidPath(w, req, "/version") },
		"nobody we know":             status(http.StatusUnauthorized),
		"it cannot look up now":      status(http.StatusServiceUnavailable),
		"it breaks off":              func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"some other server, in HTML": http.NotFound,
	} {
		var mu sync.Mutex // guards paths
		paths := []string{}
		file := kubeconfigOf(t, "/clusters/root:shop", func(w http.ResponseWriter, req *http.Request) {
			mu.Lock()
			paths = append(paths, req.URL.Path)
			mu.Unlock()
			if strings.HasSuffix(req.URL.Path, "/version") && !strings.HasPrefix(reason, "some other") {
				answer(w, req)
				return
			}
			http.NotFound(w, req)
		})
		err := commandLine(t, "workspace", "list", "--kubeconfig", file)
		if err == nil || strings.Contains(err.Error(), "Kubernetes cluster") {
			t.Errorf("%s: %v; want what the server answered to the list", reason, err)
		}
		mu.Lock()
		if !slices.Contains(paths, "/clusters/root/version") {
			t.Errorf("%s: asked for %q, not what the server is", reason, paths)
		}
		mu.Unlock()
	}
}

// Who waits for a command that failed waits no longer for a server that does not answer.
func TestFailedCommandsAskOnlyWhoAnswers(t *testing.T) {
	for reason, test := range map[string]struct {
		answer http.HandlerFunc // the first
		asked  []string
		says   string
	}{
		"it answers and is silent then": {
			answer: func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, "as it is", http.StatusInternalServerError)
			},
			asked: []string{"/clusters/root:shop/apis/tenancy.kcp.io/v1alpha1/workspaces", "/clusters/root/version"}, says: "as it is",
		},
		"it does not answer to the end": {
			answer: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "100")
				fmt.Fprint(w, "half")
			},
			asked: []string{"/clusters/root:shop/apis/tenancy.kcp.io/v1alpha1/workspaces"}, says: "unexpected EOF",
		},
	} {
		var mu sync.Mutex // guards asked
		var asked []string
		file := kubeconfigOf(t, "/clusters/root:shop", func(w http.ResponseWriter, req *http.Request) {
			mu.Lock()
			asked = append(asked, req.URL.Path)
			first := len(asked) == 1
			mu.Unlock()
			if first {
				test.answer(w, req)
				return
			}
			<-req.Context().Done() // until who asked gives up
		})
		err := commandLine(t, "workspace", "list", "--kubeconfig", file)
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: error %v, want one with %q", reason, err, test.says)
		}
		mu.Lock()
		if !slices.Equal(asked, test.asked) {
			t.Errorf("%s: asked for %q, want %q", reason, asked, test.asked)
		}
		mu.Unlock()
	}
}
