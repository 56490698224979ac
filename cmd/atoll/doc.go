// Command atoll is the server ("atoll start") and what people talk to it with: kubectl, workspaces and physical clusters.
//
// One file holds one subcommand. The client commands read the kubeconfig that internal/cli finds and speak to the
// server's API alone, so everything they do can be done with kubectl as well; "atoll start" is in start.go, and
// controllers.go is the list of everything that runs in the server. Of several servers on one etcd one runs most of it
// (replicas.go).
//
// Errors go to stderr as one sentence that names the input and says what to do; the exit code is then 1. "atoll kubectl"
// exits as kubectl does.
//
// Read root.go first.
package main
