// Package kinds is the one list of kinds that go down to physical clusters, and of the rules for each: where it goes,
// what of it goes, what it needs beside it, and how the statuses of its leaves become the status of the root.
//
// It is data and small pure functions: no client, no clock, no map order in a result. A kind is added by adding an entry
// to All: informers, rights, Placements and warnings follow it, the splitter renders and summarises by it, the syncer copies what it
// lists, docs/kinds.md shows it. Which syncers carry it, they say themselves (SyncTarget, status.carriedResources).
//
// What always holds: nothing of the hub's own bookkeeping (UIDs, resource versions, owners, finalizers, status) is in a
// rendering; equal input gives an equal rendering and an equal hash; credentials of a workspace (tokens of
// ServiceAccounts, Helm's release records) are never rendered.
//
// Read kinds.go first.
//
//go:generate go run ./document ../../docs/kinds.md
package kinds
