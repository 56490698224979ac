package syncer

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
)

// webText is a Deployment as it is asked for in "east", and webSetBy what its writer has set of it.
const (
	webText = `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: shop-1a
  labels: {app: web, workload.atoll.dev/workspace: shop}
  annotations: {workload.atoll.dev/rendered: h1}
spec:
  replicas: 2
  template:
    spec:
      containers:
      - {name: web, image: "web:1", args: [serve, now], env: [{name: COLOUR, value: blue}], resources: {}}
      - {name: log, image: "log:1", ports: [{containerPort: 80, protocol: TCP}, {containerPort: 81, protocol: TCP}]}
`
	webSetBy = `{
"f:metadata": {"f:labels": {"f:app": {}, "f:workload.atoll.dev/workspace": {}}, "f:annotations": {"f:workload.atoll.dev/rendered": {}}},
"f:spec": {"f:replicas": {}, "f:template": {"f:spec": {"f:containers": {
  "k:{\"name\":\"web\"}": {".": {}, "f:name": {}, "f:image": {}, "f:args": {}, "f:env": {"k:{\"name\":\"COLOUR\"}": {".": {}, "f:name": {}, "f:value": {}}}},
  "k:{\"name\":\"log\"}": {".": {}, "f:name": {}, "f:image": {}, "f:ports": {
    "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}, "f:protocol": {}},
    "k:{\"containerPort\":81,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}, "f:protocol": {}}}}
}}}}}`
)

// edit is a change of an object: text in place of text, in what is there and in what we have set of it.
type edit struct{ from, to string }

// driftedBy returns what is asked for with changes, with our managedFields without what lost says, and what others have set.
func driftedBy(t *testing.T, changes []edit, lost []edit, others ...string) *unstructured.Unstructured {
	t.Helper()
	text, ours := webText, webSetBy
	for _, c := range changes {
		if !strings.Contains(text, c.from) {
			t.Fatalf("there is no %q", c.from)
		}
		text = strings.Replace(text, c.from, c.to, 1)
	}
	for _, c := range lost {
		if !strings.Contains(ours, c.from) {
			t.Fatalf("nothing is set of %q", c.from)
		}
		ours = strings.Replace(ours, c.from, c.to, 1)
	}
	o := object(t, text)
	all := []string{fmt.Sprintf(`{"manager": "atoll-syncer", "operation": "Apply", "time": "2026-01-01T00:00:00Z", "fieldsV1": %s}`, ours)}
	var fields []any
	if err := json.Unmarshal([]byte("["+strings.Join(append(all, others...), ",")+"]"), &fields); err != nil {
		t.Fatal(err)
	}
	if err := unstructured.SetNestedSlice(o.Object, fields, "metadata", "managedFields"); err != nil {
		t.Fatal(err)
	}
	return o
}

// by is an entry of managedFields.
func by(manager, at, fields string) string {
	return fmt.Sprintf(`{"manager": %q, "operation": "Update", "time": %q, "fieldsV1": %s}`, manager, at, fields)
}

const (
	later   = "2026-01-01T00:05:00Z"
	earlier = "2025-12-31T00:00:00Z"
	ofImage = `{"f:spec": {"f:template": {"f:spec": {"f:containers": {"k:{\"name\":\"web\"}": {"f:image": {}}}}}}}`
	imageOf = `spec.template.spec.containers[web].image`
)

// TestCompareObjects: what is named is where an object is not as it should be, and there is such a place where it is not up to
// date.
func TestCompareObjects(t *testing.T) {
	for reason, tc := range map[string]struct {
		changes []edit
		want    []string
	}{
		"as it should be":            {nil, nil},
		"defaults are the cluster's": {[]edit{{"replicas: 2", "replicas: 2\n  paused: false"}}, nil},
		"a value":                    {[]edit{{"web:1", "web:2"}}, []string{imageOf}},
		"a label, and one more":      {[]edit{{"{app: web", "{team: a, app: shop"}}, []string{"metadata.labels.app"}},
		"a label is gone":            {[]edit{{"app: web, ", ""}}, []string{"metadata.labels.app"}},
		"a name with dots":           {[]edit{{"rendered: h1", "rendered: h0"}}, []string{"metadata.annotations[workload.atoll.dev/rendered]"}},
		"a field is gone":            {[]edit{{"  replicas: 2\n", ""}}, []string{"spec.replicas"}},
		"a list":                     {[]edit{{"[serve, now]", "[serve]"}}, []string{"spec.template.spec.containers[web].args"}},
		"an item without a name":     {[]edit{{"[serve, now]", "[serve, later]"}}, []string{"spec.template.spec.containers[web].args[1]"}},
		"an item's value":            {[]edit{{"value: blue", "value: red"}}, []string{"spec.template.spec.containers[web].env[COLOUR].value"}},
		"an item more":               {[]edit{{"      - {name: log", "      - {name: spy}\n      - {name: log"}}, []string{"spec.template.spec.containers[spy]"}},
		"an item is gone":            {[]edit{{"env: [{name: COLOUR, value: blue}]", "env: [{name: C}]"}}, []string{"spec.template.spec.containers[web].env[COLOUR]", "spec.template.spec.containers[web].env[C]"}},
		"items that have two names":  {[]edit{{"env: [{name: COLOUR, value: blue}]", "env: [{name: COLOUR}, {name: COLOUR}]"}}, []string{"spec.template.spec.containers[web].env"}},
		"another type":               {[]edit{{"env: [{name: COLOUR, value: blue}]", "env: none"}}, []string{"spec.template.spec.containers[web].env"}},
		"nothing is left":            {[]edit{{webText[strings.Index(webText, "spec:"):], "spec: 7\n"}}, []string{"spec"}},
		"the order":                  {[]edit{{"name: web, image: \"web:1\"", "name: log, image: \"log:1\""}, {"name: log, image: \"log:1\", ports", "name: web, image: \"web:1\", ports"}}, nil},
	} {
		want, live := object(t, webText), driftedBy(t, tc.changes, nil)
		c := compareObjects(want, live)
		var paths []string
		for _, p := range c.found {
			paths = append(paths, p.path())
		}
		if reason != "the order" { // where each item differs, too
			if diff := cmp.Diff(tc.want, paths); diff != "" {
				t.Errorf("%s (-want +got):\n%s", reason, diff)
			}
		}
		if (len(paths) == 0) != upToDate(want, live) {
			t.Errorf("%s: differs at %v, and up to date is %v", reason, paths, upToDate(want, live))
		}
	}
	swapped := &unstructured.Unstructured{Object: map[string]any{"l": []any{map[string]any{"name": "b"}, map[string]any{"name": "a"}}}}
	if c := compareObjects(&unstructured.Unstructured{Object: map[string]any{"l": []any{map[string]any{"name": "a"}, map[string]any{"name": "b"}}}}, swapped); len(c.found) != 1 || c.found[0].path() != "l" {
		t.Errorf("of items in another order %+v is found", c.found)
	}
	many := map[string]any{}
	for i := range 2 * mostDifferences {
		many[fmt.Sprint(i)] = "x"
	}
	c := compareObjects(&unstructured.Unstructured{Object: map[string]any{"data": many}}, &unstructured.Unstructured{Object: map[string]any{}})
	if len(c.found) != 1 {
		t.Errorf("what is not there at all is at %d places", len(c.found))
	}
	c = compareObjects(&unstructured.Unstructured{Object: map[string]any{"data": many}}, &unstructured.Unstructured{Object: map[string]any{"data": map[string]any{}}})
	if l := c.leftover(); len(c.found) != mostDifferences || !c.more || len(l.paths) > 16 || !l.has("anything") || !c.stays(place{}) {
		t.Errorf("%d places are kept, more is %v; of what is left %d", len(c.found), c.more, len(l.paths))
	}
}

// TestDriftIsSomebodys: it is told of what somebody else has changed, and is put back, and of nothing else.
func TestDriftIsSomebodys(t *testing.T) {
	image, lostImage := []edit{{"web:1", "web:2"}}, []edit{{`"f:image": {}, "f:args"`, `"f:args"`}}
	const changed, unknown = `Changed in physical cluster "east" by `, `Changed in physical cluster "east", by whom is not recorded; put back: `
	same := func(t *testing.T) *unstructured.Unstructured { return driftedBy(t, nil, nil) }
	for name, tc := range map[string]struct {
		reason string
		known  func(d *drifts, k key, leaf, want *unstructured.Unstructured) // what is known before; nil: it was as it should be
		was    func(t *testing.T) *unstructured.Unstructured                 // nil: nothing is there
		is     func(t *testing.T) *unstructured.Unstructured                 // nil: as it should be
		apply  string                                                        // what the leaf says is applied
		want   string
	}{
		"Edited": {was: func(t *testing.T) *unstructured.Unstructured {
			return driftedBy(t, image, lostImage, by("kubectl-edit", later, ofImage))
		}, want: changed + `"kubectl-edit"; put back: ` + imageOf},
		"ByTwo": {was: func(t *testing.T) *unstructured.Unstructured {
			return driftedBy(t, []edit{{"web:1", "web:2"}, {"app: web", "app: shop"}}, []edit{{`"f:image": {}, "f:args"`, `"f:args"`}, {`"f:app": {}, `, ""}},
				by("kubectl-set", later, ofImage), by("kubectl-label", later, `{"f:metadata": {"f:labels": {"f:app": {}}}}`), by("other", later, `{"f:spec": {"f:paused": {}}}`))
		}, want: changed + `"kubectl-label", "kubectl-set"; put back: ` + imageOf + ", metadata.labels.app"},
		"TakenOut": {reason: "nobody has set what is not there", was: func(t *testing.T) *unstructured.Unstructured {
			return driftedBy(t, []edit{{"app: web, ", ""}}, []edit{{`"f:app": {}, `, ""}})
		}, want: unknown + "metadata.labels.app"},
		"ItemTakenOut": {was: func(t *testing.T) *unstructured.Unstructured {
			return driftedBy(t, []edit{{", {containerPort: 81, protocol: TCP}", ""}},
				[]edit{{`,
    "k:{\"containerPort\":81,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}, "f:protocol": {}}`, ""}})
		}, want: unknown + "spec.template.spec.containers[log].ports"},
		"WholeListSet": {reason: "a list that nobody shares", was: func(t *testing.T) *unstructured.Unstructured {
			return driftedBy(t, []edit{{"[serve, now]", "[serve, later]"}}, []edit{{`, "f:args": {}`, ""}},
				by("kubectl-edit", later, `{"f:spec": {"f:template": {"f:spec": {"f:containers": {"k:{\"name\":\"web\"}": {"f:args": {}}}}}}}`))
		}, want: changed + `"kubectl-edit"; put back: spec.template.spec.containers[web].args[1]`},
		"Scaled": {reason: "a subresource has its own", was: func(t *testing.T) *unstructured.Unstructured {
			return driftedBy(t, []edit{{"replicas: 2", "replicas: 5"}}, []edit{{`"f:replicas": {}, `, ""}},
				`{"manager": "kubectl", "operation": "Update", "subresource": "scale", "time": "`+later+`", "fieldsV1": {"f:spec": {"f:replicas": {}}}}`)
		}, want: changed + `"kubectl"; put back: spec.replicas`},
		"Deleted": {want: `Deleted in physical cluster "east"; made again`},
		"DeletedAndAskedAnew": {reason: "the leaf changed in the same moment", known: func(d *drifts, k key, leaf, _ *unstructured.Unstructured) {
			d.asWanted(k, leaf.GetUID(), &unstructured.Unstructured{Object: map[string]any{}}, time.Unix(1, 0))
		}, want: `Deleted in physical cluster "east"; made again`},
		"DeletedWhileWeWereAway": {known: func(*drifts, key, *unstructured.Unstructured, *unstructured.Unstructured) {}, apply: "h0", want: `Deleted in physical cluster "east"; made again`},
		"First":                  {reason: "nothing was there", known: func(*drifts, key, *unstructured.Unstructured, *unstructured.Unstructured) {}},
		"AnEarlierLeaf": {reason: "that one had been given up, and what was its", known: func(d *drifts, k key, _, want *unstructured.Unstructured) {
			d.asWanted(k, "earlier", want, time.Unix(1, 0))
		}},
		"AskedAnew": {reason: "the leaf has changed", known: func(d *drifts, k key, leaf, _ *unstructured.Unstructured) {
			d.asWanted(k, leaf.GetUID(), driftedBy(t, image, nil), time.Unix(1, 0))
		}, was: func(t *testing.T) *unstructured.Unstructured {
			return driftedBy(t, append(image, edit{"rendered: h1", "rendered: h0"}), nil)
		}},
		"BySomebodyOfOurName": {reason: "as two of ours for a moment", was: func(t *testing.T) *unstructured.Unstructured { return driftedBy(t, image, nil) }},
		"MadeOtherwise": {reason: "by a webhook, as our write has left it, which the next leaves as well",
			was: func(t *testing.T) *unstructured.Unstructured { return driftedBy(t, image, nil) },
			is:  func(t *testing.T) *unstructured.Unstructured { return driftedBy(t, image, nil) }},
		"EditedWhereAWebhookIs": {reason: "it makes its own of it again", known: func(d *drifts, k key, leaf, want *unstructured.Unstructured) {
			d.wrote(written{k, leaf, want, nil, driftedBy(t, image, nil)}, "east", time.Unix(1, 0))
		}, was: func(t *testing.T) *unstructured.Unstructured {
			return driftedBy(t, []edit{{"web:1", "web:3"}}, lostImage, by("kubectl-edit", later, ofImage))
		}, is: func(t *testing.T) *unstructured.Unstructured { return driftedBy(t, image, nil) }, want: changed + `"kubectl-edit"; put back: ` + imageOf},
		"WebhookIsGone": {reason: "it had taken something out of our own write", known: func(d *drifts, k key, leaf, want *unstructured.Unstructured) {
			d.wrote(written{k, leaf, want, nil, driftedBy(t, []edit{{"app: web, ", ""}}, nil)}, "east", time.Unix(1, 0))
		}, was: func(t *testing.T) *unstructured.Unstructured {
			return driftedBy(t, []edit{{"app: web, ", ""}}, []edit{{`"f:app": {}, `, ""}})
		}},
		"NotPutBack": {reason: "a container more stays where others may have some",
			was: func(t *testing.T) *unstructured.Unstructured {
				return driftedBy(t, []edit{{"      - {name: log", "      - {name: spy}\n      - {name: log"}}, nil, by("mesh", later, `{"f:spec": {"f:template": {"f:spec": {"f:containers": {"k:{\"name\":\"spy\"}": {".": {}, "f:name": {}}}}}}}`))
			}, is: func(t *testing.T) *unstructured.Unstructured {
				return driftedBy(t, []edit{{"      - {name: log", "      - {name: spy}\n      - {name: log"}}, nil)
			}},
		"AsItWas": {reason: "a write without an answer had been done", was: same},
		"EditedWhileWeWereAway": {known: func(*drifts, key, *unstructured.Unstructured, *unstructured.Unstructured) {}, was: func(t *testing.T) *unstructured.Unstructured {
			return driftedBy(t, image, lostImage, by("kubectl-edit", later, ofImage))
		}, want: changed + `"kubectl-edit"; put back: ` + imageOf},
		"RenderedOtherwise": {reason: "by a version of before, which did not set it", known: func(*drifts, key, *unstructured.Unstructured, *unstructured.Unstructured) {},
			was: func(t *testing.T) *unstructured.Unstructured {
				return driftedBy(t, []edit{{"app: web, ", ""}}, []edit{{`"f:app": {}, `, ""}})
			}},
		"SetByOthersBefore": {reason: "nor is it what somebody had set before that version wrote", known: func(*drifts, key, *unstructured.Unstructured, *unstructured.Unstructured) {},
			was: func(t *testing.T) *unstructured.Unstructured {
				return driftedBy(t, image, lostImage, by("kubectl-edit", earlier, ofImage))
			}},
		"AnotherRendering": {reason: "what the leaf asks for has changed while we were away", known: func(*drifts, key, *unstructured.Unstructured, *unstructured.Unstructured) {},
			was: func(t *testing.T) *unstructured.Unstructured {
				return driftedBy(t, append(image, edit{"rendered: h1", "rendered: h0"}), lostImage, by("kubectl-edit", later, ofImage))
			}},
		"WhoeverAnswers": {reason: "managedFields may be anything", was: func(t *testing.T) *unstructured.Unstructured {
			return driftedBy(t, image, lostImage, `7`, `{"manager": 7, "time": 7, "fieldsV1": 7}`, `{"manager": "x", "fieldsV1": {"f:spec": 7}}`,
				by("y", later, `{"f:spec": {"f:template": {"f:spec": {"f:containers": {"k:{": {}, "k:7": {}, "k:{}": {"f:image": {}}, "v:": {}, "x": 7}}}}}`))
		}, want: unknown + imageOf},
	} {
		t.Run(name, func(t *testing.T) {
			var d drifts
			k, now := key{deploymentsGVR, "shop-1a", "web"}, time.Unix(1000, 0)
			want, leaf := object(t, webText), &unstructured.Unstructured{Object: map[string]any{}}
			leaf.SetUID("leaf")
			if tc.apply != "" {
				leaf.SetAnnotations(map[string]string{workloadv1alpha1.AppliedAnnotation: tc.apply})
			}
			if tc.known != nil {
				tc.known(&d, k, leaf, want)
			} else {
				d.asWanted(k, leaf.GetUID(), want, now)
			}
			w := written{k, leaf, want, nil, same(t)}
			if tc.was != nil {
				w.was = tc.was(t)
			}
			if tc.is != nil {
				w.is = tc.is(t)
			}
			news, got := d.wrote(w, "east", now), ""
			if f := d.of[k].fight; f != nil {
				got = f.news
			}
			if got != tc.want || news != (tc.want != "") {
				t.Errorf("%s: tells %v %q, want %q", tc.reason, news, got, tc.want)
			}
		})
	}
}

// TestDriftOfAll: a manager that is said to have set a field, and nothing in it, has set all that is in it, or no more than that
// there is something: a list that nobody shares looks so, and a field of which others have taken what we had set.
func TestDriftOfAll(t *testing.T) {
	const theirsOfKey = `{"f:data": {"f:key": {}}}`
	for name, tc := range map[string]struct {
		reason       string
		want, was    string // as YAML
		ours, theirs string // "" for nobody
		told         string // "" for nothing
	}{
		"AllOfIt":   {"a list that nobody shares, of another version of ours", "args: [a, b]", "args: [a, c]", `{"f:args": {}}`, "", ""},
		"OtherSize": {"so is one that has become shorter", "args: [a, b]", "args: [a]", `{"f:args": {}}`, "", ""},
		"ItsValue":  {"the only one of its kind", "data: {key: a}", "data: {key: b}", `{"f:data": {}}`, theirsOfKey, ` by "vault"; put back: data.key`},
		"OneOfTwo": {"another one is as it was, and taken over, too", "data: {key: a, other: c}", "data: {key: b, other: c}", `{"f:data": {}}`, `{"f:data": {"f:key": {}, "f:other": {}}}`,
			` by "vault"; put back: data.key`},
		"TakenOut":   {"nothing else was there", "data: {key: a}", "data: {}", `{"f:data": {}}`, "", `, by whom is not recorded; put back: data.key`},
		"Replaced":   {"by one of another name", "data: {key: a}", "data: {other: a}", `{"f:data": {}}`, `{"f:data": {"f:other": {}}}`, `, by whom is not recorded; put back: data.key`},
		"ItemsOut":   {"all that were in a list", "ports: [{port: 80}]", "ports: []", `{"f:ports": {}}`, "", `, by whom is not recorded; put back: ports`},
		"NamedOut":   {"all that were in a list, which have names", "ports: [{name: a}]", "ports: []", `{"f:ports": {}}`, "", `, by whom is not recorded; put back: ports[a]`},
		"ItemsTaken": {"all that are in a list", "ports: [{port: 80}, {port: 81}]", "ports: [{port: 80}]", `{"f:ports": {}}`, `{"f:ports": {"k:{\"port\":80}": {".": {}, "f:port": {}}}}`, ` by "vault"; put back: ports`},
		"LabelOut":   {"the only one", "metadata: {labels: {app: a}}", "metadata: {labels: {}}", `{"f:metadata": {"f:labels": {}}}`, "", `, by whom is not recorded; put back: metadata.labels.app`},
		"Made":       {"who made the field has not set all of it", "data: {key: a}", "data: {key: b}", "", `{"f:data": {".": {}}}`, `, by whom is not recorded; put back: data.key`},
		"NotShared":  {"who has set all of it has set each", "args: [a, b]", "args: [a, c]", "", `{"f:args": {}}`, ` by "vault"; put back: args[1]`},
	} {
		t.Run(name, func(t *testing.T) {
			var d drifts
			k, now := key{configMapsGVR, "shop-1a", "web"}, time.Unix(1000, 0)
			want, was, leaf := object(t, "kind: X\n"+tc.want), object(t, "kind: X\n"+tc.was), &unstructured.Unstructured{Object: map[string]any{}}
			leaf.SetUID("leaf")
			var managed []any
			for _, one := range []struct{ name, fields string }{{"atoll-syncer", tc.ours}, {"vault", tc.theirs}} {
				var entry any
				if one.fields == "" {
					continue
				}
				if err := json.Unmarshal([]byte(by(one.name, later, one.fields)), &entry); err != nil {
					t.Fatal(err)
				}
				managed = append(managed, entry)
			}
			if err := unstructured.SetNestedSlice(was.Object, managed, "metadata", "managedFields"); err != nil {
				t.Fatal(err)
			}
			d.asWanted(k, leaf.GetUID(), want, now)
			told := ""
			if d.wrote(written{k, leaf, want, was, want}, "east", now) {
				told = strings.TrimPrefix(d.of[k].fight.news, `Changed in physical cluster "east"`)
			}
			if told != tc.told {
				t.Errorf("%s: tells %q, want %q", tc.reason, told, tc.told)
			}
		})
	}
}

// TestDriftTellsNoValues: whatever is changed, and by whoever, what is told is short, can be printed, and has no value.
func TestDriftTellsNoValues(t *testing.T) {
	var d drifts
	k := key{schema.GroupVersionResource{Version: "v1", Resource: "secrets"}, "shop-1a", "key"}
	leaf, data, long := &unstructured.Unstructured{Object: map[string]any{}}, map[string]any{}, strings.Repeat("\u00e4\n", 5000)
	leaf.SetUID("leaf")
	for i := range 200 {
		data[fmt.Sprintf("secretname%d", i)] = "opensesame"
	}
	made := func(kind string, data map[string]any, labels map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"name": "key", "labels": labels}, "data": data}}
	}
	for _, kind := range []string{"Secret", "ConfigMap"} {
		labels := map[string]any{}
		for i := range 20 {
			labels[fmt.Sprintf("%s%d", long, i)] = "opensesame"
		}
		want, was := made(kind, data, labels), made(kind, map[string]any{"x": "opensesame"}, map[string]any{})
		var managed []any
		for i := range 20 {
			managed = append(managed, map[string]any{"manager": fmt.Sprint(i, long), "time": later, "fieldsV1": map[string]any{"f:data": map[string]any{"f:secretname0": map[string]any{}}}})
		}
		was.Object["metadata"].(map[string]any)["managedFields"] = managed
		d.asWanted(k, leaf.GetUID(), want, time.Unix(1000, 0))
		for turn := range 4 {
			if !d.wrote(written{k, leaf, want, was, want}, strings.Repeat("e", 63), time.Unix(2000, 0).Add(time.Duration(turn)*2*toldAgain)) {
				t.Fatal("nothing is told")
			}
		}
		news := d.of[k].fight.news
		if len(news) > maxMessage || strings.Contains(news, "opensesame") || strings.Contains(news, "\n") || strings.Contains(news, "secretname") != (kind == "ConfigMap") {
			t.Errorf("of a %s is told, in %d bytes: %s", kind, len(news), news)
		}
	}
}

// TestDriftFight: two who do not agree write ever less often, and it is told once, and then once a minute; what is asked for anew
// does not wait.
func TestDriftFight(t *testing.T) {
	var d drifts
	k, began := key{deploymentsGVR, "shop-1a", "web"}, time.Unix(1000, 0)
	leaf, want := &unstructured.Unstructured{Object: map[string]any{}}, object(t, webText)
	leaf.SetUID("leaf")
	was := driftedBy(t, []edit{{"web:1", "web:2"}}, []edit{{`"f:image": {}, "f:args"`, `"f:args"`}}, by("stubborn", later, ofImage))
	d.asWanted(k, leaf.GetUID(), want, began)

	// For an hour somebody changes it as soon as it was put back.
	now, writes, told := began, 0, 0
	for now.Before(began.Add(time.Hour)) {
		wait, leave := d.wait(k, leaf.GetUID(), want, was, now)
		if leave {
			t.Fatal("what somebody changed is left")
		}
		if writes == 0 && wait > 0 {
			t.Fatalf("the first time waits for %s", wait)
		}
		if wait > mostPutBack {
			t.Fatalf("waits for %s", wait)
		}
		if now = now.Add(wait); wait > 0 {
			continue
		}
		if writes++; writes > 30 {
			t.Fatalf("%d writes in %s", writes, now.Sub(began))
		}
		if d.wrote(written{k, leaf, want, was, want}, "east", now) {
			told++
			if again := d.tried(k, d.of[k].fight.news, nil, now); again != 0 {
				t.Fatalf("what is told is told again in %s", again)
			}
		}
	}
	if writes < 12 || told < 2 || told > writes-3 {
		t.Errorf("%d writes and %d events in an hour", writes, told)
	}
	if f := d.of[k].fight; f.count != int64(writes) || !strings.Contains(f.told, "again and again") || f.first != began {
		t.Errorf("it is told %d times since %s, of %d: %s", f.count, f.first, writes, f.told)
	}

	// Who looks at another object, or asks for something else, does not wait; nor does who asks after a calm.
	asked := driftedBy(t, []edit{{"web:1", "web:9"}}, nil)
	now = d.of[k].fight.last
	if w, _ := d.wait(k, leaf.GetUID(), want, was, now); w != mostPutBack {
		t.Errorf("who asks for the same waits for %s", w)
	}
	for reason, wait := range map[string]func() time.Duration{
		"another": func() time.Duration {
			w, _ := d.wait(key{deploymentsGVR, "shop-1a", "api"}, leaf.GetUID(), want, was, now)
			return w
		},
		"asked anew":   func() time.Duration { w, _ := d.wait(k, leaf.GetUID(), asked, was, now); return w },
		"another leaf": func() time.Duration { w, _ := d.wait(k, "next", want, was, now); return w },
		"calm":         func() time.Duration { w, _ := d.wait(k, leaf.GetUID(), want, was, now.Add(calmAfter)); return w },
	} {
		if w := wait(); w != 0 {
			t.Errorf("%s: waits for %s", reason, w)
		}
	}
	if w, _ := d.wait(k, leaf.GetUID(), want, was, now.Add(-24*time.Hour)); w != mostPutBack {
		t.Errorf("waits for %s when the clock is turned back", w)
	}
	if w, _ := d.wait(k, leaf.GetUID(), want, nil, d.of[k].fight.last); w == 0 {
		t.Error("where it is deleted instead, it is made again at once")
	}
	d.asWanted(k, leaf.GetUID(), want, now.Add(calmAfter))
	if d.of[k].fight != nil {
		t.Error("the fight is remembered when it is over")
	}
	d.forget(k)
	if len(d.of) != 0 {
		t.Error("it is remembered when no leaf asks for it")
	}
}

// TestDriftOfOurOwnWrites: what a webhook makes of our writes is left, told to nobody, and tried again when something happens,
// ever less often.
func TestDriftOfOurOwnWrites(t *testing.T) {
	var d drifts
	k, now := key{deploymentsGVR, "shop-1a", "web"}, time.Unix(1000, 0)
	leaf, want, made := &unstructured.Unstructured{Object: map[string]any{}}, object(t, webText), driftedBy(t, []edit{{"web:1", "mirror/web:1"}}, nil)
	leaf.SetUID("leaf")
	if d.wrote(written{k, leaf, want, nil, made}, "east", now) {
		t.Error("what is made otherwise is told")
	}
	writes := 0
	for range 3600 { // something happens to it each second, as its status does
		now = now.Add(time.Second)
		if wait, leave := d.wait(k, leaf.GetUID(), want, made, now); leave {
			continue
		} else if wait > 0 {
			t.Fatalf("waits for %s for what stays as it is", wait)
		}
		writes++
		if d.wrote(written{k, leaf, want, made, made}, "east", now) {
			t.Fatalf("tells %q", d.of[k].fight.news)
		}
	}
	if writes < 5 || writes > 25 {
		t.Errorf("%d writes in an hour", writes)
	}
	// What somebody does besides is his.
	was := driftedBy(t, []edit{{"web:1", "mirror/web:1"}, {"app: web", "app: shop"}}, []edit{{`"f:app": {}, `, ""}}, by("kubectl-label", later, `{"f:metadata": {"f:labels": {"f:app": {}}}}`))
	if wait, leave := d.wait(k, leaf.GetUID(), want, was, now); leave || wait > 0 {
		t.Errorf("what somebody changed is put back in %s, or left: %v", wait, leave)
	}
	if !d.wrote(written{k, leaf, want, was, made}, "east", now) || !strings.Contains(d.of[k].fight.news, `by "kubectl-label"; put back: metadata.labels.app`) || strings.Contains(d.of[k].fight.news, imageOf) {
		t.Errorf("tells %q", d.of[k].fight.news)
	}
	// And when the webhook is gone, nothing is.
	d.asWanted(k, leaf.GetUID(), want, now)
	if d.of[k].left != nil {
		t.Error("it is remembered that it was made otherwise")
	}
}

// TestDriftIsPutBackAndTold goes the whole way: what is changed below is written once and told once, on the leaf; what is not is
// neither.
func TestDriftIsPutBackAndTold(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		drifted bool // somebody has changed it
		answer  int  // of the hub
		puts    int  // that reach it
	}{
		"Undisturbed": {answer: http.StatusOK},
		"Drifted":     {drifted: true, answer: http.StatusOK, puts: 1},
		"EarlierHub":  {"it takes no events", true, http.StatusForbidden, 1},
		"NoRoot":      {"the user's object is gone, or does not show yet", true, http.StatusNotFound, eventTries},
		"TooMany":     {"they are told later", true, http.StatusTooManyRequests, eventTries},
	} {
		t.Run(name, func(t *testing.T) {
			k := key{configMapsGVR, "shop-1", "settings"}
			leaf := configMap("3", "a")
			leaf.SetUID("leaf-uid")
			leaf.SetFinalizers([]string{workloadv1alpha1.SyncerFinalizer})
			asked := render(leaf, "east-uid")
			asked.SetUID("down-uid")
			asked.SetResourceVersion("7")
			down := asked.DeepCopy()
			if tc.drifted {
				down.Object["data"] = map[string]any{"k": "b"}
				down.Object["metadata"].(map[string]any)["managedFields"] = []any{map[string]any{
					"manager": "of bank-1", "operation": "Update", "time": later, "fieldsType": "FieldsV1", "apiVersion": "v1", "fieldsV1": map[string]any{"f:data": map[string]any{"f:k": map[string]any{}}},
				}}
			}
			writes, puts := 0, 0
			s := newIdle(t, func(w http.ResponseWriter, req *http.Request) {
				if req.Method != http.MethodPut || !strings.Contains(req.URL.Path, "/namespaces/shop-1/events/leaf-uid-drift-") {
					answer(t, w, http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "ConfigMapList", "metadata": map[string]any{}, "items": []any{leaf.Object}})
					return
				}
				puts++
				var event unstructured.Unstructured
				if err := json.NewDecoder(req.Body).Decode(&event.Object); err != nil {
					t.Error(err)
				}
				want := map[string]any{
					"apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": "DriftCorrected", "count": int64(1), "source": map[string]any{"component": "atoll-syncer"},
					"message":        `Changed in physical cluster "east" by "of another namespace"; put back: data.k`,
					"involvedObject": map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "namespace": "shop-1", "name": "settings", "uid": "leaf-uid"},
					"firstTimestamp": "1970-01-01T00:16:40Z", "lastTimestamp": "1970-01-01T00:16:40Z",
					"metadata": map[string]any{"namespace": "shop-1", "name": path.Base(req.URL.Path)},
				}
				event.Object["count"] = int64(event.Object["count"].(float64))
				if diff := cmp.Diff(want, event.Object); diff != "" {
					t.Errorf("the event (-want +got):\n%s", diff)
				}
				if tc.answer == http.StatusOK {
					answer(t, w, tc.answer, event.Object)
					return
				}
				answer(t, w, tc.answer, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(tc.answer), Reason: map[int]metav1.StatusReason{
					http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusTooManyRequests: metav1.StatusReasonTooManyRequests,
				}[tc.answer]})
			}, func(w http.ResponseWriter, req *http.Request) {
				if req.Method == http.MethodPatch {
					writes++
					answer(t, w, http.StatusOK, asked.Object)
					return
				}
				answer(t, w, http.StatusOK, down.Object)
			})
			s.config.Clock = clocktesting.NewFakeClock(time.Unix(1000, 0))
			open := func() { s.gate.open(s.gate.begin(), fine) }
			open()
			ours := func(kind, name, workspace string) *unstructured.Unstructured {
				o := &unstructured.Unstructured{Object: map[string]any{}}
				o.SetKind(kind)
				o.SetName(name)
				o.SetLabels(map[string]string{workloadv1alpha1.WorkspaceLabel: workspace})
				return o
			}
			policy := ours("NetworkPolicy", isolationPolicy, "shop")
			policy.SetNamespace(k.namespace)
			if err := errors.Join(s.physical.informers[configMapsGVR].queue.Replace(nil, "1"),
				s.physical.informers[namespacesGVR].Add(ours("Namespace", "shop-1", "shop")), s.physical.informers[namespacesGVR].Add(ours("Namespace", "bank-1", "bank")),
				s.physical.informers[networkPoliciesGVR].Add(policy), s.mirror.informers[configMapsGVR].Add(leaf), s.physical.informers[configMapsGVR].Add(down)); err != nil {
				t.Fatal(err)
			}
			// It was as it should be when it was last looked at.
			if _, err := s.applyLeaf(t.Context(), k, leaf, asked); err != nil {
				t.Fatal(err)
			}
			for range 3 { // the informer may be behind, and something else may happen
				if o, err := s.applyLeaf(t.Context(), k, leaf, down); err != nil || o.refused != nil || o.down == nil {
					t.Fatalf("%+v %v", o, err)
				}
			}
			if want := map[bool]int{true: 1}[tc.drifted]; writes != want || s.eventQueue.Len() != want {
				t.Errorf("%d writes, and %d to be told, want %d", writes, s.eventQueue.Len(), want)
			}
			tries := 0
			for again := time.Duration(1); again > 0 && tries < 2*eventTries; tries++ {
				open() // which a server that does not answer closes
				var err error
				if again, err = s.reconcileEvent(t.Context(), k); err != nil {
					t.Fatal(err)
				}
			}
			if puts != tc.puts {
				t.Errorf("%s: %d events are put, want %d", tc.reason, puts, tc.puts)
			}
			if again, err := s.reconcileEvent(t.Context(), k); again != 0 || err != nil || puts != tc.puts {
				t.Errorf("%s: it goes on: %s %v, %d events", tc.reason, again, err, puts)
			}
		})
	}
}

// TestDriftThatCannotBeTold: what the hub refuses is told no more often than what it takes, and what is new is.
func TestDriftThatCannotBeTold(t *testing.T) {
	var d drifts
	k, now := key{configMapsGVR, "shop-1", "settings"}, time.Unix(1000, 0)
	leaf, want, was := configMap("3", "a"), configMap("3", "a"), configMap("3", "b")
	leaf.SetUID("leaf-uid")
	d.asWanted(k, leaf.GetUID(), want, now)
	wrote := func(was *unstructured.Unstructured) bool {
		return d.wrote(written{k, leaf, want, was, want}, "east", now)
	}
	if !wrote(was) {
		t.Fatal("it is not told")
	}
	if again := d.tried(k, d.of[k].fight.news, apierrors.NewForbidden(configMapsGVR.GroupResource(), "x", errors.New("no events")), now); again != 0 || d.of[k].fight.news != "" {
		t.Errorf("what is refused is told again in %s", again)
	}
	now = now.Add(time.Second)
	if wrote(was) {
		t.Error("what was refused a second ago is told again")
	}
	if !wrote(nil) {
		t.Error("what is new is not told")
	}
}

// TestDriftOfWhatGoes: of what no leaf asks for any more nothing is told, nor remembered.
func TestDriftOfWhatGoes(t *testing.T) {
	s := newIdle(t, func(w http.ResponseWriter, _ *http.Request) { t.Error("the hub is asked") }, func(w http.ResponseWriter, _ *http.Request) {})
	s.gate.open(s.gate.begin(), fine)
	k, want := key{configMapsGVR, "shop-1", "settings"}, render(configMap("3", "a"), "east-uid")
	leaf := configMap("3", "a")
	leaf.SetUID("leaf-uid")
	s.drifts.asWanted(k, leaf.GetUID(), want, time.Unix(1, 0))
	if !s.drifts.wrote(written{k, leaf, want, nil, want}, "east", time.Unix(1000, 0)) || s.driftEvent(k) == nil {
		t.Fatal("a deletion is not told")
	}
	s.drifts.asWanted(k, "next", want, time.Unix(1001, 0))
	if s.driftEvent(k) != nil || s.drifts.of[k].leaf != "next" || s.drifts.of[k].fight != nil {
		t.Errorf("the next leaf of the name begins with %+v", s.drifts.of[k])
	}
	leaf.SetUID("next")
	if !s.drifts.wrote(written{k, leaf, want, nil, want}, "east", time.Unix(1002, 0)) || s.driftEvent(k) == nil {
		t.Fatal("what was deleted of the next is not told")
	}
	if _, err := s.reconcile(t.Context(), k); err != nil { // its leaf is gone
		t.Fatal(err)
	}
	if again, err := s.reconcileEvent(t.Context(), k); again != 0 || err != nil || len(s.drifts.of) != 0 {
		t.Errorf("again in %s, %v; %d are remembered", again, err, len(s.drifts.of))
	}
	if s.drifts.tried(k, "x", apierrors.NewNotFound(configMapsGVR.GroupResource(), "x"), time.Now()) != 0 {
		t.Error("it is tried again")
	}
}

// TestSeveral: a few are named, and of how many it was when it is known.
func TestSeveral(t *testing.T) {
	names := []string{"a", "b", "c"}
	for want, got := range map[string]string{
		"a, b, c":         several(names, 3, false),
		"a, b and 1 more": several(names, 2, false), "a, b and more": several(names, 2, true), "a, b, c and more": several(names, 3, true),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if !slices.Equal(names, []string{"a", "b", "c"}) {
		t.Error("names are changed")
	}
}
