package charts

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"atoll.dev/atoll/internal/kinds"
)

// least is how many charts have each feature: what one chart does may be by chance.
const least = 3

// feature is a kind, or what of a kind has a part in where it goes and what becomes of it.
type feature struct {
	kind string
	name string // empty: the kind itself
	in   func(obj) bool
}

// obj is what a chart is rendered to.
type obj struct{ *unstructured.Unstructured }

// features are all kinds that docs/kinds.md names, and declared.
func features() []feature {
	var all []feature
	for _, k := range kinds.All {
		all = append(all, feature{k.GVK.Kind, "", isResource(k.GVR.GroupResource())})
	}
	here := slices.Clone(kinds.Kept)
	for resource := range kinds.CarriedOutHere {
		here = append(here, resource)
	}
	slices.SortFunc(here, func(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) })
	for _, resource := range here {
		all = append(all, feature{"`" + resource.String() + "`", "", isResource(resource)})
	}
	all = append(all, declared...)
	// Features of a kind follow it, in the order in which they are declared.
	var sorted []feature
	for i, f := range all {
		if slices.ContainsFunc(all[:i], func(before feature) bool { return before.kind == f.kind }) {
			continue
		}
		for _, of := range all {
			if of.kind == f.kind {
				sorted = append(sorted, of)
			}
		}
	}
	return sorted
}

// declared is the one list of what charts have to have beside the kinds that go down, are kept, or are carried out in the workspace.
var declared = []feature{
	{"ServiceAccount", "named by pods", pods(func(p obj) bool { return p.text("serviceAccountName") != "" })},
	{"ServiceAccount", "`default`, of pods that name none", pods(func(p obj) bool { return p.text("serviceAccountName") == "" })},
	{"ServiceAccount", "`imagePullSecrets`", of("ServiceAccount", has("imagePullSecrets"))},
	{"ServiceAccount", "no token mounted", either(of("ServiceAccount", isFalse("automountServiceAccountToken")), pods(isFalse("automountServiceAccountToken")))},

	{"ConfigMap", "as a volume", volumes(has("configMap"))},
	{"ConfigMap", "in a projected volume", sources(has("configMap"))},
	{"ConfigMap", "in a variable", variables(has("valueFrom", "configMapKeyRef"))},
	{"ConfigMap", "as variables (`envFrom`)", containers(some(has("configMapRef"), "envFrom"))},
	{"ConfigMap", "one that may be missing", either(volumes(isTrue("configMap", "optional")),
		variables(isTrue("valueFrom", "configMapKeyRef", "optional")), containers(some(isTrue("configMapRef", "optional"), "envFrom")))},
	{"ConfigMap", "`binaryData`", of("ConfigMap", has("binaryData"))},
	{"ConfigMap", "`immutable`", of("ConfigMap", isTrue("immutable"))},

	{"Secret", "as a volume", volumes(has("secret"))},
	{"Secret", "in a projected volume", sources(has("secret"))},
	{"Secret", "in a variable", variables(has("valueFrom", "secretKeyRef"))},
	{"Secret", "as variables (`envFrom`)", containers(some(has("secretRef"), "envFrom"))},
	{"Secret", "one that may be missing", either(sources(isTrue("secret", "optional")), variables(isTrue("valueFrom", "secretKeyRef", "optional")),
		containers(some(isTrue("secretRef", "optional"), "envFrom")))},
	{"Secret", "`immutable`", of("Secret", isTrue("immutable"))},
	{"Secret", "type `kubernetes.io/tls`", of("Secret", is("kubernetes.io/tls", "type"))},
	{"Secret", "type `kubernetes.io/dockerconfigjson`", of("Secret", is("kubernetes.io/dockerconfigjson", "type"))},

	{"PersistentVolumeClaim", "mounted by what a chart makes", volumes(has("persistentVolumeClaim"))},
	{"PersistentVolumeClaim", "of a StorageClass", claims(has("spec", "storageClassName"))},
	{"PersistentVolumeClaim", "of the cluster's default StorageClass", claims(func(o obj) bool { return !has("spec", "storageClassName")(o) })},

	{"LimitRange", "defaults of containers", of("LimitRange", some(has("defaultRequest"), "spec", "limits"))},

	{"NetworkPolicy", "pods by label", peers(func(p obj) bool { return has("podSelector", "matchLabels")(p) && !has("namespaceSelector")(p) })},
	{"NetworkPolicy", "namespaces by label", peers(has("namespaceSelector"))},
	{"NetworkPolicy", "addresses", peers(has("ipBlock"))},
	{"NetworkPolicy", "from everywhere", of("NetworkPolicy", some(func(r obj) bool { return !has("from")(r) }, "spec", "ingress"))},
	{"NetworkPolicy", "outward", of("NetworkPolicy", has("spec", "egress"))},
	{"NetworkPolicy", "nothing is let in", of("NetworkPolicy", func(o obj) bool { return !has("spec", "ingress")(o) && !has("spec", "podSelector", "matchLabels")(o) })},

	{"Service", "cluster IP", of("Service", func(o obj) bool { return o.text("spec", "type") == "" && o.text("spec", "clusterIP") == "" })},
	{"Service", "headless", of("Service", is("None", "spec", "clusterIP"))},
	{"Service", "NodePort, which the cluster chooses", of("Service", both(is("NodePort", "spec", "type"), some(func(p obj) bool { return !has("nodePort")(p) }, "spec", "ports")))},
	{"Service", "NodePort, which the chart chooses", of("Service", both(is("NodePort", "spec", "type"), some(has("nodePort"), "spec", "ports")))},
	{"Service", "LoadBalancer", of("Service", is("LoadBalancer", "spec", "type"))},
	{"Service", "ExternalName", of("Service", is("ExternalName", "spec", "type"))},
	{"Service", "without a selector", of("Service", func(o obj) bool { return !has("spec", "selector")(o) && !is("ExternalName", "spec", "type")(o) })},
	{"Service", "several ports", of("Service", several("spec", "ports"))},
	{"Service", "`sessionAffinity`", of("Service", is("ClientIP", "spec", "sessionAffinity"))},
	{"Service", "`publishNotReadyAddresses`", of("Service", isTrue("spec", "publishNotReadyAddresses"))},
	{"Service", "`externalTrafficPolicy: Local`", of("Service", is("Local", "spec", "externalTrafficPolicy"))},

	{"Ingress", "TLS", of("Ingress", has("spec", "tls"))},
	{"Ingress", "of an IngressClass", of("Ingress", has("spec", "ingressClassName"))},
	{"Ingress", "several hosts", of("Ingress", several("spec", "rules"))},
	{"Ingress", "a default backend", of("Ingress", has("spec", "defaultBackend"))},

	{"Deployment", "several replicas", of("Deployment", func(o obj) bool { return o.number("spec", "replicas") > 1 })},
	{"Deployment", "`maxSurge`, `maxUnavailable`", of("Deployment", both(has("spec", "strategy", "rollingUpdate", "maxSurge"), has("spec", "strategy", "rollingUpdate", "maxUnavailable")))},
	{"Deployment", "`Recreate`", of("Deployment", is("Recreate", "spec", "strategy", "type"))},
	{"Deployment", "`minReadySeconds`", of("Deployment", has("spec", "minReadySeconds"))},

	{"ReplicaSet", "several replicas", of("ReplicaSet", func(o obj) bool { return o.number("spec", "replicas") > 1 })},

	{"DaemonSet", "tolerations", of("DaemonSet", has("spec", "template", "spec", "tolerations"))},
	{"DaemonSet", "`updateStrategy`", of("DaemonSet", has("spec", "updateStrategy"))},

	{"StatefulSet", "with claims", of("StatefulSet", has("spec", "volumeClaimTemplates"))},
	{"StatefulSet", "without claims", of("StatefulSet", func(o obj) bool { return !has("spec", "volumeClaimTemplates")(o) })},
	{"StatefulSet", "`podManagementPolicy: Parallel`", of("StatefulSet", is("Parallel", "spec", "podManagementPolicy"))},
	{"StatefulSet", "`partition`", of("StatefulSet", func(o obj) bool { return o.number("spec", "updateStrategy", "rollingUpdate", "partition") > 0 })},
	{"StatefulSet", "`persistentVolumeClaimRetentionPolicy`", of("StatefulSet", has("spec", "persistentVolumeClaimRetentionPolicy"))},

	{"Job", "Indexed", of("Job", is("Indexed", "spec", "completionMode"))},
	{"Job", "several pods at a time", of("Job", func(o obj) bool { return o.number("spec", "parallelism") > 1 })},
	{"Job", "`ttlSecondsAfterFinished`", of("Job", has("spec", "ttlSecondsAfterFinished"))},
	{"Job", "`podFailurePolicy`", of("Job", has("spec", "podFailurePolicy"))},

	{"Pod", "of its own", of("Pod", func(obj) bool { return true })},
	{"Pod", "several containers", pods(several("containers"))},
	{"Pod", "init containers", pods(some(func(c obj) bool { return !has("restartPolicy")(c) }, "initContainers"))},
	{"Pod", "sidecars (`restartPolicy: Always`)", pods(some(is("Always", "restartPolicy"), "initContainers"))},
	{"Pod", "probes", containers(has("readinessProbe"))},
	{"Pod", "`lifecycle`", containers(has("lifecycle"))},
	{"Pod", "what it is, in variables", variables(has("valueFrom", "fieldRef"))},
	{"Pod", "spread over nodes or zones", pods(has("topologySpreadConstraints"))},
	{"Pod", "affinity", pods(has("affinity"))},
	{"Pod", "`securityContext`", pods(has("securityContext"))},
	{"Pod", "of a PriorityClass", pods(has("priorityClassName"))},
	{"Pod", "of a RuntimeClass", pods(has("runtimeClassName"))},

	{"`poddisruptionbudgets.policy`", "a number", of("PodDisruptionBudget", func(o obj) bool { return o.number("spec", "minAvailable")+o.number("spec", "maxUnavailable") > 0 })},
	{"`poddisruptionbudgets.policy`", "a percentage", of("PodDisruptionBudget", func(o obj) bool {
		return strings.HasSuffix(o.text("spec", "minAvailable")+o.text("spec", "maxUnavailable"), "%")
	})},

	{"CronJob", "", of("CronJob", func(obj) bool { return true })},
	{"Role and RoleBinding", "", of("RoleBinding", func(obj) bool { return true })},
	{"ClusterRole and ClusterRoleBinding", "", of("ClusterRoleBinding", func(obj) bool { return true })},
	{"ClusterRole and ClusterRoleBinding", "aggregated", func(o obj) bool {
		return o.GetKind() == "ClusterRole" && slices.ContainsFunc(keys(o.GetLabels()), func(k string) bool { return strings.Contains(k, "/aggregate-to-") })
	}},
	{"CustomResourceDefinition", "", of("CustomResourceDefinition", func(obj) bool { return true })},
	{"CustomResourceDefinition", "a custom resource", func(o obj) bool { return strings.HasSuffix(o.GroupVersionKind().Group, ".example.com") }},
	{"ValidatingAdmissionPolicy", "", of("ValidatingAdmissionPolicy", func(obj) bool { return true })},
	{"ValidatingWebhookConfiguration", "", of("ValidatingWebhookConfiguration", func(obj) bool { return true })},

	{"Helm", "`pre-install`", annotated("helm.sh/hook", "pre-install")},
	{"Helm", "`post-install`", annotated("helm.sh/hook", "post-install")},
	{"Helm", "`pre-upgrade`", annotated("helm.sh/hook", "pre-upgrade")},
	{"Helm", "`post-upgrade`", annotated("helm.sh/hook", "post-upgrade")},
	{"Helm", "`pre-rollback`", annotated("helm.sh/hook", "pre-rollback")},
	{"Helm", "`post-rollback`", annotated("helm.sh/hook", "post-rollback")},
	{"Helm", "`pre-delete`", annotated("helm.sh/hook", "pre-delete")},
	{"Helm", "`post-delete`", annotated("helm.sh/hook", "post-delete")},
	{"Helm", "`test`", annotated("helm.sh/hook", "test")},
	{"Helm", "weights of hooks", has("metadata", "annotations", "helm.sh/hook-weight")},
	{"Helm", "`before-hook-creation`", annotated("helm.sh/hook-delete-policy", "before-hook-creation")},
	{"Helm", "`hook-succeeded`", annotated("helm.sh/hook-delete-policy", "hook-succeeded")},
	{"Helm", "`hook-failed`", annotated("helm.sh/hook-delete-policy", "hook-failed")},
	{"Helm", "`resource-policy: keep`", annotated("helm.sh/resource-policy", "keep")},
}

// field is what an object has at a path, and whether it has it.
func (o obj) field(path ...string) (any, bool) {
	value, found, err := unstructured.NestedFieldNoCopy(o.Object, path...)
	return value, found && err == nil && value != nil
}

// text is the text at a path, or empty.
func (o obj) text(path ...string) string {
	value, _ := o.field(path...)
	s, _ := value.(string)
	return s
}

// number is the number at a path, or 0.
func (o obj) number(path ...string) int64 {
	value, _ := o.field(path...)
	n, _ := value.(int64)
	return n
}

// at is what there is at a path, if it has fields.
func (o obj) at(path ...string) obj {
	value, _ := o.field(path...)
	fields, _ := value.(map[string]any)
	return obj{&unstructured.Unstructured{Object: fields}}
}

// list is the maps in the list at a path.
func (o obj) list(path ...string) []obj {
	value, _ := o.field(path...)
	items, _ := value.([]any)
	var all []obj
	for _, item := range items {
		if m, ok := item.(map[string]any); ok {
			all = append(all, obj{&unstructured.Unstructured{Object: m}})
		}
	}
	return all
}

// pod is the spec of the pods that an object is, or makes.
func (o obj) pod() (obj, bool) {
	for _, path := range [][]string{{"spec", "jobTemplate", "spec", "template", "spec"}, {"spec", "template", "spec"}, {"spec"}} {
		if p := o.at(path...); len(p.list("containers")) > 0 {
			return p, true
		}
	}
	return obj{}, false
}

func has(path ...string) func(obj) bool {
	return func(o obj) bool { _, ok := o.field(path...); return ok }
}

func is(want string, path ...string) func(obj) bool {
	return func(o obj) bool { return o.text(path...) == want }
}

func isTrue(path ...string) func(obj) bool {
	return func(o obj) bool { value, _ := o.field(path...); return value == true }
}

func isFalse(path ...string) func(obj) bool {
	return func(o obj) bool { value, ok := o.field(path...); return ok && value == false }
}

// several says that the list at a path has more than one item.
func several(path ...string) func(obj) bool {
	return func(o obj) bool { return len(o.list(path...)) > 1 }
}

// some says that an item of the list at a path is as wanted.
func some(wanted func(obj) bool, path ...string) func(obj) bool {
	return func(o obj) bool { return slices.ContainsFunc(o.list(path...), wanted) }
}

func either(wanted ...func(obj) bool) func(obj) bool {
	return func(o obj) bool { return slices.ContainsFunc(wanted, func(is func(obj) bool) bool { return is(o) }) }
}

func both(a, b func(obj) bool) func(obj) bool {
	return func(o obj) bool { return a(o) && b(o) }
}

func of(kind string, wanted func(obj) bool) func(obj) bool {
	return func(o obj) bool { return o.GetKind() == kind && wanted(o) }
}

func isResource(resource schema.GroupResource) func(obj) bool {
	return func(o obj) bool {
		plural, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
		return plural.GroupResource() == resource
	}
}

func pods(wanted func(obj) bool) func(obj) bool {
	return func(o obj) bool { p, ok := o.pod(); return ok && wanted(p) }
}

func containers(wanted func(obj) bool) func(obj) bool {
	return pods(either(some(wanted, "containers"), some(wanted, "initContainers")))
}

func variables(wanted func(obj) bool) func(obj) bool { return containers(some(wanted, "env")) }

func volumes(wanted func(obj) bool) func(obj) bool { return pods(some(wanted, "volumes")) }

// sources are those of projected volumes.
func sources(wanted func(obj) bool) func(obj) bool {
	return volumes(some(wanted, "projected", "sources"))
}

// claims are those of a chart, and of its StatefulSets.
func claims(wanted func(obj) bool) func(obj) bool {
	return either(of("PersistentVolumeClaim", wanted), of("StatefulSet", some(wanted, "spec", "volumeClaimTemplates")))
}

// peers of a NetworkPolicy, in both directions.
func peers(wanted func(obj) bool) func(obj) bool {
	return of("NetworkPolicy", either(some(some(wanted, "from"), "spec", "ingress"), some(some(wanted, "to"), "spec", "egress")))
}

// annotated says that a word is in an annotation that is a list of words.
func annotated(annotation, word string) func(obj) bool {
	return func(o obj) bool {
		return slices.ContainsFunc(strings.Split(o.GetAnnotations()[annotation], ","), func(w string) bool { return strings.TrimSpace(w) == word })
	}
}

func keys(m map[string]string) []string {
	var all []string
	for k := range m {
		all = append(all, k)
	}
	return all
}

// row is a feature and the charts that have it, by name.
type row struct {
	feature
	charts []string
}

// cover says which charts, of which each is what it is rendered to, have which features.
func cover(features []feature, rendered map[string][]*unstructured.Unstructured) []row {
	var rows []row
	for _, f := range features {
		r := row{feature: f}
		for name, objects := range rendered {
			if slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool { return f.in(obj{o}) }) {
				r.charts = append(r.charts, name)
			}
		}
		slices.Sort(r.charts)
		rows = append(rows, r)
	}
	return rows
}

// few says which features are in fewer charts than they are to be.
func few(rows []row) (problems []string) {
	for _, r := range rows {
		if len(r.charts) < least {
			problems = append(problems, fmt.Sprintf("%s is in %d charts, and has to be in %d: %s", strings.TrimSpace(r.kind+" "+r.name), len(r.charts), least, strings.Join(r.charts, ", ")))
		}
	}
	return problems
}

// table is the rows in Markdown.
func table(rows []row) string {
	var b strings.Builder
	b.WriteString("| kind | feature | charts |\n|---|---|---|\n")
	for i, r := range rows {
		kind := r.kind
		if i > 0 && rows[i-1].kind == kind {
			kind = ""
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", kind, r.name, strings.Join(r.charts, ", "))
	}
	return b.String()
}

// TestFeatures: what the predicates are made of.
func TestFeatures(t *testing.T) {
	const manifests = `
kind: CronJob
apiVersion: batch/v1
metadata: {annotations: {helm.sh/hook: "pre-install, test"}}
spec: {jobTemplate: {spec: {template: {spec: {containers: [{name: a, env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]}]}}}}}
---
# nothing
---
kind: NetworkPolicy
apiVersion: networking.k8s.io/v1
spec: {ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}}]}, {ports: [{port: 80}]}]}
---
kind: StatefulSet
apiVersion: apps/v1
spec: {replicas: 2, template: {spec: {containers: [{name: a}], volumes: [{name: v, projected: {sources: [{secret: {name: s, optional: true}}]}}]}}, volumeClaimTemplates: [{spec: {}}]}
`
	objects, err := decode(manifests)
	if err != nil || len(objects) != 3 {
		t.Fatalf("%d objects, %v, want 3", len(objects), err)
	}
	for name, test := range map[string]struct {
		is   func(obj) bool
		want []string // kinds
	}{
		"of a kind":                {of("CronJob", func(obj) bool { return true }), []string{"CronJob"}},
		"annotated with a word":    {annotated("helm.sh/hook", "test"), []string{"CronJob"}},
		"not with a part of it":    {annotated("helm.sh/hook", "pre"), nil},
		"what it is, in a Job":     {variables(has("valueFrom", "fieldRef")), []string{"CronJob"}},
		"peers":                    {peers(has("ipBlock")), []string{"NetworkPolicy"}},
		"an item without a field":  {some(func(o obj) bool { return !has("from")(o) }, "spec", "ingress"), []string{"NetworkPolicy"}},
		"several":                  {several("spec", "ingress"), []string{"NetworkPolicy"}},
		"a source":                 {sources(isTrue("secret", "optional")), []string{"StatefulSet"}},
		"a claim of a StatefulSet": {claims(func(o obj) bool { return !has("spec", "storageClassName")(o) }), []string{"StatefulSet"}},
		"a number":                 {func(o obj) bool { return o.number("spec", "replicas") == 2 }, []string{"StatefulSet"}},
		"pods":                     {pods(has("containers")), []string{"CronJob", "StatefulSet"}},
		"either":                   {either(of("CronJob", has("spec")), of("NetworkPolicy", has("spec"))), []string{"CronJob", "NetworkPolicy"}},
		"both":                     {both(has("spec"), has("metadata")), []string{"CronJob"}},
		"false is not absent":      {isFalse("spec", "suspend"), nil},
	} {
		var got []string
		for _, o := range objects {
			if test.is(obj{o}) {
				got = append(got, o.GetKind())
			}
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s, -want +got:\n%s", name, diff)
		}
	}
}

func TestTable(t *testing.T) {
	always := func(obj) bool { return true }
	o := []*unstructured.Unstructured{{Object: map[string]any{"kind": "A"}}}
	rows := cover([]feature{{"A", "", always}, {"A", "more", func(o obj) bool { return o.GetKind() != "A" }}, {"B", "", always}},
		map[string][]*unstructured.Unstructured{"y": o, "x": o, "z": o})
	want := "| kind | feature | charts |\n|---|---|---|\n| A |  | x, y, z |\n|  | more |  |\n| B |  | x, y, z |\n"
	if diff := cmp.Diff(want, table(rows)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"A more is in 0 charts, and has to be in 3: "}, few(rows)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestFeaturesAreNamedOnce: a feature that is there twice is one, and none is of a kind that does not go by its name in docs/kinds.md.
func TestFeaturesAreNamedOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range features() {
		name := f.kind + " " + f.name
		if seen[name] {
			t.Errorf("%q is there twice", name)
		}
		seen[name] = true
		if f.name != "" && !seen[f.kind+" "] && f.kind != "Helm" {
			t.Errorf("%q is of a kind that is none", name)
		}
	}
}
