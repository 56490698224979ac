package nodes

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/apis/core"

	"atoll.dev/atoll/internal/classes"
)

// parse reads Nodes: "east:1@20!" is the life 1 of east, as of revision 20, cordoned; "+east:1@20" is a row of the workspace.
func parse(t *testing.T, text string) (nodes []shown) {
	t.Helper()
	for _, field := range strings.Fields(text) {
		field, row := strings.CutPrefix(field, "+")
		field, cordoned := strings.CutSuffix(field, "!")
		id, revision, _ := strings.Cut(field, "@")
		name, _, _ := strings.Cut(id, ":")
		nodes = append(nodes, shown{&core.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(id), ResourceVersion: revision}, Spec: core.NodeSpec{Unschedulable: cordoned}}, row})
	}
	return nodes
}

// TestDifference: what a client is told, and at which revisions.
func TestDifference(t *testing.T) {
	for name, tc := range map[string]struct {
		reason        string
		before, after string
		at, cause     uint64
		want          string
		now           uint64
	}{
		"nothing":  {reason: "the same", before: "a:1@5", after: "a:1@5", at: 10, cause: 12, now: 10},
		"unseen":   {reason: "a write that no Node shows", before: "a:1@5", after: "a:1@12", at: 10, cause: 12, now: 10},
		"changed":  {reason: "with the revision it has", before: "a:1@5", after: "a:1@12!", at: 10, cause: 12, want: "MODIFIED a 12", now: 12},
		"ahead":    {reason: "a cache may show what is not told yet", before: "a:1@5", after: "a:1@14!", at: 10, cause: 12, want: "MODIFIED a 14", now: 14},
		"added":    {reason: "with that of what let it appear", after: "a:1@5", at: 10, cause: 12, want: "ADDED a 12", now: 12},
		"deleted":  {reason: "the same", before: "a:1@5", at: 10, cause: 12, want: "DELETED a 12", now: 12},
		"replaced": {reason: "another cluster of the name is another node", before: "a:1@5", after: "a:2@6", at: 10, cause: 12, want: "DELETED a 11,ADDED a 12", now: 12},
		"several": {
			reason: "who goes on from one of the first has not seen the others: only the last has the revision of all",
			before: "a:1@5 b:1@6 d:1@7", after: "b:1@20! c:1@8 d:1@15!", at: 10, cause: 20,
			want: "MODIFIED d 15,DELETED a 19,MODIFIED b 19,ADDED c 20", now: 20,
		},
		"row": {reason: "who writes it next names the revision that is stored", after: "+a:1@11", at: 10, cause: 12, want: "ADDED a 11", now: 11},
		"rows": {
			reason: "they keep theirs, and nothing that is told with the last comes after it",
			before: "a:1@5 b:1@6 c:1@7", after: "+a:2@12 b:1@6 +d:1@11", at: 10, cause: 12,
			want: "DELETED a 11,ADDED d 11,DELETED c 11,ADDED a 12", now: 12,
		},
		"row seen again": {reason: "it was written before, and what hid it is gone", after: "+a:1@5", at: 10, cause: 12, want: "ADDED a 12", now: 12},
		"never back":     {reason: "a change that is told late", before: "a:1@5", at: 30, cause: 12, want: "DELETED a 30", now: 30},
	} {
		t.Run(name, func(t *testing.T) {
			events, now, err := difference(parse(t, tc.before), parse(t, tc.after), tc.at, tc.cause)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range events {
				n := e.Object.(*core.Node)
				got = append(got, fmt.Sprintf("%s %s %s", e.Type, n.Name, n.ResourceVersion))
			}
			if strings.Join(got, ",") != tc.want || now != tc.now {
				t.Errorf("%s: told %v at %d, want %v at %d", tc.reason, got, now, tc.want, tc.now)
			}
		})
	}
}

// TestChanges: who is told of what, and what is not known any more.
func TestChanges(t *testing.T) {
	c := newChanges()
	for _, resource := range sources {
		c.begin(resource, 100)
	}
	shop := &listener{wake: make(chan struct{}, 1), after: 100, of: schema.GroupResource{Resource: "nodes"}}
	c.listen(shop, []logicalcluster.Name{"shop", "root"})
	c.tell(syncTargets, "MODIFIED", "bank", 101)
	if got := c.heard(shop); got != (told{all: 100}) || len(shop.wake) > 0 {
		t.Errorf("of another workspace it heard %v", got)
	}
	c.tell(syncTargets, "MODIFIED", "root", 103)
	c.tell(policies, "DELETED", "shop", 102)
	if got := c.heard(shop); got != (told{first: 102, last: 103, all: 100}) {
		t.Errorf("of its own it heard %v", got)
	}
	c.tell(logicalClusters, "BOOKMARK", "", 110)
	c.tell(policies, "BOOKMARK", "", 109)
	if got := c.heard(shop); got != (told{all: 103}) {
		t.Errorf("with bookmarks it heard %v", got)
	}
	for revision, want := range map[uint64]bool{99: true, 100: true, 101: true, 102: false, 103: false} {
		if got := c.forgets(shop, shop.chain, revision); got != want {
			t.Errorf("since %d something is forgotten: %v, want %v", revision, got, want)
		}
	}
	if c.forgets(shop, []logicalcluster.Name{"bank"}, 100) {
		t.Error("what shop loses bank has forgotten")
	}
	for i := range maxDeletions {
		c.tell(policies, "DELETED", "bank", 200+uint64(i))
	}
	if !c.forgets(shop, shop.chain, 101) || c.forgets(shop, shop.chain, 102) {
		t.Errorf("deletions are kept for ever, or forgotten in silence: %d, known since %d", len(c.lost.deletions), c.lost.known)
	}
	c.begin(policies, 5000)
	if !c.heard(shop).broken || !c.forgets(shop, shop.chain, 4999) {
		t.Error("between two feeds nothing was missed")
	}
	storage, runtimes := classes.All[0].GVR.GroupResource(), classes.All[3].GVR.GroupResource()
	c.begin(storage, 5000)
	rows := &listener{wake: make(chan struct{}, 1), after: 5000, of: storage}
	c.listen(rows, []logicalcluster.Name{"shop", "root"})
	c.heard(shop)
	c.begin(runtimes, 5001)
	c.tell(storage, "DELETED", "root", 5002)
	c.tell(runtimes, "DELETED", "shop", 5003)
	if got := c.heard(rows); got.first != 0 || got.broken || c.forgets(rows, rows.chain, 5001) {
		t.Errorf("of rows elsewhere, and of others, it heard %v", got)
	}
	c.tell(storage, "DELETED", "shop", 5004)
	if got := c.heard(rows); got.first != 5004 || !c.forgets(rows, rows.chain, 5003) || c.forgets(rows, rows.chain, 5004) {
		t.Errorf("of its own rows it heard %v", got)
	}
	if got := c.heard(shop); got.first != 0 {
		t.Errorf("of rows that it does not watch it heard %v", got)
	}
	c.listen(shop, nil)
	c.listen(rows, nil)
	if len(c.listeners) > 0 {
		t.Errorf("left behind: %v", slices.Collect(maps.Keys(c.listeners)))
	}
}
