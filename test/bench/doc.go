// Package main measures Atoll against its goals: `make bench`.
//
// It runs scenarios one after the other, each against the built binary in a process of its own: embedded etcd with fsync,
// TLS, an empty directory. A scenario measures one or more rows; a row has one figure, a goal, and the samples behind the
// figure. Load comes from this process, on the same machine, so that figures are lower bounds; that of which a row says how
// little it disturbs others, from a process of its own (flood.go).
//
// A full run writes docs/benchmarks.json, which holds the samples, and renders docs/benchmarks.md from it. A run of some
// rows (--rows) replaces those rows there and leaves the others with the date, commit and load of their own run; --quick
// makes everything small, writes nothing and only proves that each row runs. --render writes docs/benchmarks.md anew, after
// a change of how that is done.
//
// What writes figures first checks that they can be compared (ready.go): it refuses where files other than documents differ
// from the commit, or from that which bin/atoll was built of, and where the machine does not become quiet within minutes. --force
// measures nevertheless; the commit is marked then, and the load from before stands beside the figures as ever.
//
// Nothing stays behind: processes end and directories go at the end of each scenario, also after an error, a panic
// of a scenario, or ^C; processes go even if this one is killed.
//
// Read scenarios.go for what is measured, env.go for what a scenario has to work with, then the scenarios themselves.
package main
