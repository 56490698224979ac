package splitter

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/classes"
	"atoll.dev/atoll/internal/kinds"
)

// eventSource is who tells.
const eventSource = "atoll-splitter"

// tellPlaced tells of the workload's shares, or that it has no cluster, when that changes.
func (c *Controller) tellPlaced(ctx context.Context, s *source, root ctrlclient.Object, p *placementv1alpha1.Placement, sites []*site, wrote bool) {
	var shares []string
	for _, st := range sites {
		if st.assigned && st.leaf != nil && !st.old {
			shares = append(shares, fmt.Sprintf("%q: %d of %d replicas", st.name, st.target, replicasOf(root)))
		}
	}
	c.tellShares(ctx, s, root, p, shares, wrote)
	c.tellNotCarried(ctx, s, root, notCarried(s, barredOf(sites)))
	if divisionOf(root).Recreates() {
		for _, st := range sites {
			if st.step.Draining {
				c.tellOnce(ctx, s, root, "recreate", corev1.EventTypeNormal, "BreakBeforeMake",
					fmt.Sprintf("Strategy Recreate: stops on %q before it starts elsewhere", st.name))
			}
		}
	}
}

// tellShares tells what each cluster has of a workload, or that it has no cluster, when that changes. Unless leaves were written just now,
// shares of which nothing was told yet were told before a restart.
func (c *Controller) tellShares(ctx context.Context, s *source, root ctrlclient.Object, p *placementv1alpha1.Placement, shares []string, wrote bool) {
	c.tellUnplaced(ctx, s, root, p)
	switch text := "Placed on " + strings.Join(shares, ", "); {
	case len(shares) == 0:
		c.untell(root, "shares")
	case !wrote && !c.knows(root, "shares"):
		c.told.Add(toldID(root, "shares"), toldText(placementv1alpha1.ReasonPlaced, text))
	default:
		c.tellOnce(ctx, s, root, "shares", corev1.EventTypeNormal, placementv1alpha1.ReasonPlaced, text)
	}
}

// tellUnplaced tells what keeps a Placement from being decided, for as long as it is so.
func (c *Controller) tellUnplaced(ctx context.Context, s *source, root ctrlclient.Object, p *placementv1alpha1.Placement) {
	if placed := meta.FindStatusCondition(p.Status.Conditions, placementv1alpha1.PlacementPlaced); placed != nil && placed.Status == metav1.ConditionFalse {
		c.tellOnce(ctx, s, root, "placed", corev1.EventTypeWarning, placed.Reason, placed.Message)
	} else if placed != nil {
		c.told.Add(toldID(root, "placed"), "")
	}
}

// notCarried is why those clusters get nothing of a kind; nil if there is none.
func notCarried(s *source, clusters []string) *kinds.Reason {
	if len(clusters) == 0 {
		return nil
	}
	quoted := make([]string, len(clusters))
	for i, name := range clusters {
		quoted[i] = strconv.Quote(name)
	}
	return &kinds.Reason{Reason: "NotCarried", Message: fmt.Sprintf(
		"Not on %s: the syncers there do not carry %s. They are of an earlier version, or their physical clusters let them not list and watch them.",
		strings.Join(quoted, ", "), s.GVR.GroupResource())}
}

// tellNotCarried tells why a root is not where it belongs; nil if it is.
func (c *Controller) tellNotCarried(ctx context.Context, s *source, root ctrlclient.Object, why *kinds.Reason) {
	if why != nil {
		c.tellOnce(ctx, s, root, "carried", corev1.EventTypeWarning, why.Reason, why.Message)
	} else {
		c.untell(root, "carried")
	}
}

// tellClasses tells which classes that a root names are missing where it is: a physical cluster takes a StatefulSet or an Ingress that
// names one, and what waits for it there says nothing.
func (c *Controller) tellClasses(ctx context.Context, s *source, root ctrlclient.Object, leaves []ctrlclient.Object) {
	if !classes.MayName(s.Kind) {
		return
	}
	var in []*workloadv1alpha1.SyncTarget
	for _, leaf := range leaves {
		if t := c.target(client.KeyOf(leaf).Cluster); t != nil && leaf.GetDeletionTimestamp() == nil {
			in = append(in, t)
		}
	}
	if missing := classes.Missing(root, in); len(missing) > 0 {
		c.tellOnce(ctx, s, root, "classes", corev1.EventTypeWarning, "ClassMissing", strings.Join(missing, "; "))
	} else {
		c.untell(root, "classes")
	}
}

// tellRefusals tells what clusters answered to leaves they would not take, and what is missing there.
func (c *Controller) tellRefusals(ctx context.Context, s *source, root ctrlclient.Object, leaves []ctrlclient.Object) {
	c.tellClasses(ctx, s, root, leaves)
	for _, leaf := range leaves {
		mirror := client.KeyOf(leaf).Cluster
		about := "refused " + string(mirror)
		if r := workloadv1alpha1.RefusalOf(leaf); r != nil {
			c.tellOnce(ctx, s, root, about, corev1.EventTypeWarning, reasonOf(r.Reason), fmt.Sprintf("Cluster %q: %s", nameOf(c.target(mirror), mirror), r.Message))
		} else {
			c.untell(root, about)
		}
		c.tellUnshown(ctx, s, root, leaf)
		if s.Failing != nil {
			c.tellFailure(ctx, s, root, leaf)
		}
	}
}

// tellUnshown tells that pods which run in a cluster are not shown.
func (c *Controller) tellUnshown(ctx context.Context, s *source, root, leaf ctrlclient.Object) {
	mirror := client.KeyOf(leaf).Cluster
	about := "unshown " + string(mirror)
	if r := workloadv1alpha1.RefusalIn(leaf, workloadv1alpha1.UnshownAnnotation); r != nil {
		c.tellOnce(ctx, s, root, about, corev1.EventTypeWarning, "PodsNotShown",
			fmt.Sprintf("Cluster %q has pods that are not shown: %s: %s", nameOf(c.target(mirror), mirror), reasonOf(r.Reason), r.Message))
	} else {
		c.untell(root, about)
	}
}

// tellFailure tells that a cluster takes the workload and refuses its pods, by a quota for instance. The words name a
// pod that is new with every try, so they are told once until pods are taken again.
func (c *Controller) tellFailure(ctx context.Context, s *source, root, leaf ctrlclient.Object) {
	mirror := client.KeyOf(leaf).Cluster
	about := "failure " + string(mirror)
	reason, message := s.Failing(leaf)
	if reason == "" {
		c.untell(root, about)
		return
	}
	if last, known := c.told.Get(toldID(root, about)); !known || last == "" {
		c.told.Add(toldID(root, about), message)
		c.tell(ctx, s, root, corev1.EventTypeWarning, reason, fmt.Sprintf("Cluster %q: %s", nameOf(c.target(mirror), mirror), message), known)
	}
}

func reasonOf(reason string) string {
	if reason == "" {
		return "Refused"
	}
	return reason
}

// tellOnce writes an event if what is to be told about something is not what was told last.
func (c *Controller) tellOnce(ctx context.Context, s *source, root ctrlclient.Object, about, kind, reason, message string) {
	id := toldID(root, about)
	text := toldText(reason, message)
	last, known := c.told.Get(id)
	if known && last == text {
		return
	}
	c.told.Add(id, text)
	c.tell(ctx, s, root, kind, reason, message, known)
}

// untell says that what was told last about something is over: to say it again would be news.
func (c *Controller) untell(root ctrlclient.Object, about string) {
	id := toldID(root, about)
	if _, known := c.told.Get(id); known {
		c.told.Add(id, "")
	}
}

// knows says whether something about a root was told since the start.
func (c *Controller) knows(root ctrlclient.Object, about string) bool {
	_, known := c.told.Get(toldID(root, about))
	return known
}

func toldText(reason, message string) string { return reason + ": " + message }

func toldID(root ctrlclient.Object, about string) string { return string(root.GetUID()) + "/" + about }

// tell writes an event about a root. One that says the same of the same object has the same name, so a restart tells
// nothing twice. If it is news all the same, since something else was told meanwhile, it counts once more. An event that
// cannot be written is not worth a retry.
func (c *Controller) tell(ctx context.Context, s *source, root ctrlclient.Object, kind, reason, message string, news bool) {
	k := client.KeyOf(root)
	if most := 1024; len(message) > most {
		message = message[:most-3] + "..."
	}
	sum := sha256.Sum256([]byte(string(root.GetUID()) + "/" + reason + "/" + message))
	name := root.GetName()
	if most := 200; len(name) > most {
		name = name[:most]
	}
	now := metav1.NewTime(c.clock.Now())
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: name + "." + hex.EncodeToString(sum[:8])},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: s.GVK.GroupVersion().String(), Kind: s.GVK.Kind, Namespace: k.Namespace, Name: k.Name, UID: root.GetUID(),
		},
		Type: kind, Reason: reason, Message: message, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: eventSource}, ReportingController: eventSource,
	}
	ctx = client.In(ctx, k.Cluster)
	err := c.clients.Objects.Create(ctx, event)
	if apierrors.IsAlreadyExists(err) {
		err = nil
		if news {
			err = c.tellAgain(ctx, ctrlclient.ObjectKeyFromObject(event), now)
		}
	}
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Event not written", "object", k.String(), "reason", reason, "err", err)
	}
}

// tellAgain counts an event once more.
func (c *Controller) tellAgain(ctx context.Context, k ctrlclient.ObjectKey, now metav1.Time) error {
	event := &corev1.Event{}
	if err := c.clients.Objects.Get(ctx, k, event); err != nil {
		return err
	}
	again := event.DeepCopy()
	again.Count++
	again.LastTimestamp = now
	return c.clients.Objects.Patch(ctx, again, ctrlclient.MergeFrom(event))
}
