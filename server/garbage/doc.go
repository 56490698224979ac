// Package garbage deletes what has no owner left, in all workspaces: the garbage collector of kube-controller-manager, for
// all logical clusters at once.
//
// It follows the metadata of all stored resources but events, from the stores in this process, without requests and
// without keeping it (feed.go). What it keeps is a graph of the objects that have owners, are named as owners, or
// wait for their dependents (graph.go). Each change there names the objects that have to be looked at; shared workers
// (look.go) read them and their owners, decide as upstream does (decide.go, pure), and then delete an object or take owners
// off its references. Others (sweep.go) take off the finalizers foregroundDeletion and orphan. These writes are ordinary
// requests, so that admission and the audit log see them. It also writes the Events OwnerRefInvalidNamespace and
// TooManyOwnerReferences (events.go).
//
// What always holds:
//
//   - An object is deleted only after a read from etcd of each of its owners showed that none exists under that kind, name
//     and UID, in its own namespace or in none, or that those left wait for it. The deletion is of that UID and, unless
//     only other things changed meanwhile, of the resourceVersion that was read.
//   - An object that waits for its dependents, or to be orphaned, goes only after consistent lists of all resources that its
//     logical cluster may have, as etcd has it, whether or not they are followed yet. If one fails, nothing of the kind happens
//     there until it does not, and the log says why. Up to 1,000 such objects share the lists, and of each logical cluster one
//     such pass runs at a time, of all of them four: it holds up nothing else of what is collected.
//   - While an import fills a logical cluster nothing is done there: owners and dependents may be on their way.
//   - What names an owner of a kind that is not served, or of the wrong scope, is kept. It is looked at when its own logical
//     cluster serves that kind.
//   - What has more than 1,000 owner references, or is too much where a logical cluster has 100,000 and four for each object, is
//     kept, too, with an Event. It is orphaned and waited for as all else: only what it names is not in the graph.
//   - Nothing is done in mirrors, where the splitter and the syncer decide, nor in a logical cluster that does not exist, and an
//     owner in another logical cluster is none, whatever its name and UID.
//   - An object without owners and dependents costs nothing here, so that an idle workspace does not either. Of what is gone,
//     or went with its logical cluster, nothing is kept, whether or not anybody told of it.
//
// As upstream, it is late by as much as it hears of definitions: where one is made anew in another scope, and of its end is heard
// first, its objects may be looked for by what they were, and not be found.
//
// Upstream's graph knows objects by UID, and compares what references say of one: here a name belongs to the identity, and
// references that disagree name different objects. Upstream asks its graph alone whether dependents are left; here the stores
// have the last word, since the watches of a busy server lag and what an orphaned object's deletion misses would be lost.
//
// The start command runs it: New, then Run after the informers. Nothing is kept but in memory: after a restart the
// first lists bring everything again, finalizers that wait included. When etcd is down nothing is deleted, and everything is
// tried again.
//
// Custom resources, and their definitions, are followed as long as any logical cluster defines them (custom.go): one watch of
// etcd each, which reads their metadata whatever their schema, however many define them, and whether or not there are objects.
//
// Read look.go first, then graph.go.
package garbage
