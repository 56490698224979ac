package framework

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// RealNodeMachine is where pods of a real node reach the ports of this machine that it names. To this machine the name means nothing.
const RealNodeMachine = "machine.realnode.test"

// RealNodeAddress is its address there.
const RealNodeAddress = "10.254.0.1"

// PhysicalRealNode gives the cluster one node that truly runs pods (contrib/realnode), instead of simulated ones. It has the images, archives as docker
// writes them, and its pods reach those ports of this machine's loopback at RealNodeMachine.
func PhysicalRealNode(images []string, ports ...int) PhysicalOption {
	return func(p *Physical) {
		p.binary = filepath.Join(binDir(p.t, realNodeScript), "realnode")
		for _, image := range images {
			p.args = append(p.args, "--image="+image)
		}
		for _, port := range ports {
			p.args = append(p.args, fmt.Sprintf("--reach=%d", port))
		}
	}
}

// PhysicalWorkspaceNames has the DNS of a real node answer pods of workspaces by the names of their workspaces (contrib/dns).
func PhysicalWorkspaceNames() PhysicalOption {
	return func(p *Physical) { p.args = append(p.args, "--workspace-names") }
}

// realNodeScript builds what a real node is made of, but for physical.
const realNodeScript = "contrib/realnode/build.sh"

// Lack is what a machine has not, and needs to run pods.
type Lack struct {
	What string // a word, the same on all machines
	Why  string
}

// RealNodesLack says what this machine lacks to run pods.
func RealNodesLack(t testing.TB) []Lack {
	t.Helper()
	binary := filepath.Join(os.Getenv("ATOLL_BIN_DIR"), "realnode")
	if _, err := os.Stat(binary); err != nil || !filepath.IsAbs(binary) {
		if lacks := cannotBuild(t); len(lacks) > 0 {
			return lacks
		}
		binary = filepath.Join(binDir(t, realNodeScript), "realnode")
	}
	if _, err := os.Stat(binary); err != nil {
		return []Lack{{"build", fmt.Sprintf("%v: %s builds it, for which this machine lacks nothing", err, realNodeScript)}}
	}
	cmd := exec.CommandContext(t.Context(), binary, "check", "--root-directory="+t.TempDir())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var lacks []Lack
	for line := range strings.Lines(string(out)) {
		what, why, _ := strings.Cut(strings.TrimSpace(line), "\t")
		lacks = append(lacks, Lack{what, why})
	}
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || len(lacks) == 0) {
		t.Fatalf("ask what this machine lacks to run pods: %v\n%s", err, &stderr)
	}
	return lacks
}

// cannotBuild says for what reason a real node was not built here, which takes minutes: it could not be, or not be run.
func cannotBuild(t testing.TB) []Lack {
	t.Helper()
	if os.Geteuid() != 0 {
		return []Lack{{"root", fmt.Sprintf("a kubelet runs as root, and this is user %d", os.Geteuid())}}
	}
	root, err := repository(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(root, "contrib/realnode/debian.sh"), "--check").CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &exit) || exit.ExitCode() != 1 || len(out) == 0:
		t.Fatalf("ask for the packages of a real node: %v\n%s", err, out)
	}
	return []Lack{{"programs", strings.TrimSpace(string(out))}}
}
