package splitter

import (
	"cmp"
	"slices"

	appsv1 "k8s.io/api/apps/v1"

	"atoll.dev/atoll/internal/kinds"
)

// Revision is one of those of a workload's template, as its workspace keeps it.
type Revision struct {
	// Name identifies it.
	Name string
	// Template tells templates apart.
	Template string
	// Number is the greater the later it was the workload's; 0 if it says none.
	Number int64
}

// RevisionPlan is what shall become of the revisions of a workload.
type RevisionPlan struct {
	// Current is the name of the one whose template is the workload's; empty if there is none yet.
	Current string
	// Number is what the current one has to have, also if it has to be made yet.
	Number int64
	// Earlier are the names of the others that stay, oldest first.
	Earlier []string
	// Delete are the names of those that are too many, oldest first.
	Delete []string
}

// PlanRevisions says what shall become of the revisions that are kept of a workload whose template this is. The current one has a
// greater number than all others: a template that comes back takes its revision along, under a new number. Beside the
// current one, and the one of the name runs, limit are kept; while something runs an earlier template, the latest of them stays in any case.
func PlanRevisions(kept []Revision, template string, limit int32, runs string, runsEarlier bool) (p RevisionPlan) {
	earlier := slices.Clone(kept)
	slices.SortFunc(earlier, func(a, b Revision) int { return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Name, b.Name)) })
	for at, r := range slices.Backward(earlier) {
		if r.Template == template {
			p.Current, p.Number = r.Name, r.Number
			earlier = slices.Delete(earlier, at, at+1)
			break
		}
	}
	if len(earlier) > 0 {
		p.Number = max(p.Number, earlier[len(earlier)-1].Number+1)
	}
	p.Number = max(p.Number, 1)
	if runsEarlier || p.Current == "" {
		limit = max(limit, 1)
	}
	tooMany := len(earlier) - int(limit)
	if slices.ContainsFunc(earlier, func(r Revision) bool { return r.Name == runs }) {
		tooMany--
	}
	for _, r := range earlier {
		if r.Name == runs || len(p.Delete) >= tooMany {
			p.Earlier = append(p.Earlier, r.Name)
		} else {
			p.Delete = append(p.Delete, r.Name)
		}
	}
	return p
}

// podCount counts pods.
type podCount struct{ pods, ready, available int32 }

func (c *podCount) add(pods, ready, available int32) {
	c.pods, c.ready, c.available = c.pods+pods, c.ready+ready, c.available+available
}

// countRevisions counts the pods of a Deployment's present template and those of earlier ones, as far as the leaves tell: each says
// how many of its pods are of its template, and how many serve in all. So a pod counts as one of the present template that
// serves only where those of earlier ones are not enough to be all that serve; and which of the earlier templates a pod has is not
// known. Pods of the present template of which the last report was on an earlier rendering count if they did before: recorded is
// how many did.
func countRevisions(leaves []kinds.Leaf, recorded int32) (current, earlier podCount) {
	type report struct{ pods, updated, ready, available int32 }
	tell := func(r report) {
		old := r.pods - r.updated
		ready, available := min(r.ready, old), min(r.available, old)
		earlier.add(old, ready, available)
		current.add(r.updated, r.ready-ready, r.available-available)
	}
	var unsettled []report
	for _, l := range leaves {
		d, _ := l.Object.(*appsv1.Deployment)
		if d == nil {
			continue
		}
		r := report{pods: d.Status.Replicas, ready: d.Status.ReadyReplicas, available: d.Status.AvailableReplicas}
		if l.Lost {
			r.ready, r.available = 0, 0
		}
		switch updated := min(d.Status.UpdatedReplicas, d.Status.Replicas); {
		case !l.SameTemplate:
			tell(r)
		case l.Settled:
			r.updated = updated
			tell(r)
		default:
			r.updated = updated
			unsettled = append(unsettled, r)
		}
	}
	for _, r := range unsettled {
		r.updated = min(r.updated, max(0, recorded-current.pods))
		tell(r)
	}
	return current, earlier
}
