// Command realnode is a physical cluster whose one node truly runs pods: contrib/physical with the kubelet and the kube-proxy of its release, containerd,
// runc and CoreDNS, all unmodified, for tests of what simulated pods cannot show.
//
// It is three processes. The first has the ports on this machine's loopback. It starts the second as process 1 of namespaces of its own (processes, mounts,
// network, names, IPC), in which everything else runs. The third stands aside, makes the cgroups of the pods, and removes them when process 1 has ended.
//
// It reads and writes one directory (--root-directory), which its namespaces show as /var, too. A start on the same directory is to the pods as if the machine had
// been switched off and on.
//
// Invariants:
//   - Whatever is killed, nothing stays: the first process takes process 1 along (the kernel's signal of parent-death), that one takes all others, and with the last
//     of them go mounts and network. The third learns that from the kernel, and removes the cgroups. Only where it is killed, too, do cgroups stay, empty, until the
//     next start on the directory.
//   - Nothing of this machine's network is touched. Pods reach each other, their API server, and the ports that --reach names; this machine reaches the API server.
//   - Nothing of this machine's settings is touched: components have /proc/sys read-only, but for what is of their network. A privileged pod is not held to that. (Of a
//     hierarchy of cgroups of version 2, the controllers stay given that the pods' cgroups were.)
//   - If any component ends, everything ends, with an error that says which.
//
// On failure of the machine to run pods at all it starts nothing: "realnode check" says what is missing.
//
// start.go is the file to read first.
package main
