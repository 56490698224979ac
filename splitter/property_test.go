package splitter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
)

const seeds = 3000

// TestNeverBelowWhatWasAsked runs moves, re-splits, changes of scale and lost clusters in random interleavings. Once the
// splitter has seen all replicas that were asked for available, the pods that really serve never become fewer than
// that (or than what was asked for since, if that is less); and in the end everything is where it should be.
func TestNeverBelowWhatWasAsked(t *testing.T) {
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 1))
		f := newFleet("a", "b", "c")
		neverBelow(t, f, r, seed, func() string {
			m := f.clusters[f.names()[r.IntN(3)]]
			m.lost = !m.lost
			return fmt.Sprint("lost ", m.name, m.lost)
		})
	}
}

// TestReplicaSetsNeverBelowWhatWasAsked does so with ReplicaSets, and with new templates, by which no pod goes that serves.
func TestReplicaSetsNeverBelowWhatWasAsked(t *testing.T) {
	t.Parallel()
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 8))
		f := newFleet("a", "b", "c")
		f.sets = true
		for _, m := range f.clusters {
			m.sets = true
		}
		neverBelow(t, f, r, seed, func() string {
			f.template++
			return fmt.Sprint("template ", f.template)
		})
	}
}

// neverBelow moves and scales what a fleet runs, and does something else now and then, which says what.
func neverBelow(t *testing.T, f *fleet, r *rand.Rand, seed uint64, other func() string) {
	t.Helper()
	f.replicas = int32(1 + r.IntN(7))
	f.weights = randomPlacement(r, f)
	converged(t, f, seed)
	floor := f.replicas
	var log []string
	for range 150 {
		switch r.IntN(30) {
		case 0:
			f.weights = randomPlacement(r, f)
			log = append(log, fmt.Sprint("place ", f.weights))
		case 1:
			f.replicas = int32(1 + r.IntN(7))
			log = append(log, fmt.Sprint("scale ", f.replicas))
			floor = min(floor, f.replicas)
		case 2:
			log = append(log, other())
		default:
			log = append(log, f.act(r))
		}
		if f.reported() >= f.replicas {
			floor = f.replicas
		}
		if got := f.truth(); got < floor {
			t.Fatalf("seed %d: %d pods serve where %d were asked for, after %s\n%s", seed, got, floor, strings.Join(log, ", "), f)
		}
	}
	for _, m := range f.clusters {
		m.lost = false
	}
	converged(t, f, seed)
}

// TestScaleDownEndsWhereNothingServes: where some pods never become available, changes of scale end with what is asked for: a cluster
// has more than its share only of pods that serve, and only while others lack them. On the way, of what was reported to serve no more
// goes than the user wants less of.
func TestScaleDownEndsWhereNothingServes(t *testing.T) {
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 5))
		f := newFleet("a", "b", "c")
		f.weights = randomPlacement(r, f)
		for _, m := range f.clusters {
			m.room = r.IntN(1 + r.IntN(6)) // often none
		}
		f.replicas = int32(1 + r.IntN(14))
		moves := seed%2 > 0
		var floor int32
		var log []string
		for range 150 {
			switch n := r.IntN(30); {
			case n == 0:
				f.replicas = int32(r.IntN(15))
				log = append(log, fmt.Sprint("scale ", f.replicas))
			case n == 1 && moves:
				f.weights = randomPlacement(r, f)
				log = append(log, fmt.Sprint("place ", f.weights))
			default:
				log = append(log, f.act(r))
			}
			floor = min(max(floor, f.reported()), f.replicas)
			if got := f.truth(); got < floor {
				t.Fatalf("seed %d: %d pods serve where %d did that are still asked for, after %s\n%s", seed, got, floor, strings.Join(log, ", "), f)
			}
		}
		if !f.converge() {
			t.Fatalf("seed %d: does not come to rest:\n%s", seed, f)
		}
		for n := range f.weights {
			m, share := f.clusters[n], int32(0)
			if p, ok := f.plan.share(logicalcluster.Name(n)); ok {
				share = p
			}
			serve := m.leaf.status.available
			if got := m.leaf.replicas; got < share || got > share && (got > serve || f.truth() > f.replicas) {
				t.Fatalf("seed %d: %s has %d replicas, of which %d serve, where its share is %d of %d, after %s\n%s", seed, n, got, serve, share, f.replicas, strings.Join(log, ", "), f)
			}
		}
	}
}

// TestRolloutStaysWithinBounds does the same with new templates and strategies: pods that serve may be fewer by maxUnavailable, or by
// that of an earlier strategy until nothing rolls any more.
func TestRolloutStaysWithinBounds(t *testing.T) {
	t.Parallel()
	for _, seed := range slices.Concat(upTo(seeds), []uint64{
		7845, 10056, 10944, // a cluster that rolls is allowed less, and another gets the rest
		13732, // a share goes down together with a new template
	}) {
		rolloutStaysWithinBounds(t, seed, false)
	}
}

// TestRolloutStaysWithinBoundsWhenScaled does so while the scale changes, too. Then Kubernetes takes away at once what is beyond a maxSurge
// that is smaller by now, whether it serves or not: what a cluster does that is alone, by the user's own words, does not count.
func TestRolloutStaysWithinBoundsWhenScaled(t *testing.T) {
	t.Parallel()
	for seed := range uint64(seeds) {
		rolloutStaysWithinBounds(t, seed, true)
	}
}

func rolloutStaysWithinBounds(t *testing.T, seed uint64, scales bool) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 2))
	f := newFleet("a", "b", "c")
	f.replicas = int32(3 + r.IntN(6))
	f.unavailable, f.surge = randomStrategy(r)
	f.weights = randomPlacement(r, f)
	converged(t, f, seed)
	// A third of the runs only rolls, and bounds the surplus too; a third moves as well; a third loses clusters
	// as well, which roll on while nobody waits for them, so only the end counts.
	moves, loses := seed%3 > 0, seed%3 > 1
	floor, ceiling := f.replicas, f.replicas
	unavailable, surge := f.unavailable, f.surge
	var log []string
	for range 200 {
		switch n := r.IntN(40); {
		case n == 0:
			if r.IntN(2) == 0 {
				f.unavailable, f.surge = randomStrategy(r)
				log = append(log, fmt.Sprintf("strategy -%d +%d", f.unavailable, f.surge))
			}
			f.template++
			log = append(log, fmt.Sprint("template ", f.template))
		case n == 1 && moves:
			f.weights = randomPlacement(r, f)
			log = append(log, fmt.Sprint("place ", f.weights))
		case n == 2 && loses:
			m := f.clusters[f.names()[r.IntN(3)]]
			m.lost = !m.lost
			log = append(log, fmt.Sprint("lost ", m.name, m.lost))
		case n == 3 && scales:
			f.replicas = int32(3 + r.IntN(6))
			log = append(log, fmt.Sprint("scale ", f.replicas))
		default:
			log = append(log, f.act(r))
		}
		if loses {
			continue
		}
		floor, ceiling = min(floor, f.replicas), max(ceiling, f.replicas)
		if f.reported() >= f.replicas {
			floor = f.replicas
		}
		unavailable, surge = max(unavailable, f.unavailable), max(surge, f.surge)
		if scales && len(f.weights) == 1 {
			floor = min(floor, f.truth()+unavailable)
		}
		if got := f.truth(); got < floor-unavailable {
			t.Fatalf("seed %d: %d pods serve where %d-%d were asked for, after %s\n%s", seed, got, floor, unavailable, strings.Join(log, ", "), f)
		}
		if got := f.pods(); !moves && got > ceiling+surge {
			t.Fatalf("seed %d: %d pods exist where %d+%d are allowed, after %s\n%s", seed, got, ceiling, surge, strings.Join(log, ", "), f)
		}
		if f.rolledOut() {
			unavailable, surge = f.unavailable, f.surge
			if f.pods() == f.replicas {
				ceiling = f.replicas
			}
		}
	}
	for _, m := range f.clusters {
		m.lost = false
	}
	converged(t, f, seed)
}

func upTo(n uint64) (all []uint64) {
	for seed := range n {
		all = append(all, seed)
	}
	return all
}

// TestBrokenUpdateIsReplaced: an update whose pods never are ready waits for nobody before the next one replaces it, whatever has become of
// the strategy meanwhile.
func TestBrokenUpdateIsReplaced(t *testing.T) {
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 6))
		f := newFleet("a", "b", "c")
		f.replicas = int32(3 + r.IntN(6))
		f.unavailable, f.surge = randomStrategy(r)
		f.weights = randomPlacement(r, f)
		converged(t, f, seed)
		for _, m := range f.clusters {
			m.broken = 1
		}
		for f.template = 1; f.template < 3; f.template++ {
			for range 60 {
				f.act(r)
			}
			f.unavailable, f.surge = randomStrategy(r)
			if seed%2 > 0 {
				f.weights = randomPlacement(r, f)
			}
		}
		converged(t, f, seed)
	}
}

// TestRolloutEndsWhateverStoppedServing: a template whose pods serve replaces one that has stopped serving, in all or in some clusters, also
// after its rollout had ended, and whatever has become of strategy, placement and scale since. Meanwhile pods that still serve go only where
// they are more than what is asked for, less maxUnavailable.
func TestRolloutEndsWhateverStoppedServing(t *testing.T) {
	t.Parallel()
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 7))
		f := newFleet("a", "b", "c")
		f.replicas = int32(2 + r.IntN(7))
		f.unavailable, f.surge = randomStrategy(r)
		f.weights = randomPlacement(r, f)
		for range 3 {
			converged(t, f, seed)
			unavailable := f.unavailable
			for _, m := range f.clusters {
				if r.IntN(3) > 0 {
					m.crash()
				}
				m.report()
			}
			floor := f.truth()
			var log []string
			for act := range 150 {
				switch {
				case act == 20 && seed%2 > 0:
					f.unavailable, f.surge = randomStrategy(r)
					unavailable = max(unavailable, f.unavailable)
				case act == 30 && seed%4 > 1:
					f.weights = randomPlacement(r, f)
					log = append(log, fmt.Sprint("place ", f.weights))
				case act == 40 && seed%8 > 3:
					f.replicas = int32(2 + r.IntN(7))
					log = append(log, fmt.Sprint("scale ", f.replicas))
				case act == 50:
					f.template++
					log = append(log, fmt.Sprintf("template %d -%d +%d", f.template, f.unavailable, f.surge))
				}
				log = append(log, f.act(r))
				floor = min(floor, f.replicas)
				if got, least := f.truth(), min(floor, f.replicas-unavailable); got < least {
					t.Fatalf("seed %d: %d pods serve where %d did, and %d-%d were asked for, after %s\n%s", seed, got, floor, f.replicas, unavailable, strings.Join(log, ", "), f)
				}
			}
		}
		converged(t, f, seed)
	}
}

// TestRecreateNeverOverlaps: with Recreate, a move never has pods in a cluster that is being left and in one that takes over.
func TestRecreateNeverOverlaps(t *testing.T) {
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 3))
		f := newFleet("a", "b")
		f.recreate, f.replicas = true, int32(1+r.IntN(3))
		f.weights = map[string]int64{"a": 1}
		converged(t, f, seed)
		var log []string
		for range 100 {
			switch r.IntN(20) {
			case 0:
				f.weights = map[string]int64{[]string{"a", "b"}[r.IntN(2)]: 1}
				log = append(log, fmt.Sprint("place ", f.weights))
			default:
				log = append(log, f.act(r))
			}
			if len(f.clusters["a"].pods) > 0 && len(f.clusters["b"].pods) > 0 {
				t.Fatalf("seed %d: pods in both clusters, after %s\n%s", seed, strings.Join(log, ", "), f)
			}
		}
		converged(t, f, seed)
	}
}

func randomStrategy(r *rand.Rand) (unavailable, surge int32) {
	unavailable, surge = int32(r.IntN(3)), int32(r.IntN(3))
	if unavailable+surge == 0 {
		surge = 1
	}
	return unavailable, surge
}

// TestReadyOnlyWhereAllIsThere: in any interleaving of what is seen in time, a Placement is READY only if every cluster really runs its
// share of the present decision, of the present template, and is heard of, and nothing runs elsewhere. At rest it is.
func TestReadyOnlyWhereAllIsThere(t *testing.T) {
	t.Parallel()
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 4))
		f := newFleet("a", "b", "c")
		f.replicas, f.recreate = int32(1+r.IntN(9)), seed%4 == 0
		f.weights = randomPlacement(r, f)
		var log []string
		for range 200 {
			switch r.IntN(40) {
			case 0:
				f.weights = randomPlacement(r, f)
				log = append(log, fmt.Sprint("place ", f.weights))
			case 1:
				f.replicas = int32(1 + r.IntN(9))
				log = append(log, fmt.Sprint("scale ", f.replicas))
			case 2:
				f.template++
				log = append(log, fmt.Sprint("template ", f.template))
			case 3:
				m := f.clusters[f.names()[r.IntN(3)]]
				m.lost = !m.lost
				log = append(log, fmt.Sprint("lost ", m.name, m.lost))
			default:
				log = append(log, f.act(r))
			}
			if !f.ready() {
				continue
			}
			for _, n := range f.names() {
				want, assigned := f.plan.share(logicalcluster.Name(n))
				m := f.clusters[n]
				template := f.template
				right := slices.IndexFunc(m.pods, func(p pod) bool { return !p.ready || p.template != template }) < 0
				if int32(len(m.pods)) != want || !right || assigned && m.lost {
					t.Fatalf("seed %d: READY, with %+v in %s, whose share is %d, after %s\n%s", seed, m.pods, n, want, strings.Join(log, ", "), f)
				}
			}
		}
		for _, m := range f.clusters {
			m.lost = false
		}
		if converged(t, f, seed); !f.ready() {
			t.Fatalf("seed %d: at rest, and not READY:\n%s", seed, f)
		}
	}
}

func randomPlacement(r *rand.Rand, f *fleet) map[string]int64 {
	for {
		weights := map[string]int64{}
		for _, n := range f.names() {
			if r.IntN(2) == 0 {
				weights[n] = int64(1 + r.IntN(3))
			}
		}
		if len(weights) > 0 {
			return weights
		}
	}
}

// converged lets things settle and checks that everything is where it should be.
func converged(t *testing.T, f *fleet, seed uint64) {
	t.Helper()
	if !f.converge() {
		t.Fatalf("seed %d: does not come to rest:\n%s", seed, f)
	}
	var sum int32
	for n, m := range f.clusters {
		_, assigned := f.weights[n]
		switch {
		case !assigned && (m.leaf != nil || len(m.pods) > 0):
			t.Fatalf("seed %d: something is left in %s:\n%s", seed, n, f)
		case assigned && (m.leaf == nil || m.leaf.template != f.template):
			t.Fatalf("seed %d: %s has not got the present template %d:\n%s", seed, n, f.template, f)
		case assigned:
			sum += m.leaf.replicas
		}
	}
	if sum != f.replicas || f.truth() != f.replicas {
		t.Fatalf("seed %d: %d replicas asked for, %d in leaves, %d serve:\n%s", seed, f.replicas, sum, f.truth(), f)
	}
}
