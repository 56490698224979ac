package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/syncer"
	"atoll.dev/atoll/test/framework"
)

// TestRestore puts older states back under a running fleet: of the server, and of a physical cluster. What was written
// since is forgotten on one side alone; nothing goes down before an administrator confirms, and what nobody asks for any
// more stays where it is.
func TestRestore(t *testing.T) {
	inModes(t, func(t *testing.T, pulled ...string) {
		newFleet(t, pulled...).run(t, []part{
			{"T16_RestoreHubFromCopy", restoreHub},
			{"T16_RestorePhysicalFromBackup", restorePhysical},
		})
	})
}

// TestPullRestore restores the server under syncers that are outside of it and run on.
func TestPullRestore(t *testing.T) {
	t.Parallel()
	needsSyncersInPods(t)
	newFleet(t, "east", "west").run(t, []part{
		{"I2_RestoreHubWhilePullSyncerRuns", restoreHubUnderSyncers},
		{"T16_RestoreHubFromBackup", restoreHubFromBackup},
	})
}

// restoreHub restores the server while no syncer is there to see it.
func restoreHub(t *testing.T, f *fleet) {
	r := newRestore(t, f, "restored")
	r.copyHub()
	r.writeOn()
	for _, s := range f.syncers {
		s.Stop()
	}
	f.Stop()
	// Until the physical clusters are there, the syncers of the server have nothing to compare with.
	for _, c := range f.clusters {
		c.Stop()
	}
	putBack(t, r.copied, f.Dir)
	f.Start()
	r.writePast()
	for _, c := range f.clusters {
		c.Start()
	}
	for _, s := range f.syncers {
		s.Start()
	}
	r.confirmAndConverge()
}

// restoreHubUnderSyncers restores the server under syncers that run on: one comes back to a server that has written past
// what it last saw, the other to one that has not reached it.
func restoreHubUnderSyncers(t *testing.T, f *fleet) {
	r := newRestore(t, f, "under")
	r.copyHub()
	r.writeOn()
	f.syncers["east"].Pause()
	f.Stop()
	putBack(t, r.copied, f.Dir)
	f.Start()
	r.observeOnly("west", syncer.ReasonHubRestored)
	r.writePast()
	f.syncers["east"].Resume()
	r.confirmAndConverge()
}

// restoreHubFromBackup loses the server and makes it anew with `atoll restore`, from what `atoll backup` wrote while it ran.
// The syncers run all the time, with credentials of before.
func restoreHubFromBackup(t *testing.T, f *fleet) {
	r := newRestore(t, f, "backed")
	file := filepath.Join(t.TempDir(), "backup.tar")
	f.MustRun("backup", "-o", file)
	before := map[string]int64{}
	for name := range f.clusters {
		before[name] = heartbeatBelow(t, f, name)
	}
	r.writeOn()
	for name := range f.clusters {
		// The server may be one ahead of what the cluster had.
		framework.Eventually(t, patience, "a heartbeat of "+name+" is later than the backup", func() string {
			if now := heartbeatBelow(t, f, name); now < before[name]+2 {
				return fmt.Sprintf("%d, and at the backup %d", now, before[name])
			}
			return ""
		})
	}
	f.Kill()
	if err := os.Rename(f.Dir, f.Dir+"-lost"); err != nil {
		t.Fatal(err)
	}
	f.MustRun("restore", file, "--root-directory", f.Dir)
	f.Start()
	if first := r.write("restored"); first <= r.revision {
		t.Errorf("the restored server begins at revision %d, the one before ended at %d", first, r.revision)
	}
	r.stays.kubectl("delete", "service", "deleted-again", "--wait=false")
	r.confirmAndConverge()
}

// heartbeatBelow is the counter that a physical cluster shows.
func heartbeatBelow(t *testing.T, f *fleet, cluster string) int64 {
	t.Helper()
	lease, err := f.clusters[cluster].Clientset().CoordinationV1().Leases(workloadv1alpha1.HeartbeatNamespace).
		Get(t.Context(), "heartbeat-"+string(f.target(t, cluster).UID), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(lease.Annotations[workloadv1alpha1.HeartbeatCounterAnnotation], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// restored is a fleet that is restored, and two workspaces in it.
type restored struct {
	t *testing.T
	f *fleet
	// stays is in east all the time, moves goes from east to west after the copy.
	stays, moves *workspace
	ns           string // of stays in east
	movesNS      string // of moves
	copied       string
	revision     int64 // of the hub just before it was restored
}

func newRestore(t *testing.T, f *fleet, name string) *restored {
	r := &restored{t: t, f: f, stays: placed(t, f, name+"-stays", ""), moves: placed(t, f, name+"-moves", "")}
	r.ns, r.movesNS = r.stays.namespaceIn("east"), r.moves.namespaceIn("east")
	for _, service := range []string{"deleted-since", "deleted-again"} {
		r.stays.kubectl("create", "service", "clusterip", service, "--tcp=80")
		r.serviceBelow("east", service, true)
	}
	return r
}

func (r *restored) serviceBelow(cluster, service string, want bool) {
	r.t.Helper()
	serviceBelow(r.t, r.f, cluster, r.ns, service, want)
}

func serviceBelow(t *testing.T, f *fleet, cluster, ns, service string, want bool) {
	t.Helper()
	framework.Eventually(t, patience, fmt.Sprintf("Service %s in %s: %v", service, cluster, want), func() string {
		_, err := f.clusters[cluster].Clientset().CoreV1().Services(ns).Get(t.Context(), service, metav1.GetOptions{})
		switch {
		case err != nil && !apierrors.IsNotFound(err):
			return err.Error()
		case (err == nil) != want:
			return fmt.Sprintf("is there: %v", err == nil)
		}
		return ""
	})
}

func (r *restored) copyHub() {
	r.t.Helper()
	r.f.Stop()
	r.copied = copyOf(r.t, r.f.Dir)
	r.f.Start()
}

// writeOn does, and sees done in the physical clusters, what the copy does not know.
func (r *restored) writeOn() {
	r.t.Helper()
	r.stays.kubectl("scale", "deployment/"+r.stays.app, "--replicas=8")
	r.stays.kubectl("create", "service", "clusterip", "made-since", "--tcp=80")
	r.stays.kubectl("delete", "service", "deleted-since")
	r.moves.place("west")
	r.stays.spread(map[string]int{"east": 8})
	r.moves.spread(map[string]int{"west": 6})
	r.moves.gone("east")
	r.serviceBelow("east", "made-since", true)
	r.serviceBelow("east", "deleted-since", false)
	r.stays.rolledOut()
	r.moves.rolledOut()
	r.revision = r.write("before")
}

// write writes something that runs nowhere and returns the server's revision.
func (r *restored) write(value string) int64 {
	r.t.Helper()
	namespaces := r.f.Clients().Kube.CoreV1().Namespaces()
	ns, err := namespaces.Get(r.stays.ctx(), "default", metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	metav1.SetMetaDataAnnotation(&ns.ObjectMeta, "example.com/written", value)
	ns, err = namespaces.Update(r.stays.ctx(), ns, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		return 0
	}
	if err != nil {
		r.t.Fatal(err)
	}
	revision, err := strconv.ParseInt(ns.ResourceVersion, 10, 64)
	if err != nil {
		r.t.Fatal(err)
	}
	return revision
}

// writePast writes to the restored server until its revision is past that of before. Something is deleted, too.
func (r *restored) writePast() {
	r.t.Helper()
	first := r.write("past 0")
	if first >= r.revision {
		r.t.Fatalf("the restored server begins at revision %d, the one before ended at %d: nothing was restored", first, r.revision)
	}
	r.stays.kubectl("delete", "service", "deleted-again", "--wait=false")
	for i, revision := 1, first; revision <= r.revision; i++ {
		revision = r.write(fmt.Sprint("past ", i))
	}
}

// target reads a SyncTarget.
func (f *fleet) target(t *testing.T, name string) *workloadv1alpha1.SyncTarget {
	t.Helper()
	target := &workloadv1alpha1.SyncTarget{}
	if err := f.Clients().Objects.Get(client.In(t.Context(), "root"), ctrlclient.ObjectKey{Name: name}, target); err != nil {
		t.Fatalf("read SyncTarget %s: %v", name, err)
	}
	return target
}

func (r *restored) observeOnly(cluster, reason string) {
	r.t.Helper()
	observeOnly(r.t, r.f, cluster, reason)
}

func observeOnly(t *testing.T, f *fleet, cluster, reason string) {
	t.Helper()
	framework.Eventually(t, patience, cluster+" is only observed", func() string {
		c := meta.FindStatusCondition(f.target(t, cluster).Status.Conditions, workloadv1alpha1.SyncTargetObserveOnly)
		if c == nil || c.Status != metav1.ConditionTrue || c.Reason != reason {
			return fmt.Sprintf("condition is %+v", c)
		}
		return ""
	})
}

// differs waits until a SyncTarget shows that difference.
func differs(t *testing.T, f *fleet, cluster string, want *workloadv1alpha1.Difference) {
	t.Helper()
	framework.Eventually(t, patience, "the difference of "+cluster+" is known", func() string {
		return cmp.Diff(want, f.target(t, cluster).Status.Difference)
	})
}

// written lists what a syncer has written to a physical cluster: "<verb> <resource> <namespace>/<name>". Its own
// bookkeeping is left out.
func written(t *testing.T, f *fleet, cluster string) []string {
	t.Helper()
	var writes []string
	for _, e := range f.clusters[cluster].AuditEvents(framework.AuditFilter{}) {
		if strings.HasPrefix(e.UserAgent, "atoll") && e.Namespace != workloadv1alpha1.HeartbeatNamespace {
			writes = append(writes, fmt.Sprintf("%s %s %s/%s", e.Verb, e.Resource, e.Namespace, e.Name))
		}
	}
	return writes
}

// says waits until the conditions Synced and Available of a workspace's Deployment say that.
func (r *restored) says(what string, w *workspace, want string) {
	r.t.Helper()
	const path = `jsonpath={.status.conditions[?(@.type=="Synced")].status} {.status.conditions[?(@.type=="Synced")].reason}, Available {.status.conditions[?(@.type=="Available")].status}`
	framework.Eventually(r.t, patience, "conditions of "+what, func() string {
		return cmp.Diff(want, w.kubectl("get", "deployment", w.app, "-o", path))
	})
}

// confirmAndConverge follows a hub that was restored, and written past its old revision, to its end.
func (r *restored) confirmAndConverge() {
	t, f := r.t, r.f
	t.Helper()
	before := map[string]int{}
	for name := range f.clusters {
		r.observeOnly(name, syncer.ReasonHubRestored)
		before[name] = len(written(t, f, name))
	}
	service := func(name string) string { return "services " + r.ns + "/" + name }
	moved := func(deed string, resource string) string {
		return fmt.Sprintf("%s %s %s/%s", deed, resource, r.movesNS, r.moves.app)
	}
	east := &workloadv1alpha1.Difference{Delete: 1, Create: 7, Change: 1, Orphans: 1, Sample: []string{
		"delete " + service("deleted-again"),
		moved("create", "configmaps"), moved("create", "deployments"), "create namespaces " + r.movesNS, moved("create", "secrets"), moved("create", "serviceaccounts"),
		"change deployments " + r.ns + "/" + r.stays.app,
		"orphan " + service("made-since"),
	}}
	west := &workloadv1alpha1.Difference{Orphans: 6, Sample: []string{
		moved("orphan", "configmaps"), moved("orphan", "deployments"), "orphan namespaces " + r.movesNS, moved("orphan", "secrets"), moved("orphan", "serviceaccounts"),
	}}
	differs(t, f, "east", east)
	differs(t, f, "west", west)
	// What ran there before, by the restored state, runs nowhere; its user is told that nobody knows.
	r.says("moves", r.moves, "False ObserveOnly, Available Unknown")
	// It goes on observing, and people go on writing.
	r.stays.kubectl("create", "service", "clusterip", "made-meanwhile", "--tcp=80")
	east.Create++
	differs(t, f, "east", east)
	status := f.MustRun("cluster", "status", "east")
	for _, want := range append([]string{"ObserveOnly is True", "HubRestored", "cluster confirm east restored", "DELETE   CREATE   CHANGE   LEAVE AS ORPHANS\n  1        8        1        1"}, east.Sample...) {
		if !strings.Contains(status, want) {
			t.Errorf("cluster status does not say %q:\n%s", want, status)
		}
	}
	for name := range f.clusters {
		if writes := written(t, f, name)[before[name]:]; len(writes) > 0 {
			t.Errorf("the syncer wrote to %s before anybody confirmed: %v", name, writes)
		}
	}

	for name := range f.clusters {
		f.MustRun("cluster", "confirm", name, "restored")
	}
	r.serviceBelow("east", "made-meanwhile", true)
	r.serviceBelow("east", "deleted-since", true)
	r.serviceBelow("east", "deleted-again", false)
	r.stays.spread(map[string]int{"east": 6})
	framework.Eventually(t, patience, "what was moved runs where it was, and where it went", func() string {
		if east, west := r.moves.ready("east"), r.moves.ready("west"); east != 6 || west != 6 {
			return fmt.Sprintf("%d pods in east, %d in west", east, west)
		}
		return ""
	})
	r.stays.rolledOut()
	r.moves.rolledOut()
	r.says("moves", r.moves, " , Available True")
	for name := range f.clusters {
		var deletes, want []string
		for _, w := range written(t, f, name)[before[name]:] {
			if strings.HasPrefix(w, "delete") {
				deletes = append(deletes, w)
			}
		}
		if name == "east" {
			want = []string{"delete " + service("deleted-again")}
		}
		if !slices.Equal(deletes, want) {
			t.Errorf("the syncer deleted in %s: %q, want %q", name, deletes, want)
		}
	}
	r.stays.orphan("east", "services "+r.ns+"/made-since")
	r.stays.orphan("west", "deployments "+r.movesNS+"/"+r.moves.app)
	for name := range f.clusters {
		if d := f.target(t, name).Status.Difference; d != nil {
			t.Errorf("%s was confirmed and still shows the difference %+v", name, d)
		}
	}

	// An administrator of the clusters looks at them and deletes them.
	if err := f.clusters["east"].Clientset().CoreV1().Services(r.ns).Delete(t.Context(), "made-since", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := f.clusters["west"].Clientset().CoreV1().Namespaces().Delete(t.Context(), r.movesNS, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for name := range f.clusters {
		noOrphans(t, f, name)
	}
}

// orphan waits until a SyncTarget's condition names something that nothing asks for.
func (w *workspace) orphan(cluster, what string) {
	w.t.Helper()
	framework.Eventually(w.t, patience, what+" of "+cluster+" is reported", func() string {
		c := meta.FindStatusCondition(w.f.target(w.t, cluster).Status.Conditions, syncer.ConditionOrphans)
		if c == nil || c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, what) {
			return fmt.Sprintf("condition is %+v", c)
		}
		return ""
	})
}

func noOrphans(t *testing.T, f *fleet, cluster string) {
	t.Helper()
	framework.Eventually(t, patience, "nothing is left over in "+cluster, func() string {
		c := meta.FindStatusCondition(f.target(t, cluster).Status.Conditions, syncer.ConditionOrphans)
		if c != nil && c.Status != metav1.ConditionFalse {
			return fmt.Sprintf("condition is %+v", c)
		}
		return ""
	})
}

// leafGone waits until the hub has forgotten a Service that was deleted: the tombstone goes after what is below.
func leafGone(t *testing.T, f *fleet, cluster, namespace, name string) {
	t.Helper()
	framework.Eventually(t, patience, "the hub has forgotten Service "+name, func() string {
		mirror := client.In(t.Context(), logicalcluster.Name(mirrorOf(t, f, cluster)))
		if _, err := f.Clients().Kube.CoreV1().Services(namespace).Get(mirror, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("reading its leaf: %v", err)
		}
		return ""
	})
}

// restorePhysical restores east from a backup.
func restorePhysical(t *testing.T, f *fleet) {
	w := placed(t, f, "backup", "")
	east := f.clusters["east"]
	ns := w.namespaceIn("east")
	w.kubectl("create", "service", "clusterip", "deleted-since", "--tcp=80")
	serviceBelow(t, f, "east", ns, "deleted-since", true)

	east.Stop()
	backup := copyOf(t, east.Dir)
	east.Start()
	w.kubectl("scale", "deployment/"+w.app, "--replicas=8")
	w.kubectl("create", "service", "clusterip", "made-since", "--tcp=80")
	w.kubectl("delete", "service", "deleted-since")
	w.spread(map[string]int{"east": 8})
	serviceBelow(t, f, "east", ns, "made-since", true)
	serviceBelow(t, f, "east", ns, "deleted-since", false)
	w.rolledOut()
	leafGone(t, f, "east", ns, "deleted-since")

	// Somebody writes there past the old revision as well, before anybody else is back.
	revision := revisionOf(t, east)
	east.Stop()
	putBack(t, backup, east.Dir)
	for _, s := range f.syncers {
		s.Pause()
	}
	before := len(written(t, f, "east"))
	east.Start()
	for past := int64(0); past <= revision; {
		past = revisionOf(t, east)
	}
	for _, s := range f.syncers {
		s.Resume()
	}
	observeOnly(t, f, "east", syncer.ReasonPhysicalRestored)
	want := &workloadv1alpha1.Difference{Create: 1, Change: 1, Orphans: 1, Sample: []string{
		"create services " + ns + "/made-since", "change deployments " + ns + "/" + w.app, "orphan services " + ns + "/deleted-since",
	}}
	differs(t, f, "east", want)
	w.kubectl("create", "service", "clusterip", "made-meanwhile", "--tcp=80")
	want.Create, want.Sample = 2, append([]string{"create services " + ns + "/made-meanwhile"}, want.Sample...)
	differs(t, f, "east", want)
	if writes := written(t, f, "east")[before:]; len(writes) > 0 {
		t.Errorf("the syncer wrote to east before anybody confirmed: %v", writes)
	}

	f.MustRun("cluster", "confirm", "east", "restored")
	w.spread(map[string]int{"east": 8})
	serviceBelow(t, f, "east", ns, "made-since", true)
	serviceBelow(t, f, "east", ns, "made-meanwhile", true)
	w.rolledOut()
	w.orphan("east", "services "+ns+"/deleted-since")
	for _, write := range written(t, f, "east")[before:] {
		if strings.HasPrefix(write, "delete") {
			t.Errorf("the syncer did %q in east, where nothing was to be deleted", write)
		}
	}
	if err := east.Clientset().CoreV1().Services(ns).Delete(t.Context(), "deleted-since", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	noOrphans(t, f, "east")
}

// revisionOf writes to a physical cluster and returns its revision.
func revisionOf(t *testing.T, p *framework.Physical) int64 {
	t.Helper()
	cm, err := p.Clientset().CoreV1().ConfigMaps("default").Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "revision-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	revision, err := strconv.ParseInt(cm.ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// copyOf copies the directory of a process that does not run, as an administrator would.
func copyOf(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if out, err := exec.Command("cp", "-a", dir, to).CombinedOutput(); err != nil {
		t.Fatalf("copy %s: %v\n%s", dir, err, out)
	}
	return to
}

// putBack puts a copy in the place of what it is a copy of.
func putBack(t *testing.T, copied, dir string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", copied, dir).CombinedOutput(); err != nil {
		t.Fatalf("put %s back: %v\n%s", copied, err, out)
	}
}
