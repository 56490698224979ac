package splitter

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestScenarios tells moves, re-splits and rollouts step by step. Regenerate with `go test ./splitter -run Scenarios
// -rewrite`, and commit only what you understand.
//
//	new clusters=(a,b) replicas=6 unavailable=1 surge=1 recreate=false
//	place a=1 b=3          the Placement with weights
//	scale 9 | template 2   what the user asks for
//	lose a | find a        a cluster is not heard of, or is again
//	split                  one round of the splitter
//	sync a | control a | report a   one round of a's syncer downwards, its controllers, its syncer upwards
//	start a 2              two pods of a become ready
//	crash a                pods of a's template serve no more
//	round                  all of these everywhere; every new pod becomes ready
//	converge               rounds until nothing changes
//
// Each prints the clusters: what the leaf asks for, what the cluster last said, what it has.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var f *fleet
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "new" {
				f = scenarioFleet(t, d)
				return f.String()
			}
			first := ""
			if len(d.CmdArgs) > 0 {
				first = d.CmdArgs[0].Key
			}
			switch d.Cmd {
			case "place":
				f.weights = map[string]int64{}
				for _, arg := range d.CmdArgs {
					f.weights[arg.Key] = int64(number(t, d, arg.Vals[0]))
				}
			case "scale":
				f.replicas = int32(number(t, d, first))
			case "template":
				f.template = number(t, d, first)
			case "lose", "find":
				f.clusters[first].lost = d.Cmd == "lose"
			case "split":
				f.lookAtAll()
				f.split()
			case "sync":
				f.clusters[first].sync()
			case "control":
				f.clusters[first].control()
			case "report":
				f.clusters[first].report()
			case "start":
				for range number(t, d, d.CmdArgs[1].Key) {
					f.clusters[first].start()
				}
			case "crash":
				f.clusters[first].crash()
			case "round":
				f.round()
			case "converge":
				if !f.converge() {
					return "does not come to rest\n" + f.String()
				}
			default:
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			return fmt.Sprintf("%s%d serve\n", f, f.truth())
		})
	})
}

func scenarioFleet(t *testing.T, d *datadriven.TestData) *fleet {
	f := newFleet()
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "clusters":
			f = newFleet(arg.Vals...)
		case "replicas":
			f.replicas = int32(number(t, d, arg.Vals[0]))
		case "unavailable":
			f.unavailable = int32(number(t, d, arg.Vals[0]))
		case "surge":
			f.surge = int32(number(t, d, arg.Vals[0]))
		case "recreate":
			f.recreate = arg.Vals[0] == "true"
		default:
			d.Fatalf(t, "unknown argument %q", arg.Key)
		}
	}
	return f
}

func number(t *testing.T, d *datadriven.TestData, text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		d.Fatalf(t, "%q is no number", text)
	}
	return n
}
