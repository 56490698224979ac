// Package operators runs controllers that nobody here wrote, unmodified and at pinned versions, against workspaces of one
// server: each in two workspaces at once, installed from its own manifests, as a ServiceAccount with the roles of those. It
// has an operator of its own, too (operator/, a module of its own), and what else people bring: kustomize, Helm with hooks,
// informers over many kinds.
//
// It builds its programs from the module proxy (build.sh), each by a module file of its own, so that go.mod depends on
// nothing of them. It reads their manifests in the module cache, and writes nothing but temporary files. The server and the
// programs are child processes that end with the tests.
//
// What is not there is said in docs/operators.md, which `make operators` writes: no process runs in a Pod, so who starts the programs gives
// them the files that a kubelet would mount; and where no physical cluster has a part, the tests play the controllers of one where a program
// waits for Jobs or Pods. placed_test.go has workspaces that are placed on physical clusters.
//
// Read world.go first.
package operators
