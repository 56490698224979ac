package conformance

import (
	"flag"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"

	"atoll.dev/atoll/test/framework"
)

var specsFile = flag.String("specs", "", "run every [Conformance] spec on a peer, and write those that pass to this `file`")

// specsHeader says what is in specs.txt.
const specsHeader = `# The [Conformance] specs that a Kubernetes without nodes passes, each within a minute and a half; see doc.go.
# Written by make conformance-specs.
`

// aggregated says that a spec needs the aggregation layer, of which a workspace has none: it serves its own API only.
func aggregated(spec string) bool {
	return strings.Contains(spec, "Aggregator ") || strings.Contains(spec, "APIService")
}

// TestCandidates makes specs.txt. It takes about an hour, most of which it waits for specs that wait for pods: each runs
// in a process of its own, which ends after specTime.
func TestCandidates(t *testing.T) {
	if *specsFile == "" {
		t.Skip("it is no test but makes specs.txt: make conformance-specs")
	}
	s := newSuite(t)
	var together, alone []string
	for _, spec := range conformanceSpecs(t, s) {
		switch {
		case aggregated(spec):
		case strings.Contains(spec, "[Serial]"):
			alone = append(alone, spec)
		default:
			together = append(together, spec)
		}
	}
	var found []string
	var mu sync.Mutex
	var wg sync.WaitGroup
	work := func(name string, specs []string, workers int) {
		kubeconfig := framework.StartPhysical(t, name, framework.PhysicalNodes(0)).Kubeconfig
		wg.Go(func() {
			for spec, r := range s.each(t, name, kubeconfig, specs, workers) {
				if r.state == passed {
					mu.Lock()
					found = append(found, spec)
					mu.Unlock()
				}
			}
		})
	}
	work("peer", together, 4*runtime.NumCPU())
	work("serial", alone, 1)
	wg.Wait()
	slices.Sort(found)
	if len(found) < minPeerPasses {
		t.Fatalf("only %d specs passed, %d are wanted", len(found), minPeerPasses)
	}
	if err := os.WriteFile(*specsFile, []byte(specsHeader+strings.Join(found, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// conformanceSpecs are the names of all [Conformance] specs, which the suite carries as a list.
func conformanceSpecs(t *testing.T, s suite) []string {
	t.Helper()
	data, err := exec.Command(s.binary, "--list-conformance-tests").Output()
	if err != nil {
		t.Fatalf("list the specs of %s: %v", s.binary, err)
	}
	var tests []struct {
		Codename string `json:"codename"`
	}
	if err := yaml.Unmarshal(data, &tests); err != nil {
		t.Fatalf("read the list of specs of %s: %v", s.binary, err)
	}
	var specs []string
	for _, test := range tests {
		specs = append(specs, test.Codename)
	}
	return specs
}
