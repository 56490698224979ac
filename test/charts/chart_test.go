package charts

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"atoll.dev/atoll/internal/document"
	"atoll.dev/atoll/test/framework"
)

// upgradeValues is the file of a chart with what its upgrade changes.
const upgradeValues = "values-upgrade.yaml"

// chart is a chart of this folder. A release of it, and the namespace of that, have its name.
type chart struct{ name, dir string }

// allCharts are the charts of this folder, by name.
func allCharts(t *testing.T) (all []chart) {
	t.Helper()
	dir, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		all = append(all, chart{name: filepath.Base(filepath.Dir(file)), dir: filepath.Dir(file)})
	}
	return all
}

// render returns what helm makes of a chart: definitions, objects and hooks, with its first values and those of its upgrade.
func (c chart) render(t *testing.T, helm *framework.Helm) (all []*unstructured.Unstructured) {
	t.Helper()
	for _, values := range []string{"values.yaml", upgradeValues} {
		stdout, stderr, err := helm.Run(t.Context(), "template", c.name, c.dir, "--namespace", c.name, "--include-crds", "--values", filepath.Join(c.dir, values))
		if err != nil {
			t.Fatalf("render chart %s with %s: %v\n%s", c.name, values, err, stderr)
		}
		objects, err := decode(stdout)
		if err != nil {
			t.Fatalf("read what chart %s with %s is rendered to: %v", c.name, values, err)
		}
		all = append(all, objects...)
	}
	return all
}

// decode reads objects from YAML documents; empty documents are none.
func decode(text string) (all []*unstructured.Unstructured, _ error) {
	documents := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &o.Object); err != nil {
			return nil, fmt.Errorf("%w in\n%s", err, document)
		}
		if len(o.Object) > 0 {
			all = append(all, o)
		}
	}
}

// idOf tells the objects of one namespace, and those of none, apart.
func idOf(o *unstructured.Unstructured) string {
	return o.GroupVersionKind().GroupKind().String() + " " + o.GetName()
}

// documentFile says what charts have, what differs, and how the last run of all ended.
const documentFile = "../../docs/charts.md"

var (
	coverageSection    = document.Section{Begin: "<!-- coverage: begin (make generate writes this table) -->", End: "<!-- coverage: end -->"}
	differencesSection = document.Section{Begin: "<!-- differences: begin (make generate writes this table) -->", End: "<!-- differences: end -->"}
	runSection         = document.Section{Begin: "<!-- run: begin (make charts writes this) -->", End: "<!-- run: end -->"}
)

// inDocument makes text a section of the document with -write, and else fails the test where it is not.
func inDocument(t *testing.T, section document.Section, text string) {
	t.Helper()
	before, err := os.ReadFile(documentFile)
	if err != nil {
		t.Fatal(err)
	}
	after, err := section.Replace(string(before), text)
	if err != nil {
		t.Fatalf("%s: %v", documentFile, err)
	}
	switch {
	case after == string(before):
	case !*write:
		t.Errorf("%s does not say what is so: run make generate", documentFile)
	default:
		if err := os.WriteFile(documentFile, []byte(after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// everyKind is the chart of one application that has every kind.
const everyKind = "tiers"

// TestRendered renders all charts. There are twenty, every feature is in three of them, one has every kind, and every upgrade rolls
// something out.
func TestRendered(t *testing.T) {
	helm, rendered := framework.NewHelm(t, ""), map[string][]*unstructured.Unstructured{}
	for _, c := range allCharts(t) {
		rendered[c.name] = c.render(t, helm)
		before, changed := map[string]any{}, false
		for _, o := range rendered[c.name] {
			spec, there := before[idOf(o)]
			changed = changed || there && !reflect.DeepEqual(spec, o.Object["spec"])
			before[idOf(o)] = o.Object["spec"]
		}
		if !changed {
			t.Errorf("no spec of chart %s changes by its upgrade", c.name)
		}
	}
	if len(rendered) != 20 {
		t.Errorf("%d charts, want 20", len(rendered))
	}
	rows := cover(features(), rendered)
	for _, problem := range few(rows) {
		t.Error(problem)
	}
	for _, r := range rows {
		if r.name == "" && !slices.Contains(r.charts, everyKind) {
			t.Errorf("no %s is in chart %s, which has every kind", r.kind, everyKind)
		}
	}
	listed, err := parse(differencesText)
	if err != nil {
		t.Fatalf("differences.tsv: %v", err)
	}
	inDocument(t, coverageSection, table(rows))
	inDocument(t, differencesSection, list(listed))
}
