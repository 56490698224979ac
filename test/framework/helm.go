package framework

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// helmPatience is more than any --timeout of a test, so that Helm's error is the one that is seen.
const helmPatience = 15 * time.Minute

// HelmRecord begins the names of the Secrets in which Helm keeps what it installed.
const HelmRecord = "sh.helm.release.v1."

// Helm is the built helm, at home in a directory of its own: neither this person's plugins and settings, nor traces in his caches.
type Helm struct {
	Dir        string // where it runs, and its home
	binary     string
	kubeconfig string
}

// NewHelm is helm for whom a kubeconfig is, or nobody: in ATOLL_BIN_DIR, else in the repository's bin after bringing it up to date.
func NewHelm(t testing.TB, kubeconfig string) *Helm {
	t.Helper()
	binary := filepath.Join(binDir(t, "test/helm/build.sh"), "helm")
	if _, err := os.Stat(binary); err != nil {
		t.Fatalf("find helm: %v; run `test/helm/build.sh %s` first", err, filepath.Dir(binary))
	}
	return &Helm{Dir: t.TempDir(), binary: binary, kubeconfig: kubeconfig}
}

// Run runs helm.
func (h *Helm) Run(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(ctx, helmPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, h.binary, args...)
	cmd.Dir = h.Dir
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "HELM_") || strings.HasPrefix(v, "XDG_") || strings.HasPrefix(v, "KUBE")
	}), "HOME="+h.Dir, "KUBECONFIG="+h.kubeconfig)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = runBound(cmd)
	return out.String(), errs.String(), err
}
