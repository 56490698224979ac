package syncer

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"atoll.dev/atoll/internal/classes"
	"atoll.dev/atoll/internal/kinds"
)

// ClusterRules are the rights that a Syncer needs in its whole physical cluster: it writes what goes down, in whatever
// namespace; it reads the nodes and the classes; it shows the pods, makes those that are bound, deletes those that a workspace
// deletes, resizes and adds to those that a workspace does, and goes into those whose logs and streams a workspace asks for; it
// tells the events; and it lists everything, since a namespace of ours goes only when nobody else has anything in it, and by
// which it reads what pods use (pods of metrics.k8s.io), too.
func ClusterRules() []rbacv1.PolicyRule {
	writes := []string{"get", "list", "watch", "create", "patch", "delete"}
	rules := []rbacv1.PolicyRule{
		{APIGroups: []string{corev1.GroupName}, Resources: []string{namespacesGVR.Resource}, Verbs: writes},
		{APIGroups: []string{corev1.GroupName}, Resources: []string{nodesGVR.Resource}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{corev1.GroupName}, Resources: []string{eventsGVR.Resource}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{corev1.GroupName}, Resources: []string{"pods/log"}, Verbs: []string{"get"}},
		// One may be asked for by either verb, and needs both from one that upgrades a GET.
		{APIGroups: []string{corev1.GroupName}, Resources: []string{"pods/exec", "pods/attach", "pods/portforward"}, Verbs: []string{"get", "create"}},
		{APIGroups: []string{corev1.GroupName}, Resources: []string{"pods/ephemeralcontainers", "pods/resize"}, Verbs: []string{"patch"}},
		{APIGroups: []string{rbacv1.APIGroupAll}, Resources: []string{rbacv1.ResourceAll}, Verbs: []string{"list"}},
	}
	for _, kind := range classes.All {
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{kind.GVR.Group}, Resources: []string{kind.GVR.Resource}, Verbs: []string{"list", "watch"}})
	}
	for _, kind := range kinds.All {
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{kind.GVR.Group}, Resources: []string{kind.GVR.Resource}, Verbs: writes})
	}
	return rules
}

// NamespaceRules are the rights that the Syncer, outside the server, of the SyncTarget with that UID needs in the namespace
// of its heartbeat besides: its heartbeat, the Lease of its leader election, and the Secret of the same name, which keeps
// its credential. Nothing can be created under certain names alone.
func NamespaceRules(name, uid string) []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, ResourceNames: []string{name, heartbeatBelow(uid)}, Verbs: []string{"get", "update"}},
		{APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, Verbs: []string{"create"}},
		{APIGroups: []string{corev1.GroupName}, Resources: []string{"secrets"}, ResourceNames: []string{name}, Verbs: []string{"get", "patch"}},
	}
}
