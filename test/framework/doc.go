// Package framework runs what tests of the whole product are about: the server (Atoll), physical clusters (Physical) and an external etcd (Etcd),
// each the built binary in a child process (Process), and asks of them what a person or an administrator could ask.
//
// It uses free ports, directories of the test, and the binaries in ATOLL_BIN_DIR or bin.
//
// What always holds: no child process outlives the process of the test, however that ends; what is stopped and started
// again has its data and address of before; whatever fails says so with the last lines of the log.
//
// Read process.go first.
package framework
