package splitter

import (
	"cmp"
	"maps"
	"slices"
)

// RollingCluster is what the division of a rolling update has to know of one cluster.
type RollingCluster struct {
	Name string
	// Replicas is the cluster's share.
	Replicas int32
	// Lost is as in a Cluster.
	Lost bool
	// Leaving says that the cluster has no share, but its leaf has replicas until others make up for it: it gets no other
	// template, but may still be rolling.
	Leaving bool
	// Exists says that there is a leaf; the rest is about it.
	Exists bool
	// SameTemplate says that the leaf has the root's present pod template.
	SameTemplate bool
	// Rolling says that there may be pods of more than one template: more than the leaf's number of replicas may change.
	Rolling bool
	// Unsure says that this is so only because the last report is about the leaf as it was before: by that, there are not.
	// Awaited says that there will be another: the cluster has not refused the leaf.
	Unsure, Awaited bool
	// MaxUnavailable and MaxSurge are what the leaf's strategy allows the cluster now, in pods.
	MaxUnavailable, MaxSurge int32
	// Lacks is how many pods serve less than the cluster has to have, by its share or its leaf, and its last report. Where there
	// is no leaf, it is the share.
	Lacks int32
}

// Roll is what one cluster may do in a rolling update.
type Roll struct {
	// Hold keeps the leaf's pod template and strategy as they are: it is not the cluster's turn.
	Hold bool
	// KeepStrategy keeps the leaf's strategy as it is.
	KeepStrategy bool
	// Verbatim copies the root's strategy; otherwise the numbers below, in pods, are the strategy.
	Verbatim                 bool
	MaxUnavailable, MaxSurge int32
}

// rolls says that what the cluster's strategy allows may be in use. Where all pods are of one template it is not, serve they or not: counted
// there, it would be kept from the update that replaces them.
func (c RollingCluster) rolls() bool { return c.Rolling && !c.Lost }

// misses is how many pods the cluster may lack if it is granted nothing.
func (c RollingCluster) misses() int32 {
	switch {
	case c.Lost:
		return 0
	case c.rolls():
		return max(c.MaxUnavailable, c.Lacks)
	}
	return c.Lacks
}

// stays is the roll that lets the cluster go on with what it does.
func (c RollingCluster) stays() Roll {
	return Roll{Hold: !c.SameTemplate, KeepStrategy: c.SameTemplate}
}

// isGranted says that a roll lets the cluster do what its leaf does not: roll to another template, or with more pods at once.
func (c RollingCluster) isGranted(r Roll) bool {
	if !c.Exists || r.Hold || r.KeepStrategy {
		return false
	}
	return !c.SameTemplate || !r.Verbatim && (r.MaxUnavailable > c.MaxUnavailable || r.MaxSurge > c.MaxSurge)
}

// DivideRollout divides what a rolling update may have unavailable and in surplus (pods) over the clusters that are not
// left, so that the sums of clusters that roll at once do not exceed it. Pods that a cluster lacks, for whatever reason, are
// among those unavailable. To replace them takes nothing from what serves, so an update never waits for what it replaces.
//
// Where every cluster's share leaves it at least one of both, all roll at once. Otherwise the clusters roll one after
// another, each with all that nobody else uses: those that roll already or lack pods first, then by name. A cluster that is
// not heard of is not waited for and gets its turn when it is back. Clusters without a leaf start with the present template.
// One cluster alone gets the root's strategy as it is. Of several, one that rolls already keeps what it was allowed, even if
// the root's strategy allows less by now, until it has finished. If it is not known which of them rolls, because all was
// changed a moment ago, none gets more than is free before that is known.
func DivideRollout(maxUnavailable, maxSurge int32, clusters []RollingCluster) map[string]Roll {
	clusters = slices.SortedFunc(slices.Values(clusters), func(a, b RollingCluster) int { return cmp.Compare(a.Name, b.Name) })
	rolls := make(map[string]Roll, len(clusters))
	var active, leaving []RollingCluster
	weights := map[string]int64{}
	together := true
	for _, c := range clusters {
		switch {
		case c.Leaving:
			rolls[c.Name] = c.stays()
			leaving = append(leaving, c)
			together = together && !c.rolls()
			continue
		case c.Replicas > 0:
			active = append(active, c)
			weights[c.Name] = int64(c.Replicas)
		}
		rolls[c.Name] = Roll{Verbatim: true}
	}
	if len(active) < 2 && together {
		return rolls
	}
	unavailable := divideUnavailable(maxUnavailable, weights, active)
	surge := divideSurge(maxSurge, weights, unavailable)
	for _, c := range active {
		u, s := unavailable[c.Name], surge[c.Name]
		// What a cluster that rolls was allowed before may still be in use.
		together = together && u+s > 0 && !(c.rolls() && (c.MaxUnavailable > u || c.MaxSurge > s))
	}
	if !together {
		return oneAfterAnother(maxUnavailable, maxSurge, active, leaving, rolls)
	}
	for _, c := range active {
		rolls[c.Name] = Roll{MaxUnavailable: unavailable[c.Name], MaxSurge: surge[c.Name]}
	}
	return rolls
}

// divideUnavailable is divide, but what a cluster lacks beyond its part is taken from the parts of others that let go of pods. It keeps
// its part itself: it has no pod to lose.
func divideUnavailable(maxUnavailable int32, weights map[string]int64, active []RollingCluster) map[string]int32 {
	byWeight := func(n int32, weights map[string]int64) map[string]int32 {
		return divide(n, weights, func(string, int32) preference { return preference{} })
	}
	whole, rest := byWeight(maxUnavailable, weights), maps.Clone(weights)
	parts := maps.Clone(whole)
	for again := true; again; {
		again = false
		for _, c := range active {
			if _, ok := rest[c.Name]; ok && !c.Lost && c.Lacks > parts[c.Name] {
				delete(rest, c.Name)
				maxUnavailable -= c.Lacks
				again = true
			}
		}
		maps.Copy(parts, byWeight(maxUnavailable, rest))
	}
	for _, c := range active {
		if !c.Exists || c.SameTemplate && !c.Rolling {
			parts[c.Name] = whole[c.Name] // it lets go of nothing, and is not written anew for pods that come and go elsewhere
		}
	}
	return parts
}

// divideSurge is divide, but whoever has no share of maxUnavailable comes first for the remainder, so that few
// clusters are left with nothing.
func divideSurge(maxSurge int32, weights map[string]int64, unavailable map[string]int32) map[string]int32 {
	surge := divide(maxSurge, weights, func(name string, _ int32) preference { return preference{amongEqual: unavailable[name] == 0} })
	names := make([]string, 0, len(surge))
	for name := range surge {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, poor := range names {
		if surge[poor] > 0 || unavailable[poor] > 0 {
			continue
		}
		// From whoever keeps something: more surge, or a share of maxUnavailable.
		for _, rich := range names {
			if surge[rich] > 1 || surge[rich] == 1 && unavailable[rich] > 0 {
				surge[rich]--
				surge[poor]++
				break
			}
		}
	}
	return surge
}

func oneAfterAnother(maxUnavailable, maxSurge int32, active, leaving []RollingCluster, rolls map[string]Roll) map[string]Roll {
	turn := nextTurn(active)
	freeUnavailable, freeSurge := maxUnavailable, maxSurge
	awaited := false
	for _, c := range slices.Concat(active, leaving) {
		awaited = awaited || c.rolls() && c.Awaited
		if c.Name == turn {
			continue
		}
		freeUnavailable -= c.misses()
		if c.rolls() && !c.Leaving { // what is being left is in surplus as a whole, and until others serve
			freeSurge -= c.MaxSurge
		}
	}
	u, s := max(freeUnavailable, 0), max(freeSurge, 0)
	for _, c := range active {
		switch {
		case !c.Exists:
			// It has nothing to roll yet; what it may do is said when its turn comes. 0 and 0 would be invalid.
			rolls[c.Name] = Roll{MaxSurge: 1}
		case c.Name == turn && c.Unsure && awaited && (c.MaxUnavailable > u || c.MaxSurge > s):
			rolls[c.Name] = Roll{Hold: true} // were it not what rolls, it would use what another may have in use
		case c.Name == turn:
			if c.rolls() {
				// What it was allowed it may have in use until it has finished. Were it allowed less meanwhile, its strategy would no longer
				// say so, and others would get the rest. So it never has to wait for them, either, to get out of an update that is stuck.
				u, s = max(u, c.MaxUnavailable), max(s, c.MaxSurge)
			} else if u+s == 0 {
				// The others lack all that may be missing. What it lacks itself has not to serve before it is replaced.
				u = min(c.Lacks, maxUnavailable)
			}
			rolls[c.Name] = Roll{MaxUnavailable: u, MaxSurge: s, Hold: u+s == 0}
		default:
			rolls[c.Name] = c.stays()
		}
	}
	return rolls
}

// nextTurn is the name of the cluster that may get the present template now, if any. First are those that roll for certain, since what
// the first is given may be what it is using already, and last those that lack nothing: they may have to wait for the others.
func nextTurn(active []RollingCluster) string {
	rolling, unsure, lacking, rest := "", "", "", ""
	for _, c := range active {
		switch {
		case c.rolls() && c.SameTemplate:
			return "" // it has its turn
		case !c.Exists || c.SameTemplate || c.Lost:
		case c.rolls() && !c.Unsure:
			rolling = cmp.Or(rolling, c.Name)
		case c.rolls():
			unsure = cmp.Or(unsure, c.Name)
		case c.Lacks > 0:
			lacking = cmp.Or(lacking, c.Name)
		default:
			rest = cmp.Or(rest, c.Name)
		}
	}
	return cmp.Or(rolling, unsure, lacking, rest)
}
