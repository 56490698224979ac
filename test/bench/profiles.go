package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/pprof/profile"

	"atoll.dev/atoll/test/framework"
	"atoll.dev/atoll/test/host"
)

// A run with --profiles tells of each row where the server's time and memory go. It keeps no figures: to look costs some of what
// is looked at.

const (
	// profiledFor is how long one CPU profile is. What happens between two is not seen.
	profiledFor = 5 * time.Second
	// profileLines are told of each kind of cost, the largest first.
	profileLines = 12
	profilesFile = "profiles.md"
)

// profiler collects the profiles of the servers of a scenario.
type profiler struct {
	ctx context.Context

	mu   sync.Mutex // guards what follows
	cpu  []*profile.Profile
	last *framework.Atoll // that was started
}

// watch profiles a server until the scenario ends.
func (p *profiler) watch(a *framework.Atoll) {
	p.mu.Lock()
	p.last = a
	p.mu.Unlock()
	go func() {
		for p.ctx.Err() == nil {
			taken, err := readProfile(p.ctx, a, fmt.Sprintf("/debug/pprof/profile?seconds=%d", int(profiledFor.Seconds())))
			if err != nil { // it is being started again, or has ended
				_ = pause(p.ctx, time.Second)
				continue
			}
			p.mu.Lock()
			p.cpu = append(p.cpu, taken)
			p.mu.Unlock()
		}
	}()
}

// row is what was seen since the row before. Of memory it is what the server that was started last holds now.
func (p *profiler) row() (costs, error) {
	p.mu.Lock()
	taken, a := p.cpu, p.last
	p.cpu = nil
	p.mu.Unlock()
	var c costs
	if len(taken) > 0 {
		all, err := profile.Merge(taken)
		if err != nil {
			return c, fmt.Errorf("merge CPU profiles: %w", err)
		}
		c.cpu, c.took = costsOf(all, "cpu"), time.Duration(all.DurationNanos)
	}
	if a != nil && a.Running() {
		heap, err := readProfile(p.ctx, a, "/debug/pprof/heap")
		if err != nil {
			return c, fmt.Errorf("read the heap profile: %w", err)
		}
		c.heap = costsOf(heap, "inuse_space")
		stats, err := get(p.ctx, a, "/debug/pprof/heap?debug=1")
		if err != nil {
			return c, fmt.Errorf("read what the heap is made of: %w", err)
		}
		c.memory = goMemory(stats)
	}
	return c, nil
}

func readProfile(ctx context.Context, a *framework.Atoll, path string) (*profile.Profile, error) {
	data, err := get(ctx, a, path)
	if err != nil {
		return nil, err
	}
	return profile.ParseData([]byte(data))
}

// costs are what a row's server spent, by package, and for whom.
type costs struct {
	took      time.Duration // in which cpu was spent
	cpu, heap breakdown
	memory    string // what the process holds of it besides
}

// breakdown is a cost by the package that has it, and by the part that it is for: ns of CPU, or bytes.
type breakdown struct {
	total       int64
	in, forWhom map[string]int64
}

// stat is a line of runtime.MemStats, as a heap profile in text has it. Of two numbers the second is what the system has given.
var stat = regexp.MustCompile(`(?m)^# (\w+) = (?:\d+ / )?(\d+)$`)

// goMemory tells what Go holds of the system's memory, by what it is for.
func goMemory(stats string) string {
	bytes := map[string]float64{}
	for _, m := range stat.FindAllStringSubmatch(stats, -1) {
		bytes[m[1]], _ = strconv.ParseFloat(m[2], 64) // digits
	}
	var own float64
	for _, name := range []string{"MSpan", "MCache", "BuckHashSys", "GCSys", "OtherSys"} {
		own += bytes[name]
	}
	mb := func(bytes float64) string { return number(bytes / 1e6) }
	return fmt.Sprintf("Held: %s MB of objects and garbage, %s MB between them in pages that are in use, %s MB of free pages, %s MB of stacks, %s MB for Go's own ends.",
		mb(bytes["HeapAlloc"]), mb(bytes["HeapInuse"]-bytes["HeapAlloc"]), mb(bytes["HeapIdle"]-bytes["HeapReleased"]), mb(bytes["Stack"]), mb(own))
}

const collector = "the collector of garbage"

// costsOf breaks a kind of sample of a profile down.
func costsOf(p *profile.Profile, kind string) breakdown {
	b := breakdown{in: map[string]int64{}, forWhom: map[string]int64{}}
	index := slices.IndexFunc(p.SampleType, func(t *profile.ValueType) bool { return t.Type == kind })
	if index < 0 {
		return b
	}
	for _, s := range p.Sample {
		v := s.Value[index]
		in, of := attribute(framework.Calls(s))
		b.total += v
		b.in[in] += v
		b.forWhom[of] += v
	}
	return b
}

// attribute returns the package that a stack, the innermost function first, is in, and the part that it is for. What the runtime and other
// packages of Go do is of who called them, but for the collector; a part is a package of Atoll, of the API machinery's server, or of etcd.
func attribute(functions []string) (in, forWhom string) {
	for _, f := range functions {
		if strings.HasPrefix(f, "runtime.gcBgMarkWorker") || strings.HasPrefix(f, "runtime.gcAssistAlloc") || strings.HasPrefix(f, "runtime.bgsweep") {
			return collector, collector
		}
		of := packageOf(f)
		if in == "" && of != "runtime" && of != "syscall" && of != "sync" && !strings.HasPrefix(of, "runtime/") && !strings.HasPrefix(of, "internal/") {
			in = of
		}
		if isPart(of) {
			return cmp.Or(in, of), of
		}
	}
	return cmp.Or(in, "runtime"), "nobody's request"
}

// isPart says whether cost is told as that of this package.
func isPart(of string) bool {
	for _, tree := range []string{"atoll.dev/atoll/", "k8s.io/apiserver/pkg/storage", "k8s.io/apiserver/pkg/admission", "k8s.io/apiserver/pkg/endpoints/handlers", "go.etcd.io/"} {
		if strings.HasPrefix(of, tree) {
			return true
		}
	}
	return false
}

// packageOf returns the package of a function, given as a profile names it: "path/of/package.(*Type).Method.func1".
func packageOf(function string) string {
	function, _, _ = strings.Cut(function, "[") // type parameters have paths, too
	slash := strings.LastIndexByte(function, '/') + 1
	name, _, _ := strings.Cut(function[slash:], ".")
	return function[:slash] + name
}

// table renders a breakdown, with each cost in a unit of so many.
func (b breakdown) table(what string, unit float64, name string) string {
	if b.total == 0 {
		return ""
	}
	var t strings.Builder
	fmt.Fprintf(&t, "| %s | %s | | for | %s | |\n|---|---|---|---|---|---|\n", what, name, name)
	in, of := largest(b.in), largest(b.forWhom)
	cells := func(costs map[string]int64, names []string, i int) string {
		if i >= len(names) {
			return "| | | "
		}
		v := costs[names[i]]
		return fmt.Sprintf("| %s | %s | %.0f %% ", names[i], number(float64(v)/unit), 100*float64(v)/float64(b.total))
	}
	for i := range max(len(in), len(of)) {
		t.WriteString(cells(b.in, in, i) + cells(b.forWhom, of, i) + "|\n")
	}
	return t.String() + "\n"
}

// largest returns the names of the largest costs.
func largest(costs map[string]int64) []string {
	names := slices.SortedFunc(maps.Keys(costs), func(a, b string) int { return cmp.Or(cmp.Compare(costs[b], costs[a]), cmp.Compare(a, b)) })
	return names[:min(len(names), profileLines)]
}

// heading begins a row in the file of profiles.
const heading = "## "

// markdown renders what a row costs, as a run found it.
func (c costs) markdown(r Result, run host.Run) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s\n\n%s, goal %s, while it was profiled: %s, commit %s, %s, load before %s, %s.\n\n",
		heading, r.Row, r.figure(), r.goal(), run.Began, run.Commit, machine(run), run.Load, run.Go)
	if c.cpu.total > 0 {
		fmt.Fprintf(&b, "CPU: %s s in %s s.\n\n%s", number(float64(c.cpu.total)/1e9), number(c.took.Seconds()), c.cpu.table("in", 1e9, "s"))
	}
	if c.heap.total > 0 {
		fmt.Fprintf(&b, "Heap: %s MB in use at the last collection. %s\n\n%s", number(float64(c.heap.total)/1e6), c.memory, c.heap.table("in", 1e6, "MB"))
	}
	return b.String()
}

// saveProfiles writes what rows cost into a directory, in the order of all rows. Of those that were not profiled what is there stays.
func saveProfiles(dir string, profiled []string, order []Row) error {
	file := filepath.Join(dir, profilesFile)
	before, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(file, []byte(withProfiles(string(before), profiled, order)), 0o644)
}

// withProfiles puts what rows cost into the text of a file, each in the place of what it has cost before.
func withProfiles(before string, profiled []string, order []Row) string {
	costs := map[string]string{}
	_, sections, _ := strings.Cut(before, "\n"+heading)
	for _, section := range append(strings.Split(sections, "\n"+heading), profiled...) {
		section = strings.TrimPrefix(section, heading)
		row, _, _ := strings.Cut(section, "\n")
		costs[row] = strings.TrimRight(section, "\n") + "\n"
	}
	text := `# Profiles

Made by ` + "`make profiles`" + `; not written by hand. Where the server's time and memory go while a row of [benchmarks.md](benchmarks.md) is measured: by the
package whose code runs, or that has made what is in use, and by the part of Atoll, of the API machinery or of etcd that it is for. Go's own packages count for who calls
them. The figures here are those of a server that is profiled, and are not kept elsewhere. Each row has its own run.
`
	for _, row := range order {
		if section, ok := costs[row.Name]; ok {
			text += "\n" + heading + section
		}
	}
	return text
}
