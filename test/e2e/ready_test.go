package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/atoll/test/framework"
)

// readyAtTheEnd: READY of a Placement is True while every cluster serves its share and nothing is left elsewhere, at no time on
// the way there.
func readyAtTheEnd(t *testing.T, f *fleet) {
	w := f.workspace(t, "shown")
	w.place("east")
	w.apply(9, "1s")
	s := w.show()
	s.ends("east 9/9")
	w.place("east,west")
	s.ends("east 5/5,west 4/4")
	w.kubectl("annotate", "namespace", "default", "placement.atoll.dev/split=Weighted:east=1,west=2")
	s.ends("east 3/3,west 6/6")
	w.kubectl("annotate", "namespace", "default", "--overwrite", "placement.atoll.dev/clusters=west", "placement.atoll.dev/split-")
	s.ends("west 9/9")
	f.clusters["west"].Stop()
	w.place("east")
	s.shows(`east 9/9,west 9/\d Draining False Draining`)
	f.clusters["west"].Restart()
	s.ends("east 9/9")
}

// shown is what kubectl get placements --watch shows of the namespace default, line by line.
type shown struct {
	w    *workspace
	mu   sync.Mutex // guards rows and err
	rows []line
	err  error
	// done is how many rows there were, and generation which the Placement was at, when something ended last.
	done       int
	generation int64
}

type line struct {
	generation int64 // of the Placement
	ready      bool
	clusters   string
	text       string // clusters, READY and REASON
}

// show starts to watch; it ends with the test.
func (w *workspace) show() *shown {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.ctx())
	stream, err := w.f.Clients().Kube.Discovery().RESTClient().Get().AbsPath("/apis/placement.atoll.dev/v1alpha1/placements").
		Param("watch", "true").Param("fieldSelector", "metadata.name=default").
		SetHeader("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1").Stream(ctx)
	if err != nil {
		cancel()
		w.t.Fatalf("watch the Placements: %v", err)
	}
	s := &shown{w: w}
	var reading sync.WaitGroup
	w.t.Cleanup(func() { cancel(); _ = stream.Close(); reading.Wait() })
	reading.Go(func() {
		events := json.NewDecoder(stream)
		columns := map[string]int{} // only the first table has them
		for s.read(events, columns) {
		}
	})
	return s
}

// read adds the next line, and says whether there was one.
func (s *shown) read(events *json.Decoder, columns map[string]int) bool {
	event, table, object := &metav1.WatchEvent{}, &metav1.Table{}, &metav1.PartialObjectMetadata{}
	err := events.Decode(event)
	if err == nil {
		err = json.Unmarshal(event.Object.Raw, table)
	}
	for i, c := range table.ColumnDefinitions {
		columns[c.Name] = i
	}
	if err == nil && (len(table.Rows) != 1 || len(columns) == 0) {
		err = fmt.Errorf("no line of known columns: %s", event.Object.Raw)
	}
	if err == nil {
		err = json.Unmarshal(table.Rows[0].Object.Raw, object)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err = err; err != nil {
		return false
	}
	cell := func(column string) string { return fmt.Sprint(table.Rows[0].Cells[columns[column]]) }
	s.rows = append(s.rows, line{object.Generation, cell("Ready") == "True", cell("Clusters"), cell("Clusters") + " " + cell("Ready") + " " + cell("Reason")})
	return true
}

// shows waits until the last line matches.
func (s *shown) shows(pattern string) {
	s.w.t.Helper()
	re := regexp.MustCompile("^" + pattern + "$")
	s.until("the last line is "+pattern, func(last line) bool { return re.MatchString(last.text) })
}

// ends waits until the Placement, which was changed, is READY as clusters, and sees that since the change it never was otherwise.
func (s *shown) ends(clusters string) {
	s.w.t.Helper()
	s.until("READY as "+clusters, func(last line) bool {
		return last.ready && last.generation > s.generation && last.clusters == clusters
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rows[s.done:] {
		if r.ready && r.generation > s.generation && r.clusters != clusters {
			s.w.t.Errorf("READY as %s before it was as %s:\n%s", r.clusters, clusters, s.lines())
		}
	}
	s.done, s.generation = len(s.rows), s.rows[len(s.rows)-1].generation
}

func (s *shown) until(what string, is func(last line) bool) {
	s.w.t.Helper()
	framework.Eventually(s.w.t, patience, what, func() string {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.rows) > 0 && is(s.rows[len(s.rows)-1]) {
			return ""
		}
		return fmt.Sprintf("error %v after\n%s", s.err, s.lines())
	})
}

// lines are those since something ended last.
func (s *shown) lines() string {
	var lines []string
	for _, r := range s.rows[s.done:] {
		lines = append(lines, fmt.Sprintf("generation %d: %s", r.generation, r.text))
	}
	return strings.Join(lines, "\n")
}
