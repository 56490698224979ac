package conformance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"atoll.dev/atoll/test/conformance/exceptions"
	"atoll.dev/atoll/test/host"
)

// many are enough specs for the peer, the first of which is called first.
func many(first string) (specs []string, all map[string]result) {
	specs, all = []string{first}, map[string]result{}
	for i := range minPeerPasses - 1 {
		specs = append(specs, fmt.Sprintf("[sig-x] %03d [Conformance]", i))
	}
	for _, s := range specs {
		all[s] = result{state: passed}
	}
	return specs, all
}

func TestJudge(t *testing.T) {
	const spec = "[sig-x] first [Conformance]"
	failed := &result{state: "failed", message: "boom"}
	ok := &result{state: passed}
	excepted := []exceptions.Exception{{Spec: spec, Reason: "why"}}
	for _, tt := range []struct {
		reason            string
		peer, a, b, apart *result // of spec; nil: absent. The others pass everywhere
		exceptions        []exceptions.Exception
		want              []string
	}{
		{reason: "all pass", peer: ok, a: ok, b: ok},
		{reason: "a workspace fails what the peer passes", peer: ok, a: ok, b: failed, want: []string{spec + ": failed in workspace b: boom"}},
		{reason: "a spec that was not come to is no pass", peer: ok, a: nil, b: ok, want: []string{spec + ": absent in workspace a: "}},
		{reason: "an exception fails", peer: ok, apart: failed, exceptions: excepted},
		{
			reason: "an exception that passes has to go", peer: ok, apart: ok, exceptions: excepted,
			want: []string{spec + " passes: remove it from the exceptions"},
		},
		{
			reason: "nobody knows of an exception that did not run", peer: ok, exceptions: excepted,
			want: []string{spec + " did not run: an exception has to fail"},
		},
		{
			reason: "what the peer does not pass proves nothing", peer: failed, a: failed, b: ok,
			want: []string{fmt.Sprintf("peer passed %d specs of %d, and has to pass %d", minPeerPasses-1, minPeerPasses, minPeerPasses)},
		},
		{
			reason: "an exception of a spec that is not run", peer: ok, a: ok, b: ok, exceptions: []exceptions.Exception{{Spec: "[sig-x] other [Conformance]", Reason: "why"}},
			want: []string{`the exception "[sig-x] other [Conformance]" is not in the list of specs: remove it`},
		},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			var specs []string
			sideOf := func(name string, r *result) (s side) {
				s.name = name
				specs, s.results = many(spec)
				if delete(s.results, spec); r != nil {
					s.results[spec] = *r
				}
				return s
			}
			got := judge(specs, tt.exceptions, sideOf("peer", tt.peer), []side{sideOf("a", tt.a), sideOf("b", tt.b)}, sideOf("apart", tt.apart))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("problems, -want +got:\n%s", diff)
			}
		})
	}
}

func TestDeal(t *testing.T) {
	for _, tt := range []struct {
		specs, first, second, serial string
	}{
		{specs: "a b c", first: "a c", second: "b"},
		{specs: "a [Serial]x b c [Serial]y d", first: "a c", second: "b d", serial: "[Serial]x [Serial]y"},
		{specs: "a", first: "a"},
		{specs: "[Serial]x", serial: "[Serial]x"},
	} {
		var want [][]string
		for _, hand := range []string{tt.first, tt.second} {
			if hand != "" {
				want = append(want, strings.Fields(hand))
			}
		}
		hands, serial := deal(strings.Fields(tt.specs), 2)
		if diff := cmp.Diff(want, hands, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.specs, diff)
		}
		if diff := cmp.Diff(strings.Fields(tt.serial), serial, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s, serial (-want +got):\n%s", tt.specs, diff)
		}
	}
}

func TestParseReport(t *testing.T) {
	results, err := parseReport([]byte(`[{"SpecReports": [
		{"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
		{"ContainerHierarchyTexts": ["[sig-x] X", "[Serial]"], "LeafNodeText": "works [Conformance]", "LeafNodeType": "It", "State": "passed", "RunTime": 1500000000},
		{"ContainerHierarchyTexts": ["[sig-x] X"], "LeafNodeText": "fails", "LeafNodeType": "It", "State": "failed", "Failure": {"Message": "boom"}},
		{"ContainerHierarchyTexts": ["[sig-x] X"], "LeafNodeText": "is skipped", "LeafNodeType": "It", "State": "skipped", "Failure": {"Message": "no nodes"}},
		{"ContainerHierarchyTexts": ["[sig-x] X"], "LeafNodeText": "is another", "LeafNodeType": "It", "State": "skipped"}
	]}]`))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]result{
		"[sig-x] X [Serial] works [Conformance]": {state: passed, took: 1500 * time.Millisecond},
		"[sig-x] X fails":                        {state: "failed", message: "boom"},
		"[sig-x] X is skipped":                   {state: "skipped", message: "no nodes"},
	}
	if diff := cmp.Diff(want, results, cmp.AllowUnexported(result{})); diff != "" {
		t.Errorf("results, -want +got:\n%s", diff)
	}
	_, err = parseReport([]byte(`[{"SpecReports": [{"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed", "Failure": {"Message": "no namespace"}}]}]`))
	if err == nil || !strings.Contains(err.Error(), "SynchronizedBeforeSuite failed: no namespace") {
		t.Errorf("a suite that could not begin: error %v", err)
	}
}

func TestParseLists(t *testing.T) {
	specs, err := parseSpecs("# comment\n[sig-x] a [Conformance]\n[sig-x] b [Conformance]\n")
	if diff := cmp.Diff([]string{"[sig-x] a [Conformance]", "[sig-x] b [Conformance]"}, specs); diff != "" || err != nil {
		t.Errorf("specs, error %v, -want +got:\n%s", err, diff)
	}
	for _, text := range []string{"[sig-x] a", "a [Conformance]", "[sig-x] b [Conformance]\n[sig-x] a [Conformance]", "[sig-x] a [Conformance]\n[sig-x] a [Conformance]"} {
		if _, err := parseSpecs(text); err == nil {
			t.Errorf("no error for specs %q", text)
		}
	}
}

func TestCompare(t *testing.T) {
	before := map[string]string{"same": "1", "changed": "1", "gone": "1"}
	after := map[string]string{"same": "1", "changed": "2", "new": "1"}
	want := []string{"changed changed:\n1\n2", "gone is gone", "new is new: 1"}
	if diff := cmp.Diff(want, compare(before, after)); diff != "" {
		t.Errorf("differences, -want +got:\n%s", diff)
	}
}

func TestReport(t *testing.T) {
	specs := []string{"[sig-x] a [Conformance]", "[sig-y] b [Conformance]"}
	pass := map[string]result{specs[0]: {state: passed}, specs[1]: {state: passed}}
	text := report(host.Run{Command: "make conformance"}, "v1.36.3", 7, time.Minute, specs, []exceptions.Exception{{Spec: specs[1], Reason: "no reason"}},
		side{"peer", pass}, []side{{"root:a", map[string]result{specs[0]: {state: passed}}}})
	for _, want := range []string{
		"Seed 7, 1m0s.", "| group | specs | peer | root:a |\n|---|---:|---:|---:|\n| x | 1 | 1 | 1 |\n| y | 1 | 1 | 0 |\n| **all** | 2 | 2 | 1 |\n",
		"| [sig-y] b [Conformance] | no reason |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
}
