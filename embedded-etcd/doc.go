// Package embeddedetcd gives the server its store: an etcd started in this process, or a client of an external one.
//
// It reads and writes the data directory of the embedded etcd, in which it keeps a file of checksums, and of the store only the key
// /atoll/format, the version of the layout of everything else. Rows of API objects belong to package server/storage.
//
// What always holds: an acknowledged write is on disk (fsync is on and no option turns it off); one process at a time
// opens a data directory; a store whose format this binary does not know is refused before anything is read from it; no
// TCP port is opened unless one is asked for together with certificates.
//
// The start command starts it first and stops it last: an API server that stops after its etcd hangs in its requests.
// Its files are looked through before etcd opens them (examine.go, pages.go), and its rows compared with checksums that are kept beside them
// (checksums.go, keepsums.go): etcd has none, and would serve what a disk made of a value.
// When the disk fails, etcd ends the process rather than acknowledge what it may lose, and log.go has
// the last words; when an external etcd is away, requests fail with their own deadlines and succeed again when it is back, and the log
// says both, once each.
//
// A store that has the size that it may have (Options.QuotaBytes) takes nothing new: reads and deletions go on. When there is room
// again it takes writes again by itself (space.go); an external etcd has to be defragmented and its alarm ended by who runs it.
//
// The in-process client calls the etcd server's functions directly. Against gRPC over loopback that is 2.4 times the
// creates and 10 times the reads, and there is no port, certificate or password to protect.
//
// TakeSnapshot (snapshot.go) reads the whole store at one moment; Restoration (restore.go) makes a data directory of what
// it read, with a revision above everything that anybody saw. Until that is done the directory cannot be opened.
//
// Read embedded.go first, then format.go.
package embeddedetcd
