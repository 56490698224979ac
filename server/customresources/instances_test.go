package customresources

import (
	"container/list"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// made are the instances that were made, and those that were ended.
type made struct {
	mu   sync.Mutex
	open []string
}

func (m *made) now() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	slices.Sort(m.open)
	return strings.Join(m.open, " ")
}

// distinct are definitions whose specs have one size and differ.
func distinct(t *testing.T, n int) (defs []*Definition, size int64) {
	t.Helper()
	d := newDefinitions(nil, Names{})
	for i := range n {
		def := defined(t, &d.specs, "a", "5", func(c *apiextensionsv1.CustomResourceDefinition) {
			c.Spec.Names.Kind = fmt.Sprintf("Kind%02d", i)
			c.Status.AcceptedNames = c.Spec.Names
		})
		defs = append(defs, def)
		if i > 0 && instanceSize(def) != size {
			t.Fatalf("sizes %d and %d, want one", size, instanceSize(def))
		}
		size = instanceSize(def)
	}
	return defs, size
}

func newTestInstances(most int64) (*instances, *made) {
	m := &made{}
	s := &instances{most: most, isHeld: func(string) bool { return true }, byHash: map[string]*instance{}, idle: list.New()}
	s.make = func(def *Definition) (*instance, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		name := def.Spec.Names.Kind
		m.open = append(m.open, name)
		return &instance{definition: canonical(def), free: func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			i := slices.Index(m.open, name)
			m.open = slices.Delete(m.open, i, i+1)
		}}, nil
	}
	return s, m
}

// TestInstancesAreBounded: those that nobody uses go, the one first that nobody has asked for for longest; those in use stay, and
// what has gone is made again.
func TestInstancesAreBounded(t *testing.T) {
	defs, size := distinct(t, 6)
	s, m := newTestInstances(3 * size)
	ask := func(i int) (done func()) {
		t.Helper()
		_, done, err := s.of(defs[i])
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	for _, step := range []struct {
		reason string
		do     func()
		want   string
	}{
		{"there is room for three", func() { ask(0)(); ask(1)(); ask(2)() }, "Kind00 Kind01 Kind02"},
		{"asking keeps it", func() { ask(0)(); ask(3)() }, "Kind00 Kind02 Kind03"},
		{"what has gone is made again", func() { ask(1)() }, "Kind00 Kind01 Kind03"},
	} {
		step.do()
		if diff := cmp.Diff(step.want, m.now()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.reason, diff)
		}
	}
	watches := []func(){ask(2), ask(3), ask(4), ask(5)}
	if got, want := m.now(), "Kind02 Kind03 Kind04 Kind05"; got != want {
		t.Errorf("in use: %s, want %s", got, want)
	}
	watches[0]()
	ask(0)()
	if got, want := m.now(), "Kind00 Kind03 Kind04 Kind05"; got != want {
		t.Errorf("one was given back, and another one asked for: %s, want %s", got, want)
	}
	for _, done := range watches[1:] {
		done()
	}
	ask(0)()
	if s.bytes != 3*size || len(s.byHash) != 3 {
		t.Errorf("%d instances with %d bytes, want 3 with %d", len(s.byHash), s.bytes, 3*size)
	}
}

// TestInstancesInUseDoNotEnd: many requests for more than there is room for; none sees its instance end.
func TestInstancesInUseDoNotEnd(t *testing.T) {
	defs, size := distinct(t, 8)
	s, m := newTestInstances(2 * size)
	var requests sync.WaitGroup
	for worker := range 8 {
		requests.Go(func() {
			for n := range 500 {
				i, done, err := s.of(defs[(n*(worker+1))%len(defs)])
				if err != nil {
					t.Error(err)
					return
				}
				if i.over.Load() {
					t.Error("an instance that is in use has ended")
				}
				done()
			}
		})
	}
	requests.Wait()
	_, done, err := s.of(defs[0])
	if err != nil {
		t.Fatal(err)
	}
	done()
	if len(s.byHash) != 2 || len(strings.Fields(m.now())) != 2 {
		t.Errorf("%d instances, and %q are open, want 2", len(s.byHash), m.now())
	}
}
