package splitter

import (
	"cmp"
	"slices"
)

// Cluster is what a plan has to know of one physical cluster.
type Cluster struct {
	// Name sorts and identifies the cluster.
	Name string
	// Assigned says that the Placement names the cluster, Target its share of replicas (0 if it is not assigned).
	Assigned bool
	Target   int32
	// Lost says that the cluster is not heard of, or that what it reports may be of another time.
	Lost bool
	// Leaf is nil where there is none.
	Leaf *LeafState
}

// LeafState is a leaf as last seen.
type LeafState struct {
	// Replicas is what the leaf asks for.
	Replicas int32
	// Pods and Available are what its cluster reported: all its pods, those on their way out included as far as the
	// cluster says, and those that serve.
	Pods, Available int32
	// Settled says that the report is about the leaf as it is now.
	Settled bool
	// Mixed says that there are pods of more than one template, or will be since the leaf is to get another, now or in its turn: of
	// fewer replicas its cluster takes away old and new ones in proportion, whichever serve. Where all are of one template, those go
	// first that are not ready.
	Mixed bool
	// Surge is how many pods more than Replicas a rolling update of the leaf may have; 0 where it does not roll.
	Surge int32
	// Deleting says that the leaf is a tombstone, or has to become one because its root is no more.
	Deleting bool
}

// Step is what a plan wants of one cluster now.
type Step struct {
	// Replicas the leaf shall ask for, where there shall be one.
	Replicas int32
	// Write says that there shall be a leaf that asks for Replicas; Delete that it shall become a tombstone. Where
	// neither is set, nothing can be done in the cluster now.
	Write, Delete bool
	// Draining marks a leaf that stays only until its replacement is available.
	Draining bool
}

// Plan returns the next step of every cluster, by its name, so that repeating plan and report ends with every assigned
// cluster at its target and nothing elsewhere.
//
// What is asked for is R, the sum of targets. Clusters grow to their target at once. A cluster shrinks, and is left, only
// as far as the others make up for it: it may lose an available pod only if, after that, R are known to be available
// among what the leaves still ask for. What is known of a cluster is its report, nothing if the report is not about
// its leaf as it is now or if the cluster is not heard of.
// So what the user does not want any more goes at once, and so does what a cluster has above its target and does not serve:
// to wait until it does could be for ever. Only where pods of more than one template are, or will be, it stays until the update is through
// or the others make up for it: were the share down to what serves when the update begins, maxUnavailable would be taken from that.
// In a cluster that is being left it stays as what serves does, up to R: it may
// serve again in a moment (a probe that failed everywhere, nodes that are not heard of), and all of it would go. A cluster
// that is not heard of is waited for or left, but nothing starts elsewhere because of it: targets come from the Placement alone.
//
// With recreate it is the other way round, since two at once would do harm: nothing grows until every cluster that
// shrinks has come down and every cluster that is left is gone.
func Plan(clusters []Cluster, recreate bool) map[string]Step {
	clusters = slices.SortedFunc(slices.Values(clusters), func(a, b Cluster) int { return cmp.Compare(a.Name, b.Name) })
	if recreate {
		return planRecreate(clusters)
	}
	var asked int32
	wanted := make(map[string]int32, len(clusters))
	for _, c := range clusters {
		asked += c.Target
		wanted[c.Name] = max(c.replicas(), c.Target)
		if c.deleting() {
			wanted[c.Name] = 0
		}
	}
	shrink := func(c Cluster) {
		var elsewhere int32
		for _, d := range clusters {
			if d.Name != c.Name {
				elsewhere += d.known(wanted[d.Name])
			}
		}
		wanted[c.Name] = max(c.Target, min(wanted[c.Name], c.least(asked-elsewhere, len(clusters) == 1)))
	}
	// Those that are left go first, so that a cluster is free as soon as it can be.
	for _, c := range clusters {
		if !c.Assigned && wanted[c.Name] > 0 {
			shrink(c)
		}
	}
	for _, c := range clusters {
		if c.Assigned && wanted[c.Name] > c.Target {
			shrink(c)
		}
	}

	steps := make(map[string]Step, len(clusters))
	for _, c := range clusters {
		steps[c.Name] = c.step(wanted[c.Name])
	}
	return steps
}

// restsOnOthers says whether what one cluster is to do, by its step and roll, is right only if what is known of the others is
// not old: to shrink or to go; with recreate, where two at once would do harm, to grow; or to roll in its turn.
func restsOnOthers(clusters []Cluster, recreate bool, steps map[string]Step, rolling []RollingCluster, rolls map[string]Roll) bool {
	if slices.ContainsFunc(clusters, func(c Cluster) bool {
		step := steps[c.Name]
		return step.Delete || step.Draining ||
			len(clusters) > 1 && step.Write && (step.Replicas < c.replicas() || recreate && step.Replicas > c.replicas())
	}) {
		return true
	}
	return len(rolling) > 1 && slices.ContainsFunc(rolling, func(c RollingCluster) bool { return steps[c.Name].Write && c.isGranted(rolls[c.Name]) })
}

func planRecreate(clusters []Cluster) map[string]Step {
	var blocks []string // clusters that others wait for
	for _, c := range clusters {
		if l := c.Leaf; l != nil && (!c.Assigned || l.Deleting || l.Replicas > c.Target || l.Pods > l.Replicas) {
			blocks = append(blocks, c.Name)
		}
	}
	steps := make(map[string]Step, len(clusters))
	for _, c := range clusters {
		othersBlock := slices.ContainsFunc(blocks, func(name string) bool { return name != c.Name })
		switch {
		case c.Leaf == nil && othersBlock:
			steps[c.Name] = Step{} // not before the others are gone
		case c.Leaf == nil || c.deleting():
			steps[c.Name] = c.step(c.Target)
		case !c.Assigned:
			gone := c.Leaf.Replicas == 0 && c.Leaf.Settled && c.Leaf.Pods == 0
			steps[c.Name] = Step{Write: !gone, Delete: gone, Draining: !gone}
		case othersBlock:
			steps[c.Name] = c.step(min(c.Leaf.Replicas, c.Target))
		default:
			steps[c.Name] = c.step(c.Target)
		}
	}
	return steps
}

func (c Cluster) step(replicas int32) Step {
	switch {
	case c.deleting():
		return Step{} // gone first
	case c.Assigned:
		return Step{Write: true, Replicas: replicas}
	case c.Leaf == nil:
		return Step{}
	case replicas == 0:
		return Step{Delete: true}
	}
	return Step{Write: true, Replicas: replicas, Draining: true}
}

func (c Cluster) deleting() bool { return c.Leaf != nil && c.Leaf.Deleting }

func (c Cluster) replicas() int32 {
	if c.Leaf == nil {
		return 0
	}
	return c.Leaf.Replicas
}

// known is how many pods are available for certain once the leaf asks for wanted replicas. Those beyond what the leaf asks
// for now are on their way out, even if it is about to ask for more.
func (c Cluster) known(wanted int32) int32 {
	if c.Leaf == nil || c.Lost || !c.Leaf.Settled {
		return 0
	}
	keeps := min(c.Leaf.Replicas, wanted)
	known := min(c.Leaf.Available, keeps)
	surplus := c.Leaf.Pods - keeps
	if keeps == c.Leaf.Replicas {
		// What an update has on top until it is through takes nothing from those that serve, if nobody shrinks the leaf: an
		// update that never gets through would otherwise hold up every move, the way back too.
		surplus -= c.Leaf.Surge
	}
	if c.Leaf.Mixed && surplus > 0 {
		// Those in surplus may go before those that do not serve.
		known = max(min(known, c.Leaf.Available-surplus), 0)
	}
	return known
}

// least is the smallest number of replicas that the cluster may be asked for while needed available pods have to be its.
func (c Cluster) least(needed int32, alone bool) int32 {
	l := c.Leaf
	known := !c.Lost && l.Settled
	if c.Assigned && known {
		needed = min(needed, l.Available) // it keeps its target, and beyond that only what serves
	}
	switch {
	case alone || needed <= 0:
		return 0 // down to the target
	case !known:
		return l.Replicas // what it would lose is not known
	case l.Mixed:
		// Those that serve may all go first, and what the update has on top by now may stay instead.
		return needed + max(l.Replicas+l.Surge, l.Pods) - l.Available
	}
	return min(l.Replicas, needed) // those that serve go last
}
