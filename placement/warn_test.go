package placement

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
)

func TestWhyNowhere(t *testing.T) {
	deployments := schema.GroupResource{Group: "apps", Resource: "deployments"}
	daemonSets := schema.GroupResource{Group: "apps", Resource: "daemonsets"}
	services := schema.GroupResource{Resource: "services"}
	tests := map[string]struct {
		resource        schema.GroupResource
		namespace, name string
		wish            []string // pairs
		want            string
		reason          string
	}{
		"placed":        {resource: deployments, namespace: "front", name: "web", reason: "its namespace is on east"},
		"good":          {resource: deployments, namespace: "front", name: "web", wish: []string{"clusters", "west"}},
		"runs":          {resource: deployments, namespace: "front", name: "web", wish: []string{"clusters", "wset"}, want: `Change placement.atoll.dev/clusters of this object: no cluster is registered as "wset"; until then it stays on "east".`},
		"own":           {resource: deployments, namespace: "front", name: "api", wish: []string{"clusters", "wset"}, want: `Change placement.atoll.dev/clusters of this object: no cluster is registered as "wset"; until then it stays on "west".`, reason: "it has a Placement of its own"},
		"new":           {resource: deployments, namespace: "front", name: "new", wish: []string{"clusters", "wset"}, want: `Change placement.atoll.dev/clusters of this object: no cluster is registered as "wset"; until then it is placed nowhere.`, reason: "it runs nowhere"},
		"new, half":     {resource: deployments, namespace: "front", name: "new", wish: []string{"clusters", "west,wset"}, want: `Change placement.atoll.dev/clusters of this object: no cluster is registered as "wset"; until then it is on "west".`},
		"on purpose":    {resource: deployments, namespace: "front", name: "web", wish: []string{"clusters", ""}, want: `Placed nowhere, as the empty placement.atoll.dev/clusters of this object asks: name clusters there, or remove it. What runs on "east" is taken away.`},
		"never ran":     {resource: deployments, namespace: "front", name: "new", wish: []string{"clusters", ""}, want: `Placed nowhere, as the empty placement.atoll.dev/clusters of this object asks: name clusters there, or remove it.`, reason: "nothing is taken away"},
		"by another":    {resource: deployments, namespace: "side", name: "web", want: `Change placement.atoll.dev/clusters of namespace "side": no cluster is registered as "esat"; until then it is placed nowhere.`, reason: "the mistake is its namespace's"},
		"wish given up": {resource: deployments, namespace: "side", name: "left", want: `Change placement.atoll.dev/clusters of namespace "side": no cluster is registered as "esat"; until then it stays on "west".`, reason: "the mistake is its namespace's, and moves nothing"},

		"a Service":                {resource: services, namespace: "front", name: "web", wish: []string{"clusters", "wset"}, want: `Change placement.atoll.dev/clusters of this object: no cluster is registered as "wset"; until then it stays on "east".`, reason: "traffic would go on where nobody wants it"},
		"a new Service":            {resource: services, namespace: "new", name: "web", wish: []string{"clusters", "wset"}, want: `Change placement.atoll.dev/clusters of this object: no cluster is registered as "wset"; until then it is placed nowhere.`, reason: "it would be nowhere"},
		"a Service without a wish": {resource: services, namespace: "side", name: "web", reason: "the workloads behind it tell what is wrong with their namespace"},

		"not carried": {resource: daemonSets, namespace: "front", name: "agent", want: `The syncer of "east" does not carry daemonsets.apps, which are not placed there: ` + upgrade + `.`, reason: "it would wait for nobody"},

		"namespace":         {resource: namespaces, name: "front", wish: []string{"clusters", "wset"}, want: `Change placement.atoll.dev/clusters of namespace "front": no cluster is registered as "wset"; until then it stays on "east".`},
		"malformed":         {resource: namespaces, name: "front", wish: []string{"max-clusters", "none"}, want: `Correct placement.atoll.dev/max-clusters="none" of namespace "front": want a positive number, for instance 2; until then it stays on "east".`},
		"empty namespace":   {resource: namespaces, name: "new", wish: []string{"clusters", "wset"}, want: `Change placement.atoll.dev/clusters of namespace "new": no cluster is registered as "wset"; until then it is placed nowhere.`},
		"good namespace":    {resource: namespaces, name: "front", wish: []string{"clusters", "west"}},
		"without a wish":    {resource: namespaces, name: "side", reason: "nothing is wrong with it"},
		"takes all away":    {resource: namespaces, name: "front", wish: []string{"clusters", ""}, want: `Placed nowhere, as the empty placement.atoll.dev/clusters of namespace "front" asks: name clusters there, or remove it. What runs on "east" is taken away.`, reason: "a variable that was not set empties it, too"},
		"nowhere, purposed": {resource: namespaces, name: "new", wish: []string{"clusters", ""}, reason: "somebody asked for it, and nothing is there"},

		"workspace":           {resource: logicalClusters, name: "cluster", wish: []string{"clusters", "wset"}, want: `Change placement.atoll.dev/clusters of this workspace's LogicalCluster "cluster": no cluster is registered as "wset"; until then what is placed stays where it is.`},
		"workspace, half":     {resource: logicalClusters, name: "cluster", wish: []string{"clusters", "west,wset"}, want: `Change placement.atoll.dev/clusters of this workspace's LogicalCluster "cluster": no cluster is registered as "wset"; until then what is placed stays where it is.`},
		"policy":              {resource: policies, name: "some", wish: []string{"clusters", "east", "split", "Odd"}, want: `Correct placement.atoll.dev/split="Odd" of this PlacementPolicy's default: want Even, Duplicate, or Weighted:east=3,west=1; until then what is placed by it stays where it is, and nothing new is.`},
		"good policy":         {resource: policies, name: "some", wish: []string{"clusters", "wset"}, reason: "that may be registered below"},
		"good workspace":      {resource: logicalClusters, name: "cluster", wish: []string{"clusters", "*"}},
		"workspace, no wish":  {resource: logicalClusters, name: "cluster"},
		"workspace, purposed": {resource: logicalClusters, name: "cluster", wish: []string{"clusters", ""}, want: `Placed nowhere, as the empty placement.atoll.dev/clusters of this workspace's LogicalCluster "cluster" asks: name clusters there, or remove it. What runs because of this workspace's wish, if anything, is taken away.`},
	}
	w, r := newShop()
	w.addTarget("root", "west")
	for _, target := range w.targets {
		target.Status.Version = "v1.36.3" // it was heard of, and says nothing of DaemonSets
	}
	w.namespaces[front].Annotations["placement.atoll.dev/clusters"] = "east"
	w.addDeployment("shop", "front", "api")["placement.atoll.dev/clusters"] = "west"
	w.roots[front][placementv1alpha1.PlacedObject{Resource: "services", Name: "web"}] = map[string]string{}
	w.addNamespace("shop", "new")
	w.addNamespace("shop", "side").Annotations["placement.atoll.dev/clusters"] = "esat"
	w.addDeployment("shop", "side", "left")["placement.atoll.dev/clusters"] = "west"
	quiesce(t, w, r)
	w.run()
	writes := w.writes
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var annotations map[string]string
			if tc.wish != nil {
				annotations = wishing(tc.wish...)[0].Annotations
			}
			if got := whyNowhere(w, "shop", tc.resource, tc.namespace, tc.name, annotations); got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
	if w.writes != writes {
		t.Error("something was written")
	}
}

// TestUsageOfWhatIsGone: an event of a Placement that is gone has what it named, which counts no more.
func TestUsageOfWhatIsGone(t *testing.T) {
	p := &Placer{usage: newUsage()}
	is := func(name string, clusters ...types.UID) *placementv1alpha1.Placement {
		p := &placementv1alpha1.Placement{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, uid := range clusters {
			p.Spec.Clusters = append(p.Spec.Clusters, placementv1alpha1.PlacedCluster{UID: uid})
		}
		return p
	}
	both, moved := is("web", "east", "west"), is("web", "west")
	for _, step := range []struct {
		event client.Event[*placementv1alpha1.Placement]
		want  map[types.UID]int
	}{
		{client.Event[*placementv1alpha1.Placement]{New: is("db", "east")}, map[types.UID]int{"east": 1}},
		{client.Event[*placementv1alpha1.Placement]{New: both}, map[types.UID]int{"east": 2, "west": 1}},
		{client.Event[*placementv1alpha1.Placement]{Old: both, New: moved}, map[types.UID]int{"east": 1, "west": 1}},
		{client.Event[*placementv1alpha1.Placement]{Old: moved}, map[types.UID]int{"east": 1}},
		{client.Event[*placementv1alpha1.Placement]{Old: is("db", "east")}, map[types.UID]int{}},
	} {
		p.count(step.event)
		if diff := cmp.Diff(step.want, p.usage.count); diff != "" {
			t.Errorf("after %v became %v (-want +got):\n%s", step.event.Old, step.event.New, diff)
		}
	}
	// What was decided and is gone before it was seen counts no more, either.
	key := client.Key{Name: "web"}
	p.usage.decide(key, func(func(types.UID) int) []types.UID { return []types.UID{"east"} })
	p.count(client.Event[*placementv1alpha1.Placement]{Old: moved})
	if len(p.usage.count)+len(p.usage.pending)+len(p.usage.seen) != 0 {
		t.Errorf("of nothing %v is counted, %v pending, %v seen", p.usage.count, p.usage.pending, p.usage.seen)
	}
}

func TestPlacedOn(t *testing.T) {
	c := &Placer{usage: newUsage()}
	for key, uids := range map[client.Key][]types.UID{
		{Cluster: "shop", Name: "front"}: {"east"}, {Cluster: "shop", Name: "back"}: {"west", "east"},
		{Cluster: "bank", Name: "default"}: {"east"}, {Cluster: "bank", Name: "gone"}: {"east"},
	} {
		c.usage.observe(key, uids, true)
	}
	c.usage.observe(client.Key{Cluster: "bank", Name: "gone"}, nil, false)
	for target, want := range map[types.UID][2]int{"east": {3, 2}, "west": {1, 1}, "north": {}} {
		if placements, workspaces := c.PlacedOn(target); placements != want[0] || workspaces != want[1] {
			t.Errorf("%s: %d placements in %d workspaces, want %v", target, placements, workspaces, want)
		}
	}
}

// TestRefusedPods: of what is placed the clusters count that it is placed on; of what is not, all have to refuse it; and of a pod that runs, its own.
func TestRefusedPods(t *testing.T) {
	w, r := newShop()
	w.addTarget("root", "west")
	w.namespaces[front].Annotations["placement.atoll.dev/clusters"] = "east"
	w.addNamespace("shop", "new")
	quiesce(t, w, r)
	for key, target := range w.targets {
		target.Status.Mirror = "mirror-" + key.Name
		if key.Name == "west" {
			target.Spec.PodSecurity = "privileged"
		}
	}
	deployment := func(namespace string, onHost bool) ctrlclient.Object {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
		d.Spec.Template.Spec.HostNetwork = onHost
		return d
	}
	pod := func(mirror string) ctrlclient.Object {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "new", Name: "p", Labels: map[string]string{workloadv1alpha1.MirrorLabel: mirror}}, Spec: corev1.PodSpec{HostNetwork: true}}
	}
	deployments, pods := schema.GroupResource{Group: "apps", Resource: "deployments"}, schema.GroupResource{Resource: "pods"}
	all := func(level string) func() {
		return func() {
			for _, target := range w.targets {
				target.Spec.PodSecurity = level
			}
		}
	}
	for _, tc := range []struct {
		reason   string
		change   func()
		resource schema.GroupResource
		object   ctrlclient.Object
		want     string // the clusters of the only sentence
	}{
		{"it is on east", nil, deployments, deployment("front", true), `"east"`},
		{"east takes it", nil, deployments, deployment("front", false), ""},
		{"it makes no pods", nil, schema.GroupResource{Resource: "configmaps"}, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "front"}}, ""},
		{"it may go to west", nil, deployments, deployment("new", true), ""},
		{"it runs in east", nil, pods, pod("mirror-east"), `"east"`},
		{"it runs in west", nil, pods, pod("mirror-west"), ""},
		{"its cluster has gone", nil, pods, pod("mirror-north"), ""},
		{"it may go nowhere", all(""), deployments, deployment("new", true), `"east", "west"`},
		{"the floor of all is lower", all("privileged"), deployments, deployment("new", true), ""},
	} {
		if tc.change != nil {
			tc.change()
		}
		got, err := refusedPods(w, "shop", tc.resource, tc.object.GetNamespace(), tc.object)
		if err != nil || (len(got) == 0) != (tc.want == "") || len(got) > 1 || tc.want != "" && !strings.Contains(got[0], "clusters "+tc.want+",") {
			t.Errorf("%s: got %q, %v, want %s", tc.reason, got, err, tc.want)
		}
	}
}
