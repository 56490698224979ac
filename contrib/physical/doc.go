// Command physical is one whole physical cluster in one process: etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler, unmodified, for development and tests. Its nodes and pods are simulated by kwok, a child process.
//
// It reads and writes one directory only (--root-directory), which holds everything needed to start the same
// cluster again: data, keys, port. It listens on loopback only.
//
// With --real-node it has one node instead, whose kubelet somebody else starts (contrib/realnode), and listens on all addresses of its network namespace.
//
// Invariants:
//   - One process per directory (a lock file) and one cluster per process: the Kubernetes components register
//     metrics, feature gates and configuration handlers in process-wide registries.
//   - The apiserver is stopped before its etcd; the other way round its shutdown hangs.
//   - The file "ready" exists only while the apiserver answers, all nodes take pods and pods can be created.
//   - Who is not the apiserver gets no answer from the kubelet of the simulated nodes, and no command of kubectl exec runs on this machine unless the
//     options say so, or outlives the process: its whole session is killed (outside of Linux, its process group), but not what made a session of its own.
//   - If any component ends, the process stops the others and exits with an error.
//
// Written writes survive the end of the process, also by SIGKILL, but not of the machine: etcd runs without fsync.
//
// cluster.go is the file to read first.
package main
