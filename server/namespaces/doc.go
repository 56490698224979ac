// Package namespaces does for the namespaces of all logical clusters what kube-controller-manager does for those of one.
//
// Every namespace of a workspace gets the ServiceAccount "default" and the ConfigMap "kube-root-ca.crt" as soon as the
// namespace is seen, and again when somebody deletes or changes them; namespaces of mirrors get neither. A namespace that
// is being deleted is emptied, in workspaces and mirrors alike, and let go when nothing is left in it.
//
// It reads Namespaces, LogicalClusters and the deletions of what they hold from the shared informers, and watches the two
// default objects, which those informers leave out, by name and without keeping them: the default objects of an idle
// workspace cost no memory here. A namespace that has them already, as those of a new workspace, which are made together with
// them, costs no request: the server's watch cache is read first. It writes these objects, conditions of Namespaces, and
// spec.finalizers; it deletes everything in namespaces that are being deleted.
//
// What always holds: a namespace is let go only after a consistent read of each resource that discovery names for its
// logical cluster found nothing, and etcd has no custom resources in it that discovery does not name, as those of which no
// version is served: Kubernetes would leave these to the next namespace of that name; here it waits, and says so. If
// discovery fails, in part or as a whole, the namespace stays. Objects with finalizers are waited for, never forced. While an
// import fills a logical cluster, none of its namespaces goes.
//
// The server starts it: New before the shared informers run, then Run. If etcd is down nothing moves and everything is
// tried again.
package namespaces
