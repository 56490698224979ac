// Kcpclient is a client written for kcp: it has kcp's own types and client set (github.com/kcp-dev/sdk), and nothing of Atoll.
// Tests run it against a server.
//
//	kcpclient version                 kcp's module and its version
//	kcpclient fields                  the fields of kcp's types, one a line: its path, a blank, and what it is
//	kcpclient decode < objects        reads objects, JSON after JSON, strictly; writes of each {"faults": [...], "object": {...}}:
//	                                  the fields that kcp's type does not have, and the object as kcp's client would send it back
//	kcpclient use KUBECONFIG NAME     makes a workspace in root, waits until it is ready as kcp's tools do, uses and deletes it
//
// It is a module of its own, so that the server depends on nothing of kcp's. Read main.go first.
package main
