package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	"atoll.dev/atoll/internal/fleet"
	"atoll.dev/atoll/internal/order"
)

// Request is what is asked of one decision.
type Request struct {
	// Levels from the most specific to the least. The first that HasWish counts, as a whole.
	Levels []Level
	// Allow of every policy from the root downward. A cluster has to be in all of them.
	Allow []placementv1alpha1.ClusterSelection
	// Split that the current clusters were assigned with; it is kept with them.
	Split placementv1alpha1.SplitPolicy
	// Running are the names of the clusters that run something of it, those that it is leaving included.
	Running []string
	// Needs are the resources of what goes there, "<resource>.<group>".
	Needs []string
}

// Candidate is a SyncTarget that the workspace could use, policies aside.
type Candidate struct {
	Name string
	UID  types.UID
	// Workspace is the logical cluster that holds the SyncTarget; Mirror is its mirror, empty until there is one.
	Workspace, Mirror string
	Labels            map[string]string
	// Shadowed is set where a nearer workspace has a SyncTarget of this name.
	Shadowed bool
	// Ready, Cordoned, ObserveOnly, Deleting and Duplicate are the SyncTarget's state. Only what is Ready and none of the
	// others gets something new, save that a name in a wish is honoured while it is not Ready.
	Ready, Cordoned, ObserveOnly, Deleting, Duplicate bool
	// RunsNothing is set for a Duplicate that never was anything else: nothing stays there, since nothing is there.
	RunsNothing bool
	// Carries are the resources that the cluster's syncer carries; nil while that is not known.
	Carries []string
	// Placements counts the Placements that have this cluster.
	Placements int
}

// Decision is where something goes.
type Decision struct {
	// Clusters sorted by name; nil for nowhere.
	Clusters []placementv1alpha1.PlacedCluster
	Split    placementv1alpha1.SplitPolicy
	// Status, Reason and Message are the condition Placed. The message is one sentence for the user and holds no
	// time and no order but that of names.
	Status          metav1.ConditionStatus
	Reason, Message string
	// Problem is the message without where it is until then; empty if there is no problem.
	Problem string
}

// Decide says where something goes that is at current now (empty at first). It is a pure function; the order of
// candidates does not matter.
//
// Named clusters are assigned even while they are not Ready; "*", selectors and the default take Ready ones. A cluster of
// current stays while it is wanted, allowed and registered, whatever its state; being deleted, it stays only if it is
// named or nothing can replace it, and not at all if it runs nothing since it is a duplicate. A wish that cannot be met as a whole removes nothing: what it only adds is added as
// far as possible, anything else waits.
//
// The message says as well which of the clusters are only observed: what is shown of them may not be so; and where the syncer does
// not carry all that goes there.
func Decide(req Request, candidates []Candidate, current []placementv1alpha1.PlacedCluster) Decision {
	d := decide(req, candidates, current)
	var observed []string
	for _, c := range d.Clusters {
		if slices.ContainsFunc(candidates, func(known Candidate) bool { return known.UID == c.UID && known.ObserveOnly }) {
			observed = append(observed, quote(c.Name))
		}
	}
	if len(observed) > 0 {
		d.Message += fmt.Sprintf(" Only observed until an administrator confirms, since it or the server was restored: %s."+
			" Nothing is changed there, and what is shown of it may be older than what is there.", enumerate(observed))
	}
	d.Message += notCarried(d.Clusters, candidates, req.Needs)
	return d
}

// notCarried says which clusters have a syncer that does not carry all that goes there; empty if none.
func notCarried(clusters []placementv1alpha1.PlacedCluster, candidates []Candidate, needs []string) (message string) {
	for _, c := range clusters {
		i := slices.IndexFunc(candidates, func(known Candidate) bool { return known.UID == c.UID })
		if i < 0 {
			continue
		}
		if lacks := candidates[i].lacks(needs); len(lacks) > 0 {
			message += fmt.Sprintf(" The syncer of %s does not carry %s, which are not placed there: %s.", quote(c.Name), enumerate(lacks), upgrade)
		}
	}
	return message
}

// upgrade is what to do about a syncer that does not carry something.
const upgrade = "it is of an earlier version, or its physical cluster lets it not list and watch them"

// lacks returns what of needs the cluster's syncer is known not to carry, in that order.
func (c *Candidate) lacks(needs []string) (lacks []string) {
	for _, resource := range needs {
		if c.Carries != nil && !slices.Contains(c.Carries, resource) {
			lacks = append(lacks, resource)
		}
	}
	return lacks
}

func decide(req Request, candidates []Candidate, current []placementv1alpha1.PlacedCluster) Decision {
	allow, err := fleet.CompileAllow(req.Allow)
	if err != nil {
		stay := seatsOf(candidates, current, nil, nil)
		return keep(req, stay, current, placementv1alpha1.ReasonInvalid, err.Error())
	}
	seats := seatsOf(candidates, current, allow, req.Needs)
	for i := range seats {
		seats[i].running = slices.Contains(req.Running, seats[i].Name)
	}

	w := leastUsed()
	if i := slices.IndexFunc(req.Levels, func(l Level) bool { return placementv1alpha1.HasWish(l.Annotations) }); i >= 0 {
		if w, err = parseWish(req.Levels[i]); err != nil {
			return keep(req, seats, current, placementv1alpha1.ReasonInvalid, err.Error())
		}
	}
	switch {
	case w.nowhere:
		return Decision{
			Split: w.split, Status: metav1.ConditionFalse, Reason: placementv1alpha1.ReasonNowhere,
			Message: fmt.Sprintf("Placed nowhere, as the empty %s of %s asks: name clusters there, or remove it.",
				placementv1alpha1.ClustersAnnotation, w.source),
		}
	case w.names != nil:
		return decideNamed(req, w, allow, seats, current)
	default:
		return decideMatching(req, w, seats, current)
	}
}

// decideNamed carries out a wish that names its clusters.
func decideNamed(req Request, w wish, allow fleet.Allowed, seats []seat, current []placementv1alpha1.PlacedCluster) Decision {
	byName := make(map[string]seat, len(w.names))
	for _, s := range seats {
		if _, ok := slices.BinarySearch(w.names, s.Name); ok {
			byName[s.Name] = s
		}
	}
	var picks []seat
	var forbidden, unknown, waiting []string
	for _, name := range w.names {
		s, registered := byName[name]
		switch {
		case registered && !s.allowed, !registered && !allow.Unregistered(name):
			forbidden = append(forbidden, quote(name))
		case !registered:
			unknown = append(unknown, quote(name))
		case w.selector != nil && !w.selector.Matches(labels.Set(s.Labels)):
		case s.current, s.hindrance() == "", s.hindrance() == notReady:
			picks = append(picks, s)
		default:
			waiting = append(waiting, quote(name)+" "+s.hindrance())
		}
	}

	// Every problem is told, the reason is that of the first kind.
	var reason string
	var problems []string
	note := func(r, format string, names []string) {
		if len(names) > 0 {
			reason = cmp.Or(reason, r)
			problems = append(problems, fmt.Sprintf(format, enumerate(names)))
		}
	}
	note(placementv1alpha1.ReasonNotAllowed, "a PlacementPolicy does not allow %s", forbidden)
	note(placementv1alpha1.ReasonUnknownCluster, "no cluster is registered as %s", unknown)
	note(placementv1alpha1.ReasonNotPlaced, "%s", waiting)
	if len(picks) == 0 && reason == "" {
		note(placementv1alpha1.ReasonNotPlaced, "none of its clusters matches %s", []string{placementv1alpha1.SelectorAnnotation})
	}
	todo := fmt.Sprintf("Change %s of %s: %s", w.namedBy, w.source, strings.Join(problems, ", "))
	if len(forbidden)+len(unknown) == 0 && len(waiting) > 0 {
		todo = fmt.Sprintf("Wait, or change %s of %s: %s", w.namedBy, w.source, strings.Join(problems, ", "))
	}
	if len(picks) == 0 {
		return keep(req, seats, current, reason, todo)
	}
	d := place(w, picks)
	if reason != "" {
		for _, s := range seats {
			if s.stays() && !slices.ContainsFunc(d.Clusters, func(c placementv1alpha1.PlacedCluster) bool { return c.UID == s.UID }) {
				return keep(req, seats, current, reason, todo)
			}
		}
		d.Status, d.Reason, d.Problem = metav1.ConditionFalse, reason, todo
		d.Message = todo + "; until then it is on " + enumerate(names(d.Clusters)) + "."
	}
	return d
}

// decideMatching carries out a wish for any clusters, or for those with some labels.
func decideMatching(req Request, w wish, seats []seat, current []placementv1alpha1.PlacedCluster) Decision {
	var picks, leaving []seat
	var hindered []string
	usable, forbidden := false, false
	for _, s := range seats {
		usable = usable || s.allowed
		if w.selector != nil && !w.selector.Matches(labels.Set(s.Labels)) {
			continue
		}
		if !s.allowed {
			forbidden = true
			continue
		}
		switch hindrance := s.hindrance(); {
		case hindrance == "", s.current && !s.Deleting:
			picks = append(picks, s)
		case s.current:
			leaving = append(leaving, s)
			fallthrough
		default:
			hindered = append(hindered, quote(s.Name)+" "+hindrance)
		}
	}
	if len(picks) == 0 {
		picks = leaving // nothing can replace them
	}
	if len(picks) > 0 {
		return place(w, picks)
	}

	slices.Sort(hindered)
	reason, todo := placementv1alpha1.ReasonNotPlaced, ""
	switch {
	case forbidden && len(hindered) == 0:
		// Which ones is not told: a cluster that is not allowed need not be known here.
		reason = placementv1alpha1.ReasonNotAllowed
		todo = "Ask who holds the PlacementPolicies of this workspace and above: they allow no cluster that fits"
	case !usable:
		todo = "Register a physical cluster (SyncTarget) in this workspace or above it: there is none that this may use"
	case len(hindered) > 0:
		todo = "Wait for a cluster to get ready: " + enumerate(hindered)
	default:
		todo = fmt.Sprintf("Change %s of %s: no cluster that this may use matches it", placementv1alpha1.SelectorAnnotation, w.source)
	}
	return keep(req, seats, current, reason, todo)
}

// place assigns those of picks that the wish has room for: current ones first, then those that it is still leaving, whose pods need not move, then the least
// used.
func place(w wish, picks []seat) Decision {
	if w.max > 0 && len(picks) > w.max {
		slices.SortFunc(picks, preferred)
		picks = picks[:w.max]
	}
	d := Decision{Split: w.split, Status: metav1.ConditionTrue, Reason: placementv1alpha1.ReasonPlaced}
	total := int64(0)
	for _, s := range picks {
		weight := int64(1)
		if asked, ok := w.weights[s.Name]; ok {
			weight = asked
		}
		total += weight
		d.Clusters = append(d.Clusters, s.placed(weight))
	}
	if total == 0 {
		// Only clusters that were to have nothing are left: running there is better than running nowhere.
		for i := range d.Clusters {
			d.Clusters[i].Weight = 1
		}
	}
	sortByName(d.Clusters)
	d.Message = "Placed on " + enumerate(names(d.Clusters)) + "."
	return d
}

// keep leaves current as it is, as far as it is registered and allowed, and says why and what to do.
func keep(req Request, seats []seat, current []placementv1alpha1.PlacedCluster, reason, todo string) Decision {
	d := Decision{
		Split:  cmp.Or(req.Split, placementv1alpha1.SplitEven),
		Status: metav1.ConditionFalse, Reason: reason, Message: todo + "; until then it is placed nowhere.", Problem: todo,
	}
	for _, s := range seats {
		if s.stays() {
			i := slices.IndexFunc(current, func(c placementv1alpha1.PlacedCluster) bool { return c.UID == s.UID })
			d.Clusters = append(d.Clusters, s.placed(current[i].Weight))
		}
	}
	if len(d.Clusters) > 0 {
		sortByName(d.Clusters)
		d.Message = todo + "; until then it stays on " + enumerate(names(d.Clusters)) + "."
	}
	return d
}

// seat is a candidate as one request sees it.
type seat struct {
	*Candidate
	current, allowed bool
	// running is set where something of what is placed runs, also while the cluster is being left.
	running bool
	// lacking is what of the request's needs its syncer does not carry.
	lacking []string
}

// seatsOf returns the candidates that count, of every name at most one: the one that current has, else the nearest.
func seatsOf(candidates []Candidate, current []placementv1alpha1.PlacedCluster, allow fleet.Allowed, needs []string) []seat {
	uids := make(map[types.UID]bool, len(current))
	for _, c := range current {
		uids[c.UID] = true
	}
	has := func(c *Candidate) bool { return uids[c.UID] && !c.RunsNothing }
	taken := map[string]bool{}
	for i := range candidates {
		if c := &candidates[i]; has(c) {
			taken[c.Name] = true
		}
	}
	seats := make([]seat, 0, len(candidates))
	for i := range candidates {
		c := &candidates[i]
		isCurrent := has(c)
		if isCurrent || !c.Shadowed && !taken[c.Name] {
			seats = append(seats, seat{Candidate: c, current: isCurrent, allowed: allow.Registered(c.Name, c.Labels), lacking: c.lacks(needs)})
		}
	}
	return seats
}

// stays says whether a mistake in a wish leaves the seat as it is.
func (s seat) stays() bool { return s.current && s.allowed }

const notReady = "is not Ready"

// hindrance says why the cluster gets nothing new; empty if it does.
func (s seat) hindrance() string {
	switch {
	case s.Deleting:
		return "is being removed"
	case s.Duplicate:
		return "is a duplicate of another one"
	case s.Cordoned:
		return "is cordoned"
	case s.ObserveOnly:
		return "is only observed until an administrator confirms"
	case s.Mirror == "":
		return "is being set up"
	case !s.Ready:
		return notReady
	case len(s.lacking) > 0:
		return "has a syncer that does not carry " + enumerate(s.lacking)
	}
	return ""
}

func (s seat) placed(weight int64) placementv1alpha1.PlacedCluster {
	return placementv1alpha1.PlacedCluster{Name: s.Name, UID: s.UID, Workspace: s.Workspace, Mirror: s.Mirror, Weight: weight}
}

// preferred orders seats where not all can be had. Usage does not order current ones: they would change places with it.
func preferred(a, b seat) int {
	usage := 0
	if !a.current {
		usage = cmp.Compare(a.Placements, b.Placements)
	}
	return cmp.Or(order.First(a.current, b.current), order.First(a.hindrance() == "", b.hindrance() == ""), order.First(a.running, b.running), usage, strings.Compare(a.Name, b.Name))
}

// enumerate lists things for a message, not more than a reader takes in.
func enumerate(things []string) string {
	const most = 10
	if len(things) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(things[:most], ", "), len(things)-most)
	}
	return strings.Join(things, ", ")
}

func names(clusters []placementv1alpha1.PlacedCluster) []string {
	out := make([]string, len(clusters))
	for i, c := range clusters {
		out[i] = quote(c.Name)
	}
	return out
}

func sortByName(clusters []placementv1alpha1.PlacedCluster) {
	slices.SortFunc(clusters, func(a, b placementv1alpha1.PlacedCluster) int { return strings.Compare(a.Name, b.Name) })
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
