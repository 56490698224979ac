package charts

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"atoll.dev/atoll/internal/kinds"
)

// What two servers say of the same object differs in what each makes up by itself: identities, versions, times, addresses, and the ends of names.
// visible takes those away or gives them one name, by the rules below. What a rule does not name is compared as it is.

// unseen are paths that each server fills by itself, and that say nothing of the object.
var unseen = [][]string{
	{"metadata", "uid"},
	{"metadata", "resourceVersion"},
	{"metadata", "creationTimestamp"},
	{"metadata", "managedFields"}, // kubectl does not show them either
	{"metadata", "selfLink"},
	// Since when it was due that it is as it is, if that is known of what it was last.
	{"metadata", "annotations", corev1.EndpointsLastChangeTriggerTime},
}

// byPath are the rules for what each cluster chooses by itself: what is at the path gets that name, unless the chart says it.
var byPath = []struct {
	kind string   // with its group
	path []string // fields, where "*" is each item of a list
	name string
}{
	{"Service", []string{"spec", "clusterIP"}, "<address>"}, // out of a range of the cluster's own
	{"Service", []string{"spec", "clusterIPs", "*"}, "<address>"},
	{"Service", []string{"spec", "ports", "*", "nodePort"}, "<port>"}, // one that is free there
	{"Service", []string{"spec", "healthCheckNodePort"}, "<port>"},
	{"PersistentVolumeClaim", []string{"spec", "volumeName"}, "<volume>"}, // any that fits
	{"Pod", []string{"spec", "nodeName"}, "<node>"},                       // in a workspace the Nodes are physical clusters
	// DaemonSets choose for their pods.
	{"Pod", []string{"spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms", "*", "matchFields", "*", "values", "*"}, "<node>"},
	{"Pod", []string{"status", "hostIP"}, "<address>"},
	{"Pod", []string{"status", "hostIPs", "*", "ip"}, "<address>"},
	{"Pod", []string{"status", "podIP"}, "<address>"},
	{"Pod", []string{"status", "podIPs", "*", "ip"}, "<address>"},
	{"EndpointSlice.discovery.k8s.io", []string{"endpoints", "*", "addresses", "*"}, "<address>"}, // a pod's
	{"EndpointSlice.discovery.k8s.io", []string{"endpoints", "*", "nodeName"}, "<node>"},
	{"EndpointSlice.discovery.k8s.io", []string{"endpoints", "*", "zone"}, "<zone>"},
	{"EndpointSlice.discovery.k8s.io", []string{"metadata", "generation"}, "<changes>"}, // of pods, of which several may be one
	{"Endpoints", []string{"subsets", "*", "addresses", "*", "ip"}, "<address>"},
	{"Endpoints", []string{"subsets", "*", "addresses", "*", "nodeName"}, "<node>"},
	{"Endpoints", []string{"subsets", "*", "notReadyAddresses", "*", "ip"}, "<address>"},
	{"Endpoints", []string{"subsets", "*", "notReadyAddresses", "*", "nodeName"}, "<node>"},
	{"Secret", []string{"data", "release"}, "<record>"}, // Helm's, which has times in it
	{"Secret", []string{"metadata", "labels", "modifiedAt"}, "<time>"},
}

// byValue are the rules for what is told by how it looks, wherever it is.
var byValue = []struct {
	like *regexp.Regexp
	name string
}{
	{regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`), "<uid>"},
	{regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z$`), "<time>"},
}

// inText are the rules for names in sentences.
var inText = []struct {
	like *regexp.Regexp
	as   string
}{
	{regexp.MustCompile(`(ReplicaSet "[^"]*-)[bcdfghjklmnpqrstvwxz2456789]+"`), `${1}<revision>"`},
}

// randomEnd is what generateName appends.
var randomEnd = regexp.MustCompile(`-[bcdfghjklmnpqrstvwxz2456789]{5}$`)

// revisionEnd is the end of the name of a Deployment's pod, but for its random end.
var revisionEnd = regexp.MustCompile(`-[bcdfghjklmnpqrstvwxz2456789]+-~$`)

// hashLabels have the hash of a revision, by itself or at the end of the revision's name.
var hashLabels = []string{"pod-template-hash", "controller-revision-hash", "controller.kubernetes.io/hash"}

// revisionFields name revisions of StatefulSets.
var revisionFields = []string{"currentRevision", "updateRevision"}

// kindOf is how an object's kind is called where it is compared, with that of its controller: "ReplicaSet.apps of Deployment".
func kindOf(o *unstructured.Unstructured) string {
	kind := o.GroupVersionKind().GroupKind().String()
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil {
		kind += " of " + owner.Kind
	}
	return kind
}

// visible is what a user sees of an object, whoever serves it; given is what the chart says of it, nil for nothing. What it is given stays
// as it is. The names of several objects of one kind may become one.
func visible(o, given *unstructured.Unstructured) *unstructured.Unstructured {
	seen := o.DeepCopy()
	var revisions []string // of which there are several: which is which is compared
	for _, label := range hashLabels {
		value := seen.GetLabels()[label]
		revisions = append(revisions, value[strings.LastIndex(value, "-")+1:])
	}
	for _, field := range revisionFields {
		value := obj{seen}.text("status", field)
		revisions = append(revisions, strings.TrimPrefix(value, seen.GetName()+"-"))
	}
	if hasRandomEnd(seen) {
		seen.SetName(randomEnd.ReplaceAllString(seen.GetName(), "-~"))
	}
	if owner := metav1.GetControllerOfNoCopy(seen); seen.GetKind() == "Pod" && owner != nil && (owner.Kind == "ReplicaSet" || owner.Kind == "Deployment") {
		// The hash in it is that of the physical cluster's ReplicaSet.
		seen.SetName(revisionEnd.ReplaceAllString(seen.GetName(), "-<revision>-~"))
	}
	for _, path := range unseen {
		unstructured.RemoveNestedField(seen.Object, path...)
	}
	kind := seen.GroupVersionKind().GroupKind().String()
	switch kind {
	case "Pod":
		nameAPIAccess(seen)
		withoutSecondTry(seen)
	case "EndpointSlice.discovery.k8s.io":
		nameOwnZones(seen)
	}
	var chosen map[string]any
	if given != nil {
		chosen = given.Object
	}
	for _, rule := range byPath {
		if kind == rule.kind {
			named(seen.Object, chosen, rule.path, rule.name)
		}
	}
	for field := range seen.Object {
		if field != "data" { // which is the user's
			seen.Object[field] = renamed(seen.Object[field], revisions)
		}
	}
	switch kind {
	case "EndpointSlice.discovery.k8s.io":
		inOneOrder(obj{seen}, "endpoints")
	case "Endpoints":
		for _, subset := range (obj{seen}).list("subsets") {
			inOneOrder(subset, "addresses")
			inOneOrder(subset, "notReadyAddresses")
		}
	}
	return seen
}

// nameOwnZones names the zone of an endpoint in its hints as it is named in its zone. That of another endpoint keeps its name.
func nameOwnZones(slice *unstructured.Unstructured) {
	for _, endpoint := range (obj{slice}).list("endpoints") {
		for _, hint := range endpoint.at("hints").list("forZones") {
			if hint.text("name") == endpoint.text("zone") {
				hint.Object["name"] = "<zone>"
			}
		}
	}
}

// inOneOrder gives pods behind a Service, which are in any order, one that both sides have, and names that say whose they are.
func inOneOrder(o obj, field string) {
	items := o.list(field)
	if len(items) == 0 {
		return
	}
	for _, item := range items {
		if ref := item.at("targetRef"); ref.text("kind") == "Pod" {
			ref.Object["name"] = revisionEnd.ReplaceAllString(randomEnd.ReplaceAllString(ref.text("name"), "-~"), "-<revision>-~")
		}
	}
	slices.SortFunc(items, func(a, b obj) int { return strings.Compare(fmt.Sprint(a.Object), fmt.Sprint(b.Object)) })
	all := make([]any, len(items))
	for i, item := range items {
		all[i] = item.Object
	}
	o.Object[field] = all
}

// hasRandomEnd says that the server, or a controller, appended to the object's name what it made up.
func hasRandomEnd(o *unstructured.Unstructured) bool {
	if o.GetGenerateName() != "" {
		return true
	}
	owner := metav1.GetControllerOfNoCopy(o)
	// Those of StatefulSets have an ordinal. A slice that somebody's Endpoints own loses its generateName when it is changed.
	return owner != nil && (o.GetKind() == "Pod" && owner.Kind != "StatefulSet" || o.GetKind() == "EndpointSlice")
}

// apiAccess are the names of the volume that a pod has for the API which nobody gave it: admission's, and the workspace's for what it renders.
var apiAccess = regexp.MustCompile(`^(kube-api-access-[a-z0-9]{5}|atoll-api-access)$`)

// apiVariables say where the API is, of a workspace; kubelets set them without a word in the pod.
var apiVariables = []string{"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBERNETES_SERVICE_PORT_HTTPS"}

// nameAPIAccess gives one name to how a pod reaches the API, by tokens that kubelets ask for or by a Secret with them
// (docs/design/0014-api-access.md): which tokens are mounted where, and that none is, is compared.
func nameAPIAccess(pod *unstructured.Unstructured) {
	spec := obj{pod}.at("spec")
	if metav1.GetControllerOfNoCopy(pod) != nil {
		delete(spec.Object, "automountServiceAccountToken") // the workspace's pods mount none by that
	}
	name := func(o obj) {
		if apiAccess.MatchString(o.text("name")) {
			o.Object["name"] = "<api-access>"
		}
	}
	for _, volume := range spec.list("volumes") {
		name(volume)
		for _, source := range volume.list("projected", "sources") {
			nameAPIFiles(source)
		}
	}
	for _, field := range []string{"containers", "initContainers", "ephemeralContainers"} {
		for _, container := range spec.list(field) {
			for _, mount := range container.list("volumeMounts") {
				name(mount)
			}
			env, _ := container.Object["env"].([]any)
			container.Object["env"] = slices.DeleteFunc(env, func(v any) bool {
				variable, _ := v.(map[string]any)
				o := obj{&unstructured.Unstructured{Object: variable}}
				return slices.Contains(apiVariables, o.text("name")) && kinds.IsTokenSecret(o.text("valueFrom", "secretKeyRef", "name"))
			})
			if len(container.list("env")) == 0 {
				delete(container.Object, "env")
			}
		}
	}
}

// nameAPIFiles makes of a source of a volume, if it is one of what a pod needs for the API, which key is in which file. Tokens for another
// audience have another key.
func nameAPIFiles(source obj) {
	files := map[string]any{}
	if token := source.at("serviceAccountToken"); token.Object != nil {
		key, _ := kinds.TokenKeyOf(token.text("audience"))
		files[key] = token.text("path")
	}
	for field, isOne := range map[string]func(string) bool{"secret": kinds.IsTokenSecret, "configMap": func(name string) bool { return name == "kube-root-ca.crt" }} {
		if from := source.at(field); isOne(from.text("name")) {
			for _, item := range from.list("items") {
				files[item.text("key")] = item.text("path")
			}
		}
	}
	if items := source.list("downwardAPI", "items"); len(items) == 1 && items[0].text("fieldRef", "fieldPath") == "metadata.namespace" {
		files["namespace"] = items[0].text("path")
	}
	if len(files) > 0 {
		clear(source.Object)
		source.Object["<api-access>"] = files
	}
}

// withoutSecondTry takes from a pod whether its scheduler had to try more than once, as it has to where a claim is not bound yet.
func withoutSecondTry(pod *unstructured.Unstructured) {
	for _, condition := range (obj{pod}).list("status", "conditions") {
		if condition.text("type") == "PodScheduled" {
			delete(condition.Object, "observedGeneration")
		}
	}
}

// named is a value in which what is at a path has one name, but not what is given there.
func named(value, given any, path []string, name string) any {
	switch v := value.(type) {
	case map[string]any:
		given, _ := given.(map[string]any)
		if inner, ok := v[path[0]]; ok {
			v[path[0]] = named(inner, given[path[0]], path[1:], name)
		}
	case []any:
		given, _ := given.([]any)
		for i := range v {
			v[i] = named(v[i], at(given, i), path[1:], name)
		}
	default:
		if given == nil && value != "None" { // which is no choice
			return name
		}
	}
	return value
}

// renamed is a value in which all text, but not the names of fields, has the names that byValue, revisions and inText give it.
func renamed(value any, revisions []string) any {
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			v[key] = renamed(v[key], revisions)
		}
	case []any:
		for i := range v {
			v[i] = renamed(v[i], revisions)
		}
	case string:
		for _, rule := range byValue {
			if rule.like.MatchString(v) {
				return rule.name
			}
		}
		n := 0
		for i, revision := range revisions {
			if revision != "" && !slices.Contains(revisions[:i], revision) {
				n++
				v = strings.ReplaceAll(v, revision, fmt.Sprintf("<revision %d>", n))
			}
		}
		for _, rule := range inText {
			v = rule.like.ReplaceAllString(v, rule.as)
		}
		return v
	}
	return value
}

// listKeys are the fields that tell the items of a list apart, where there is one: the first that all have, and no two alike.
var listKeys = []string{"name", "type", "uid", "ip", "key", "mountPath", "containerPort", "port"}

// keyOf returns which field tells the items of two lists apart; empty if none does.
func keyOf(lists ...[]any) string {
	for _, key := range listKeys {
		if !slices.ContainsFunc(lists, func(list []any) bool { return !tellsApart(key, list) }) {
			return key
		}
	}
	return ""
}

func tellsApart(key string, list []any) bool {
	seen := map[any]bool{}
	for _, item := range list {
		m, _ := item.(map[string]any)
		switch value := m[key].(type) {
		case string, int64:
			if seen[value] {
				return false
			}
			seen[value] = true
		default:
			return false
		}
	}
	return true
}

// plain is a field that needs no quoting in a path.
var plain = regexp.MustCompile(`^[A-Za-z0-9]+$`)

// below is the path to a field of what is at path.
func below(path, field string) string {
	switch {
	case !plain.MatchString(field):
		return path + "[" + field + "]"
	case path == "":
		return field
	}
	return path + "." + field
}

func item(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// one reads one object.
func one(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	all := objects(t, manifest)
	if len(all) != 1 {
		t.Fatalf("%d objects, want 1: %s", len(all), manifest)
	}
	return all[0]
}

func objects(t *testing.T, manifests string) []*unstructured.Unstructured {
	t.Helper()
	all, err := decode(manifests)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestVisible(t *testing.T) {
	for name, test := range map[string]struct{ is, want string }{
		"what each server fills by itself": {
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: a, uid: u, resourceVersion: "7", creationTimestamp: "2026-01-01T00:00:00Z", managedFields: [{}]}, data: {a: b}}`,
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {a: b}}`,
		},
		"a generation is compared": {
			`{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, generation: 3}}`,
			`{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, generation: 3}}`,
		},
		"times and identities, wherever they are": {
			`{apiVersion: batch/v1, kind: Job, metadata: {name: a, labels: {controller-uid: 01234567-89ab-cdef-0123-456789abcdef}}, status: {startTime: "2026-01-01T00:00:00Z", conditions: [{lastProbeTime: "2026-01-01T00:00:00.123456Z"}]}}`,
			`{apiVersion: batch/v1, kind: Job, metadata: {name: a, labels: {controller-uid: <uid>}}, status: {startTime: <time>, conditions: [{lastProbeTime: <time>}]}}`,
		},
		"a time within a sentence is compared": {
			`{apiVersion: v1, kind: Pod, metadata: {name: a}, status: {message: "since 2026-01-01T00:00:00Z"}}`,
			`{apiVersion: v1, kind: Pod, metadata: {name: a}, status: {message: "since 2026-01-01T00:00:00Z"}}`,
		},
		"addresses and ports that a cluster chooses": {
			`{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], ports: [{port: 80, nodePort: 30123}, {port: 81}], externalIPs: [192.0.2.1]}}`,
			`{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: <address>, clusterIPs: [<address>], ports: [{port: 80, nodePort: <port>}, {port: 81}], externalIPs: [192.0.2.1]}}`,
		},
		"no address is none": {
			`{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: None, clusterIPs: [None]}}`,
			`{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: None, clusterIPs: [None]}}`,
		},
		"of another group's Service nothing is chosen": {
			`{apiVersion: example.com/v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.0.0.1}}`,
			`{apiVersion: example.com/v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.0.0.1}}`,
		},
		"a ReplicaSet's revision": {
			`{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: web-6d4b75cb6d, labels: {app: web, pod-template-hash: 6d4b75cb6d}}, spec: {selector: {matchLabels: {pod-template-hash: 6d4b75cb6d}}}}`,
			`{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: web-<revision 1>, labels: {app: web, pod-template-hash: <revision 1>}}, spec: {selector: {matchLabels: {pod-template-hash: <revision 1>}}}}`,
		},
		"a pod of it": {
			`{apiVersion: v1, kind: Pod, metadata: {name: web-6d4b75cb6d-x2x4z, labels: {pod-template-hash: 6d4b75cb6d}, ownerReferences: [{kind: ReplicaSet, name: web-6d4b75cb6d, controller: true}]}, spec: {nodeName: east, volumes: [{name: data}]}, status: {podIP: 10.1.2.3, podIPs: [{ip: 10.1.2.3}]}}`,
			`{apiVersion: v1, kind: Pod, metadata: {name: web-<revision>-~, labels: {pod-template-hash: <revision 1>}, ownerReferences: [{kind: ReplicaSet, name: web-<revision 1>, controller: true}]}, spec: {nodeName: <node>, volumes: [{name: data}]}, status: {podIP: <address>, podIPs: [{ip: <address>}]}}`,
		},
		"a pod of a ReplicaSet with another hash in the physical cluster": {
			`{apiVersion: v1, kind: Pod, metadata: {name: web-7f5c86dc7f-x2x4z, labels: {pod-template-hash: 6d4b75cb6d}, ownerReferences: [{kind: ReplicaSet, name: web-6d4b75cb6d, controller: true}]}}`,
			`{apiVersion: v1, kind: Pod, metadata: {name: web-<revision>-~, labels: {pod-template-hash: <revision 1>}, ownerReferences: [{kind: ReplicaSet, name: web-<revision 1>, controller: true}]}}`,
		},
		"a StatefulSet that has rolled out": {
			`{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db}, status: {currentRevision: db-6d4b75cb6d, updateRevision: db-6d4b75cb6d}}`,
			`{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db}, status: {currentRevision: db-<revision 1>, updateRevision: db-<revision 1>}}`,
		},
		"how a pod reaches the API of a plain cluster": {
			`{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {volumes: [{name: kube-api-access-b4c6d, projected: {sources: [{serviceAccountToken: {expirationSeconds: 3607, path: token}},
			  {configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}}, {downwardAPI: {items: [{path: namespace, fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}]}}]}}],
			  containers: [{name: c, volumeMounts: [{name: data}, {name: kube-api-access-b4c6d, readOnly: true}]}]}}`,
			`{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {volumes: [{name: <api-access>, projected: {sources: [{<api-access>: {token: token}}, {<api-access>: {ca.crt: ca.crt}}, {<api-access>: {namespace: namespace}}]}}],
			  containers: [{name: c, volumeMounts: [{name: data}, {name: <api-access>, readOnly: true}]}]}}`,
		},
		"how a pod reaches the API of a workspace": {
			`{apiVersion: v1, kind: Pod, metadata: {name: a, ownerReferences: [{kind: Job, name: a, controller: true}]}, spec: {automountServiceAccountToken: false, volumes: [{name: atoll-api-access, projected: {sources: [
			  {secret: {name: atoll-token-default, optional: true, items: [{key: token, path: token, mode: 420}]}}, {secret: {name: atoll-token-default, items: [{key: ca.crt, path: ca.crt}]}}]}}],
			  containers: [{name: c, volumeMounts: [{name: atoll-api-access, readOnly: true}], env: [{name: KUBERNETES_SERVICE_HOST, valueFrom: {secretKeyRef: {name: atoll-token-default, key: host}}}, {name: A, value: a}]}]}}`,
			`{apiVersion: v1, kind: Pod, metadata: {name: a, ownerReferences: [{kind: Job, name: a, controller: true}]}, spec: {volumes: [{name: <api-access>, projected: {sources: [{<api-access>: {token: token}}, {<api-access>: {ca.crt: ca.crt}}]}}],
			  containers: [{name: c, volumeMounts: [{name: <api-access>, readOnly: true}], env: [{name: A, value: a}]}]}}`,
		},
		"that none is mounted, a pod says itself": {
			`{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {automountServiceAccountToken: false, containers: [{name: c, env: [{name: A, valueFrom: {secretKeyRef: {name: atoll-token-default}}}]}]}}`,
			`{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {automountServiceAccountToken: false, containers: [{name: c, env: [{name: A, valueFrom: {secretKeyRef: {name: atoll-token-default}}}]}]}}`,
		},
		"tokens that somebody projects": {
			`{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {volumes: [{name: v, projected: {sources: [{secret: {name: s}}, {serviceAccountToken: {audience: vault, path: t}}, {secret: {name: atoll-token-a, items: [{key: token-dmF1bHQ, path: t}]}}]}}]}}`,
			`{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {volumes: [{name: v, projected: {sources: [{secret: {name: s}}, {<api-access>: {token-dmF1bHQ: t}}, {<api-access>: {token-dmF1bHQ: t}}]}}]}}`,
		},
		"what is the user's": {
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {id: 01234567-89ab-cdef-0123-456789abcdef, at: "2026-01-01T00:00:00Z"}}`,
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {id: 01234567-89ab-cdef-0123-456789abcdef, at: "2026-01-01T00:00:00Z"}}`,
		},
		"the node that a DaemonSet chooses": {
			`{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [east-node-0]}]}]}}}}}`,
			`{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [<node>]}]}]}}}}}`,
		},
		"a scheduler's second try": {
			`{apiVersion: v1, kind: Pod, metadata: {name: a}, status: {conditions: [{type: PodScheduled, observedGeneration: 1}, {type: Ready, observedGeneration: 1}]}}`,
			`{apiVersion: v1, kind: Pod, metadata: {name: a}, status: {conditions: [{type: PodScheduled}, {type: Ready, observedGeneration: 1}]}}`,
		},
		"a pod of a StatefulSet has its name": {
			`{apiVersion: v1, kind: Pod, metadata: {name: big-bcdfg, labels: {controller-revision-hash: db-6d4b75cb6d}, ownerReferences: [{kind: StatefulSet, name: big, controller: true}]}}`,
			`{apiVersion: v1, kind: Pod, metadata: {name: big-bcdfg, labels: {controller-revision-hash: db-<revision 1>}, ownerReferences: [{kind: StatefulSet, name: big, controller: true}]}}`,
		},
		"a pod of its own, too": {
			`{apiVersion: v1, kind: Pod, metadata: {name: my-bcdfg}}`,
			`{apiVersion: v1, kind: Pod, metadata: {name: my-bcdfg}}`,
		},
		"a StatefulSet's revisions": {
			`{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db}, status: {currentRevision: db-6d4b75cb6d, updateRevision: db-7f5c86dc7f}}`,
			`{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db}, status: {currentRevision: db-<revision 1>, updateRevision: db-<revision 2>}}`,
		},
		"a revision in a sentence": {
			`{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, status: {conditions: [{message: ReplicaSet "web-6d4b75cb6d" has successfully progressed.}]}}`,
			`{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, status: {conditions: [{message: ReplicaSet "web-<revision>" has successfully progressed.}]}}`,
		},
		"what a controller names": {
			`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-b4c6d, generateName: web-}}`,
			`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-~, generateName: web-}}`,
		},
		"the pods behind a Service": {
			`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-b4c6d, generateName: web-, generation: 7, annotations: {endpoints.kubernetes.io/last-change-trigger-time: "2026-01-01T00:00:00Z"}}, ports: [{port: 80}], endpoints: [
			  {addresses: [10.1.2.4], conditions: {ready: true}, nodeName: east-1, zone: east-a, targetRef: {kind: Pod, name: web-6d4b75cb6d-x2x4z}}, {addresses: [10.1.2.3], conditions: {ready: false}, targetRef: {kind: Pod, name: web-6d4b75cb6d-b2x4z}}]}`,
			`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-~, generateName: web-, generation: <changes>, annotations: {}}, ports: [{port: 80}], endpoints: [
			  {addresses: [<address>], conditions: {ready: false}, targetRef: {kind: Pod, name: web-<revision>-~}}, {addresses: [<address>], conditions: {ready: true}, nodeName: <node>, zone: <zone>, targetRef: {kind: Pod, name: web-<revision>-~}}]}`,
		},
		"which zones the pods behind a Service are for": {
			`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-b4c6d, generateName: web-}, endpoints: [
			  {addresses: [10.1.2.3], zone: east-a, hints: {forZones: [{name: east-a}]}}, {addresses: [10.1.2.4], zone: east-a, hints: {forZones: [{name: east-b}]}},
			  {addresses: [10.1.2.5], zone: east-a}]}`,
			`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-~, generateName: web-}, endpoints: [
			  {addresses: [<address>], zone: <zone>, hints: {forZones: [{name: <zone>}]}}, {addresses: [<address>], zone: <zone>, hints: {forZones: [{name: east-b}]}},
			  {addresses: [<address>], zone: <zone>}]}`,
		},
		"the pods of a StatefulSet behind a Service": {
			`{apiVersion: v1, kind: Endpoints, metadata: {name: db}, subsets: [{addresses: [{ip: 10.1.2.4, nodeName: east-1, hostname: db-1, targetRef: {kind: Pod, name: db-1}}, {ip: 10.1.2.5, nodeName: east-1, hostname: db-0, targetRef: {kind: Pod, name: db-0}}], notReadyAddresses: [{ip: 10.1.2.6, nodeName: east-2}], ports: [{port: 80}]}]}`,
			`{apiVersion: v1, kind: Endpoints, metadata: {name: db}, subsets: [{addresses: [{ip: <address>, nodeName: <node>, hostname: db-0, targetRef: {kind: Pod, name: db-0}}, {ip: <address>, nodeName: <node>, hostname: db-1, targetRef: {kind: Pod, name: db-1}}], notReadyAddresses: [{ip: <address>, nodeName: <node>}], ports: [{port: 80}]}]}`,
		},
		"Helm's record": {
			`{apiVersion: v1, kind: Secret, metadata: {name: sh.helm.release.v1.web.v1, labels: {modifiedAt: "1770000000", status: deployed}}, data: {release: SDRzSQ==}, type: helm.sh/release.v1}`,
			`{apiVersion: v1, kind: Secret, metadata: {name: sh.helm.release.v1.web.v1, labels: {modifiedAt: <time>, status: deployed}}, data: {release: <record>}, type: helm.sh/release.v1}`,
		},
	} {
		given := one(t, test.is)
		before := given.DeepCopy()
		if diff := cmp.Diff(one(t, test.want).Object, visible(given, nil).Object); diff != "" {
			t.Errorf("%s, -want +got:\n%s", name, diff)
		}
		if diff := cmp.Diff(before.Object, given.Object); diff != "" {
			t.Errorf("%s: what was given has changed, -before +after:\n%s", name, diff)
		}
	}
}

// TestVisibleAsGiven: what a chart chooses is compared, and not named.
func TestVisibleAsGiven(t *testing.T) {
	given := one(t, `{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: 80, nodePort: 30123}, {port: 81}]}}`)
	got := visible(one(t, `{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.0.0.1, ports: [{port: 80, nodePort: 30123}, {port: 81, nodePort: 30124}]}}`), given)
	want := one(t, `{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: <address>, ports: [{port: 80, nodePort: 30123}, {port: 81, nodePort: <port>}]}}`)
	if diff := cmp.Diff(want.Object, got.Object); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
