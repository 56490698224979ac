package crash

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/types"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	"atoll.dev/atoll/test/framework"
)

var clusterName = types.NamespacedName{Name: corev1alpha1.LogicalClusterName}

// run is one scenario, played once in a workspace of its own.
type run struct {
	*world
	t        *testing.T
	scenario scenario
	number   int
	user     *user
	// clusters are the logical clusters of the user's workspaces, from the top.
	clusters []string
	// before is how many logical clusters there were.
	before int
	done   int // steps
	// past is when the controller saw the past: from where to where in the audit log of each side.
	past map[string][]stretch
}

// stretch of a log: its lines from, inclusive, to to.
type stretch struct{ from, to int }

// showsPast says that from now on the controller sees the past, or the present again.
func (r *run) showsPast(past bool) {
	r.t.Helper()
	for c, log := range r.logs {
		at := len(log.read(r.t))
		if past {
			r.past[c] = append(r.past[c], stretch{at, math.MaxInt})
		} else {
			r.past[c][len(r.past[c])-1].to = at
		}
	}
}

// reference is the undisturbed run of a scenario: the state after each step.
type reference []state

// eventually fails the test unless check returns no problem within patience.
func eventually(t *testing.T, what string, check func() (problem string)) {
	t.Helper()
	framework.Eventually(t, patience, what, check)
}

// begin makes what the scenario stands on. before is called when all of it is there.
func (w *world) begin(t *testing.T, sc scenario) *run {
	t.Helper()
	w.runs++
	w.later.set(0)
	r := &run{world: w, t: t, scenario: sc, number: w.runs, past: map[string][]stretch{}}
	r.user = &user{run: r}
	all := &corev1alpha1.LogicalClusterList{}
	must(t, w.clients.Objects.List(client.Everywhere(w.ctx), all))
	r.before = len(all.Items)
	if !sc.own {
		must(t, r.user.create("shop"))
		r.user.ready()
	}
	return r
}

// finish leaves nothing of the run behind.
func (r *run) finish() {
	r.t.Helper()
	must(r.t, r.user.remove())
	eventually(r.t, "the run's workspace goes", r.user.removed)
	r.nothingLeft()
}

// home addresses the workspace with the app.
func (r *run) home() context.Context {
	return client.In(r.ctx, logicalcluster.Name(r.clusters[len(r.clusters)-1]))
}

// space is the namespace of the app in physical clusters.
func (r *run) space() string {
	return kinds.DownstreamNamespace(logicalcluster.Name(r.clusters[len(r.clusters)-1]), "default", false)
}

// isOurs says whether a namespace of a physical cluster may be the app's.
func (r *run) isOurs(namespace string) bool { return len(r.clusters) == 0 || namespace == r.space() }

// step does what the user does next.
func (r *run) step() {
	r.t.Helper()
	s := r.scenario.steps[r.done]
	if err := s.do(r.user); err != nil {
		r.t.Fatalf("step %s: %v", s.name, err)
	}
	r.done++
}

// settle waits until the last step has come about, and all is as it was in the undisturbed run. want is nil in that run.
func (r *run) settle(want reference) state {
	r.t.Helper()
	s := r.scenario.steps[r.done-1]
	r.user.ready()
	what := fmt.Sprintf("step %s of run %d", s.name, r.number)
	var last state
	began := time.Now()
	var since time.Time
	looks, hours := 0, 0
	defer func() {
		if r.t.Failed() {
			r.t.Logf("what there is:\n%s", r.state().picture())
		}
	}()
	eventually(r.t, what, func() string {
		// Who looked at the clock before it was stepped, and waits since, waits for an hour.
		if hours++; hours <= 24 {
			r.later.pass(anHour)
		}
		if problem := r.running(s.runs); problem != "" {
			return problem
		}
		if want, ok := r.scenario.come[s.name]; ok {
			if is := r.tally(); is != want {
				return fmt.Sprintf("there is %+v, want %+v", is, want)
			}
		}
		now := r.state()
		if want != nil {
			return now.diff(want[r.done-1])
		}
		// Nobody says what the rest is; it is what stays.
		if diff := now.diff(last); diff != "" {
			last, since, looks = now, time.Now(), 0
			return "still changes:\n" + diff
		}
		looks++
		if problem := now.underWay(); problem != "" {
			return problem
		}
		// On a busy machine a second is not long, but to look a few times takes longer, too.
		if time.Since(since) < time.Second || looks < 3 {
			return "has not come to rest"
		}
		return ""
	})
	r.t.Logf("%s: %s", what, time.Since(began).Round(100*time.Millisecond))
	r.judge()
	return last
}

// judge holds the audit logs of the physical clusters against what the user has asked for until now:
//   - Each object is deleted as often as the steps say.
//   - What pods refer to may go more often where nothing makes any: it may come before that is placed elsewhere.
//   - A Job is made once, and once more for each of its name that was asked to go.
//   - A namespace may go whenever nothing is in it.
//
// What a controller made while it saw the past it may take away again.
func (r *run) judge() {
	r.t.Helper()
	var asked []string
	for _, s := range r.scenario.steps[:r.done] {
		asked = append(asked, s.deletes...)
	}
	if r.scenario.house {
		r.judgeHouse(asked)
	}
	jobs := map[string]int{} // that were made, by name
	mayBeMade := func(name string) int {
		return 1 + len(slices.DeleteFunc(slices.Clone(asked), func(d string) bool {
			return !strings.HasSuffix(d, " jobs/"+name) || strings.HasPrefix(d, hubSide)
		}))
	}
	space := r.space()
	for _, c := range clusterNames {
		allowed := slices.Clone(asked)
		held := map[string]bool{} // what was written into the namespace and not deleted
		for i, a := range r.logs[c].read(r.t) {
			// What the cluster does in its own house it does for somebody who is judged here. Pods are deleted by their node.
			if a.space != space || a.code >= 300 || strings.HasPrefix(a.user, "system:") || a.resource == "pods" {
				continue
			}
			name := c + " " + a.String()
			if !strings.HasPrefix(a.verb, "delete") {
				if a.resource == "jobs" && a.code == http.StatusCreated {
					if jobs[a.name]++; jobs[a.name] > mayBeMade(a.name) {
						r.t.Fatalf("run %d, step %s: %s was made once more (%s by %s)", r.number, r.scenario.steps[r.done-1].name, name, a.id, a.user)
					}
				}
				if downNames[a.resource] && a.name != isolationPolicy {
					held[a.resource] = true
					inPast := slices.ContainsFunc(r.past[c], func(s stretch) bool { return s.from <= i && i < s.to })
					if inPast && a.code == http.StatusCreated {
						allowed = append(allowed, name)
					}
				}
				continue
			}
			delete(held, a.resource)
			why := ""
			switch at := slices.Index(allowed, name); {
			case a.resource == "namespaces":
				if len(held) > 0 {
					why = fmt.Sprintf("although it held %v", slices.Sorted(maps.Keys(held)))
				}
			case at >= 0:
				allowed = slices.Delete(allowed, at, at+1)
			case a.resource != "configmaps" && a.resource != "secrets" || holdsPods(held):
				why = "which nobody had asked for"
			}
			if why != "" {
				r.t.Fatalf("run %d, step %s: %s was deleted (%s by %s), %s", r.number, r.scenario.steps[r.done-1].name, name, a.id, a.user, why)
			}
		}
	}
}

func holdsPods(held map[string]bool) bool {
	for resource := range held {
		if podMakers[resource] {
			return true
		}
	}
	return false
}

// podMakers are the resources whose objects make pods.
var podMakers = func() map[string]bool {
	makers := map[string]bool{}
	for _, k := range kinds.All {
		makers[k.GVR.Resource] = k.MakesPods()
	}
	return makers
}()

// isolationPolicy is the floor's NetworkPolicy, which goes with its namespace.
const isolationPolicy = "atoll-tenant-isolation"

// downNames are the resources whose loss somebody would notice.
var downNames = func() map[string]bool {
	names := map[string]bool{}
	for _, k := range kinds.All {
		names[k.GVR.Resource] = true
	}
	return names
}()
