package splitter

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func settled(replicas, pods, available int32) *LeafState {
	return &LeafState{Replicas: replicas, Pods: pods, Available: available, Settled: true}
}

func TestPlan(t *testing.T) {
	unsettled := func(replicas, pods, available int32) *LeafState {
		return &LeafState{Replicas: replicas, Pods: pods, Available: available}
	}
	mixed := func(replicas, pods, available int32) *LeafState {
		l := settled(replicas, pods, available)
		l.Mixed = true
		return l
	}
	tombstone := &LeafState{Replicas: 6, Pods: 6, Available: 6, Settled: true, Deleting: true}
	tests := map[string]struct {
		reason   string
		clusters []Cluster
		recreate bool
		want     map[string]Step
	}{
		"First":       {"a new leaf asks for its target", []Cluster{{Name: "a", Assigned: true, Target: 3}}, false, map[string]Step{"a": {Write: true, Replicas: 3}}},
		"NoReplicas":  {"an assigned cluster without share has a leaf too", []Cluster{{Name: "a", Assigned: true}}, false, map[string]Step{"a": {Write: true}}},
		"UserShrinks": {"alone, at once, whatever is reported", []Cluster{{Name: "a", Assigned: true, Target: 2, Leaf: unsettled(6, 0, 0)}}, false, map[string]Step{"a": {Write: true, Replicas: 2}}},
		"PlacedNowhere": {"nothing is asked for, so nothing is missed", []Cluster{{Name: "a", Leaf: settled(6, 6, 6)}, {Name: "b", Leaf: unsettled(1, 1, 1)}}, false,
			map[string]Step{"a": {Delete: true}, "b": {Delete: true}}},
		"NotAvailable": {"what does not serve now may in a moment", []Cluster{{Name: "a", Leaf: settled(6, 6, 0)}, {Name: "b", Assigned: true, Target: 6}}, false,
			map[string]Step{"a": {Write: true, Replicas: 6, Draining: true}, "b": {Write: true, Replicas: 6}}},
		"NeverAvailable": {"and goes when the others make up for it", []Cluster{{Name: "a", Leaf: settled(6, 6, 0)}, {Name: "b", Assigned: true, Target: 6, Leaf: settled(6, 6, 4)}}, false,
			map[string]Step{"a": {Write: true, Replicas: 2, Draining: true}, "b": {Write: true, Replicas: 6}}},
		"Starting": {"what may yet come is", []Cluster{{Name: "a", Leaf: mixed(6, 6, 0)}, {Name: "b", Assigned: true, Target: 6}}, false,
			map[string]Step{"a": {Write: true, Replicas: 6, Draining: true}, "b": {Write: true, Replicas: 6}}},
		"PartlyAvailable": {"only what serves has to be made up for", []Cluster{{Name: "a", Leaf: settled(6, 6, 4)}, {Name: "b", Assigned: true, Target: 6, Leaf: settled(6, 6, 3)}}, false,
			map[string]Step{"a": {Write: true, Replicas: 3, Draining: true}, "b": {Write: true, Replicas: 6}}},
		"ScaledDown": {"what serves nobody is no loss, and is waited for in vain",
			[]Cluster{{Name: "a", Assigned: true, Target: 1, Leaf: settled(6, 6, 0)}, {Name: "b", Assigned: true, Target: 1, Leaf: settled(6, 6, 0)}}, false,
			map[string]Step{"a": {Write: true, Replicas: 1}, "b": {Write: true, Replicas: 1}}},
		"ScaledDownByOne": {"neither if the others have no more than their share",
			[]Cluster{{Name: "a", Assigned: true, Target: 6, Leaf: settled(6, 6, 0)}, {Name: "b", Assigned: true, Target: 5, Leaf: settled(6, 6, 0)}}, false,
			map[string]Step{"a": {Write: true, Replicas: 6}, "b": {Write: true, Replicas: 5}}},
		"ScaledDownHalfServes": {"the others' shares are there",
			[]Cluster{{Name: "a", Assigned: true, Target: 1, Leaf: settled(6, 6, 3)}, {Name: "b", Assigned: true, Target: 1, Leaf: settled(6, 6, 3)}}, false,
			map[string]Step{"a": {Write: true, Replicas: 1}, "b": {Write: true, Replicas: 1}}},
		"ScaledDownOneServes": {"2 are asked for and serve, so 2 stay; of the other only its share is waited for",
			[]Cluster{{Name: "a", Assigned: true, Target: 1, Leaf: settled(6, 6, 6)}, {Name: "b", Assigned: true, Target: 1, Leaf: settled(6, 6, 0)}}, false,
			map[string]Step{"a": {Write: true, Replicas: 2}, "b": {Write: true, Replicas: 1}}},
		"ScaledDownUnsettled": {"what is said of a leaf as it was is no word on which of its pods serve now",
			[]Cluster{{Name: "a", Assigned: true, Target: 1, Leaf: unsettled(6, 6, 0)}, {Name: "b", Assigned: true, Target: 1, Leaf: settled(6, 6, 0)}}, false,
			map[string]Step{"a": {Write: true, Replicas: 6}, "b": {Write: true, Replicas: 1}}},
		"ScaledDownLost": {"nor is what was said before the cluster fell silent",
			[]Cluster{{Name: "a", Assigned: true, Target: 1, Lost: true, Leaf: settled(6, 6, 0)}, {Name: "b", Assigned: true, Target: 1, Leaf: settled(6, 6, 0)}}, false,
			map[string]Step{"a": {Write: true, Replicas: 6}, "b": {Write: true, Replicas: 1}}},
		"ScaledDownMixed": {"of old and new pods those may go that serve",
			[]Cluster{{Name: "a", Assigned: true, Target: 1, Leaf: mixed(6, 7, 1)}, {Name: "b", Assigned: true, Target: 1, Leaf: mixed(6, 7, 0)}}, false,
			map[string]Step{"a": {Write: true, Replicas: 6}, "b": {Write: true, Replicas: 1}}},
		"ScaledDownLeaving": {"a cluster that is left keeps no more than is asked for",
			[]Cluster{{Name: "a", Leaf: settled(6, 6, 0)}, {Name: "b", Assigned: true, Target: 2, Leaf: settled(6, 6, 0)}}, false,
			map[string]Step{"a": {Write: true, Replicas: 2, Draining: true}, "b": {Write: true, Replicas: 2}}},
		"LostReplacement": {"a cluster that is not heard of makes up for nothing",
			[]Cluster{{Name: "a", Leaf: settled(6, 6, 6)}, {Name: "b", Assigned: true, Target: 6, Lost: true, Leaf: settled(6, 6, 6)}}, false,
			map[string]Step{"a": {Write: true, Replicas: 6, Draining: true}, "b": {Write: true, Replicas: 6}}},
		"LostLeft": {"and is left once the others do",
			[]Cluster{{Name: "a", Lost: true, Leaf: settled(6, 6, 6)}, {Name: "b", Assigned: true, Target: 6, Leaf: settled(6, 6, 6)}}, false,
			map[string]Step{"a": {Delete: true}, "b": {Write: true, Replicas: 6}}},
		"LostAlone": {"being lost changes no number", []Cluster{{Name: "a", Assigned: true, Target: 3, Leaf: settled(3, 3, 3)}, {Name: "b", Assigned: true, Target: 3, Lost: true, Leaf: settled(3, 3, 3)}}, false,
			map[string]Step{"a": {Write: true, Replicas: 3}, "b": {Write: true, Replicas: 3}}},
		"Tombstone": {"the way back leads through the end of the tombstone", []Cluster{{Name: "a", Assigned: true, Target: 6, Leaf: tombstone}, {Name: "b", Leaf: settled(6, 6, 6)}}, false,
			map[string]Step{"a": {}, "b": {Write: true, Replicas: 6, Draining: true}}},
		"SurplusToCome": {"what an update may have on top may stay instead of what serves",
			[]Cluster{{Name: "a", Assigned: true, Target: 1, Leaf: &LeafState{Replicas: 4, Pods: 4, Available: 4, Settled: true, Mixed: true, Surge: 2}}, {Name: "b", Assigned: true, Target: 1}}, false,
			map[string]Step{"a": {Write: true, Replicas: 4}, "b": {Write: true, Replicas: 1}}},
		"SurplusOfARollout": {"pods in surplus may go before those that do not serve, so 6 of 9 are 3 for certain",
			[]Cluster{{Name: "a", Leaf: settled(6, 6, 6)}, {Name: "b", Assigned: true, Target: 6, Leaf: mixed(6, 9, 6)}}, false,
			map[string]Step{"a": {Write: true, Replicas: 3, Draining: true}, "b": {Write: true, Replicas: 6}}},
		"RollingShrinks": {"its controller may take those that serve, so all it does not need has to be there",
			[]Cluster{{Name: "a", Leaf: mixed(6, 7, 5)}, {Name: "b", Assigned: true, Target: 6, Leaf: settled(6, 6, 4)}}, false,
			map[string]Step{"a": {Write: true, Replicas: 4, Draining: true}, "b": {Write: true, Replicas: 6}}},
		"RecreateStops":     {"break before make", []Cluster{{Name: "a", Leaf: settled(3, 3, 3)}, {Name: "b", Assigned: true, Target: 3}}, true, map[string]Step{"a": {Write: true, Draining: true}, "b": {}}},
		"RecreateStopped":   {"stopped is not gone", []Cluster{{Name: "a", Leaf: settled(0, 0, 0)}, {Name: "b", Assigned: true, Target: 3}}, true, map[string]Step{"a": {Delete: true}, "b": {}}},
		"RecreateStillPods": {"a pod that ends is still there", []Cluster{{Name: "a", Leaf: settled(0, 1, 0)}, {Name: "b", Assigned: true, Target: 3}}, true, map[string]Step{"a": {Write: true, Draining: true}, "b": {}}},
		"RecreateGone":      {"now the other", []Cluster{{Name: "b", Assigned: true, Target: 3}}, true, map[string]Step{"b": {Write: true, Replicas: 3}}},
		"RecreateScale":     {"nothing to wait for in one cluster", []Cluster{{Name: "a", Assigned: true, Target: 5, Leaf: settled(3, 3, 3)}}, true, map[string]Step{"a": {Write: true, Replicas: 5}}},
		"RecreateResplit": {"a share that grows waits for the one that shrinks", []Cluster{{Name: "a", Assigned: true, Target: 1, Leaf: settled(3, 3, 3)}, {Name: "b", Assigned: true, Target: 3, Leaf: settled(1, 1, 1)}}, true,
			map[string]Step{"a": {Write: true, Replicas: 1}, "b": {Write: true, Replicas: 1}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Plan(tc.clusters, tc.recreate)); diff != "" {
				t.Errorf("%s: Plan: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestDivideRollout(t *testing.T) {
	is := func(name string, replicas int32, change ...func(*RollingCluster)) RollingCluster {
		c := RollingCluster{Name: name, Replicas: replicas, Exists: true, SameTemplate: true, MaxUnavailable: 1}
		for _, f := range change {
			f(&c)
		}
		return c
	}
	old := func(c *RollingCluster) { c.SameTemplate = false }
	rolls := func(c *RollingCluster) { c.Rolling = true }
	lacks := func(pods int32) func(*RollingCluster) { return func(c *RollingCluster) { c.Lacks = pods } }
	changed := func(c *RollingCluster) { c.Rolling, c.Unsure, c.Awaited = true, true, true }
	refused := func(c *RollingCluster) { c.Rolling, c.Unsure = true, true }
	unheard := func(c *RollingCluster) { c.Lost = true }
	left := func(c *RollingCluster) { c.Leaving = true }
	fresh := func(c *RollingCluster) { *c = RollingCluster{Name: c.Name, Replicas: c.Replicas, Lacks: c.Replicas} }
	surges := func(c *RollingCluster) { c.MaxUnavailable, c.MaxSurge = 0, 1 }
	tests := map[string]struct {
		reason             string
		unavailable, surge int32
		clusters           []RollingCluster
		want               map[string]Roll
	}{
		"One":         {"the root's words for one", 1, 1, []RollingCluster{is("a", 6, old)}, map[string]Roll{"a": {Verbatim: true}}},
		"Together":    {"a share for each", 2, 2, []RollingCluster{is("a", 4, old), is("b", 2, old)}, map[string]Roll{"a": {MaxUnavailable: 1, MaxSurge: 1}, "b": {MaxUnavailable: 1, MaxSurge: 1}}},
		"SurgeForOne": {"who may miss none may have one more", 1, 2, []RollingCluster{is("a", 2), is("b", 2), is("c", 2)}, map[string]Roll{"a": {MaxUnavailable: 1}, "b": {MaxSurge: 1}, "c": {MaxSurge: 1}}},
		"InTurn":      {"too little for all: the first by name has it", 1, 0, []RollingCluster{is("b", 3, old), is("a", 3, old)}, map[string]Roll{"a": {MaxUnavailable: 1}, "b": {Hold: true}}},
		"OneAtATime":  {"the next waits until the first has finished", 1, 0, []RollingCluster{is("a", 3, rolls), is("b", 3, old)}, map[string]Roll{"a": {KeepStrategy: true}, "b": {Hold: true}}},
		"OneAtATimeEvenIfStuck": {"although the next is stuck with something older", 1, 0, []RollingCluster{is("a", 3, rolls), is("b", 3, old, rolls)},
			map[string]Roll{"a": {KeepStrategy: true}, "b": {Hold: true}}},
		"Next":         {"now the next", 1, 0, []RollingCluster{is("a", 3), is("b", 3, old)}, map[string]Roll{"a": {KeepStrategy: true}, "b": {MaxUnavailable: 1}}},
		"StuckFirst":   {"who is stuck in something older goes first, with what it uses", 1, 0, []RollingCluster{is("a", 3, old), is("b", 3, old, rolls)}, map[string]Roll{"a": {Hold: true}, "b": {MaxUnavailable: 1}}},
		"Lowered":      {"the strategy allows less now, but who rolls may have 2 missing still", 1, 0, []RollingCluster{is("a", 3, old, rolls, func(c *RollingCluster) { c.MaxUnavailable = 2 }), is("b", 3, old)}, map[string]Roll{"a": {MaxUnavailable: 2}, "b": {Hold: true}}},
		"Exchanged":    {"surplus is allowed now, but who rolls may have one missing still", 0, 1, []RollingCluster{is("a", 3, old, rolls), is("b", 3, old, rolls)}, map[string]Roll{"a": {MaxUnavailable: 1, MaxSurge: 1}, "b": {Hold: true}}},
		"Grown":        {"who is through with its template has nothing of it in use", 1, 0, []RollingCluster{is("a", 3, old, lacks(1), func(c *RollingCluster) { c.MaxUnavailable = 2 }), is("b", 3, old)}, map[string]Roll{"a": {MaxUnavailable: 1}, "b": {Hold: true}}},
		"CertainFirst": {"who may be through goes after who is not", 1, 0, []RollingCluster{is("a", 3, old, changed), is("b", 3, old, rolls)}, map[string]Roll{"a": {Hold: true}, "b": {MaxUnavailable: 1}}},
		"NotYetKnown":  {"either may be through, and a report will tell", 1, 0, []RollingCluster{is("a", 3, old, changed), is("b", 3, old, changed)}, map[string]Roll{"a": {Hold: true}, "b": {Hold: true}}},
		"NothingInUse": {"nobody else can have any of it in use", 1, 0, []RollingCluster{is("a", 3, old, changed), is("b", 3, old)}, map[string]Roll{"a": {MaxUnavailable: 1}, "b": {Hold: true}}},
		"Refused":      {"what is refused is reported on no more", 1, 0, []RollingCluster{is("a", 3, old, refused), is("b", 3, old, refused)}, map[string]Roll{"a": {MaxUnavailable: 1}, "b": {Hold: true}}},
		"RefusedLater": {"but a report on another will tell", 1, 0, []RollingCluster{is("a", 3, old, refused), is("b", 3, old, changed)}, map[string]Roll{"a": {Hold: true}, "b": {Hold: true}}},
		"LostIsUnknown": {"who is not heard of is not awaited", 1, 0, []RollingCluster{is("a", 3, old, changed, unheard), is("b", 3, old, refused), is("c", 3, old, refused)},
			map[string]Roll{"a": {Hold: true}, "b": {MaxUnavailable: 1}, "c": {Hold: true}}},
		"LostIsSkipped":  {"who is not heard of is not waited for", 1, 0, []RollingCluster{is("a", 3, old, rolls, unheard), is("b", 3, old)}, map[string]Roll{"a": {Hold: true}, "b": {MaxUnavailable: 1}}},
		"Leaving":        {"a cluster that is being left may still roll", 1, 0, []RollingCluster{is("a", 0, old, rolls, left), is("b", 6, old)}, map[string]Roll{"a": {Hold: true}, "b": {Hold: true}}},
		"LeavingHas":     {"but its surplus is none of the update's", 0, 1, []RollingCluster{is("a", 0, old, rolls, surges, left), is("b", 6, old)}, map[string]Roll{"a": {Hold: true}, "b": {MaxSurge: 1}}},
		"LeavingLacks":   {"nor less missing for it", 4, 0, []RollingCluster{is("a", 0, old, rolls, lacks(3), left), is("b", 6, old)}, map[string]Roll{"a": {Hold: true}, "b": {MaxUnavailable: 1}}},
		"LeavingStays":   {"and nothing changes there", 1, 1, []RollingCluster{is("a", 0, left), is("b", 6)}, map[string]Roll{"a": {KeepStrategy: true}, "b": {Verbatim: true}}},
		"New":            {"a new leaf has nothing to roll, but all its pods to start", 3, 0, []RollingCluster{is("a", 3, old), is("b", 3, fresh)}, map[string]Roll{"a": {Hold: true}, "b": {MaxSurge: 1}}},
		"NoShare":        {"a cluster without replicas takes no part", 1, 0, []RollingCluster{is("a", 6, old), is("b", 0)}, map[string]Roll{"a": {Verbatim: true}, "b": {Verbatim: true}}},
		"LargerBefore":   {"what a busy cluster was allowed before is still in use", 2, 0, []RollingCluster{is("a", 3, rolls, func(c *RollingCluster) { c.MaxUnavailable = 2 }), is("b", 3, old)}, map[string]Roll{"a": {KeepStrategy: true}, "b": {Hold: true}}},
		"OnlyGrows":      {"a cluster that grows has no pod to lose, but what it lacks is missing", 1, 0, []RollingCluster{is("a", 3, lacks(1)), is("b", 3, old)}, map[string]Roll{"a": {KeepStrategy: true}, "b": {Hold: true}}},
		"GoesOn":         {"what may still be missing may be elsewhere", 2, 0, []RollingCluster{is("a", 3, lacks(1)), is("b", 3, old), is("c", 3, old)}, map[string]Roll{"a": {KeepStrategy: true}, "b": {MaxUnavailable: 1}, "c": {Hold: true}}},
		"Stopped":        {"what has stopped serving has no surplus in use", 0, 1, []RollingCluster{is("a", 1, old, surges, lacks(1)), is("b", 1, old, surges, lacks(1))}, map[string]Roll{"a": {MaxSurge: 1}, "b": {Hold: true}}},
		"StoppedAll":     {"and is replaced although nothing more may be missing", 1, 0, []RollingCluster{is("a", 3, old, lacks(3)), is("b", 3, old, lacks(3))}, map[string]Roll{"a": {MaxUnavailable: 1}, "b": {Hold: true}}},
		"StoppedFirst":   {"before what serves", 1, 0, []RollingCluster{is("a", 3, old), is("b", 3, old, lacks(3))}, map[string]Roll{"a": {Hold: true}, "b": {MaxUnavailable: 1}}},
		"Short":          {"what serves is no part of what may be missing if that is missing elsewhere", 2, 2, []RollingCluster{is("a", 1, old), is("b", 2, old, lacks(2))}, map[string]Roll{"a": {MaxSurge: 1}, "b": {MaxUnavailable: 1, MaxSurge: 1}}},
		"ShortInTurn":    {"nor has who lacks it to wait", 2, 0, []RollingCluster{is("a", 1, old), is("b", 2, old, lacks(2))}, map[string]Roll{"a": {Hold: true}, "b": {MaxUnavailable: 2}}},
		"ShortByMore":    {"what is left of it is divided", 6, 0, []RollingCluster{is("a", 3, old), is("b", 3, old, lacks(3)), is("c", 3, old, lacks(1))}, map[string]Roll{"a": {MaxUnavailable: 2}, "b": {MaxUnavailable: 2}, "c": {MaxUnavailable: 1}}},
		"ShortOfTheRest": {"which may be less than another lacks", 6, 0, []RollingCluster{is("a", 3, old), is("b", 3, old, lacks(3)), is("c", 3, old, lacks(2))}, map[string]Roll{"a": {MaxUnavailable: 1}, "b": {MaxUnavailable: 2}, "c": {MaxUnavailable: 1}}},
		"ShortAtRest":    {"a strategy does not change with pods that come and go", 2, 0, []RollingCluster{is("a", 3), is("b", 3, lacks(2))}, map[string]Roll{"a": {MaxUnavailable: 1}, "b": {MaxUnavailable: 1}}},
		"ShortAll":       {"nobody has a pod to lose", 2, 0, []RollingCluster{is("a", 3, old, lacks(2)), is("b", 3, old, lacks(2))}, map[string]Roll{"a": {MaxUnavailable: 1}, "b": {MaxUnavailable: 1}}},
		"ShortUnheard":   {"who is not heard of is not waited for here either", 2, 0, []RollingCluster{is("a", 3, old), is("b", 3, old, lacks(2), unheard)}, map[string]Roll{"a": {MaxUnavailable: 1}, "b": {MaxUnavailable: 1}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, DivideRollout(tc.unavailable, tc.surge, tc.clusters)); diff != "" {
				t.Errorf("%s: DivideRollout: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestMoveTurnedBackWhileAnUpdateIsStuck: a cluster whose update never gets through, with its surge on top, still serves all
// that is asked for. What came up elsewhere and does not serve goes at once when the move is turned back.
func TestMoveTurnedBackWhileAnUpdateIsStuck(t *testing.T) {
	steps := Plan([]Cluster{
		{Name: "east", Assigned: true, Target: 6, Leaf: &LeafState{Replicas: 6, Pods: 8, Available: 6, Settled: true, Mixed: true, Surge: 2}},
		{Name: "west", Leaf: &LeafState{Replicas: 6, Pods: 6, Available: 0, Settled: true, Mixed: true, Surge: 2}},
	}, false)
	if !steps["west"].Delete {
		t.Errorf("west: %+v, want it deleted", steps["west"])
	}
	if got := steps["east"]; !got.Write || got.Replicas != 6 {
		t.Errorf("east: %+v, want 6 replicas", got)
	}
}
