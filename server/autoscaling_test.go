package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/server/autoscaling"
)

// scaling is a server whose Deployment web has three pods that serve, in two physical clusters, and the controller under a clock of the test's.
type scaling struct {
	*streaming
	*measuring
	clk *clocktesting.FakeClock
	// looks is how often that of shop which is called web was read.
	looks atomic.Int64
}

// counting counts reads of a path.
type counting struct {
	http.RoundTripper
	path  string
	reads *atomic.Int64
}

func (c counting) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodGet && req.URL.Path == c.path {
		c.reads.Add(1)
	}
	return c.RoundTripper.RoundTrip(req)
}

func startScaling(t *testing.T) *scaling {
	s, m := startMeasuring(t)
	for name, kube := range map[string]kubernetes.Interface{"web-1": s.east, "web-2": s.east, "web-3": s.west} {
		row, err := kube.CoreV1().Pods(inEast).Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		since := metav1.NewTime(time.Now().Add(-time.Hour))
		row.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &since, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: since}}}
		_, err = kube.CoreV1().Pods(inEast).UpdateStatus(t.Context(), row, metav1.UpdateOptions{})
		must(t, err)
	}
	sc := &scaling{streaming: s, measuring: m, clk: clocktesting.NewFakeClock(time.Now())}
	sc.replicas(t, 3)
	runController(t, s.running, func(_ *client.Clients, i *client.Informers) (*autoscaling.Controller, error) {
		config := rest.CopyConfig(s.LoopbackConfig())
		path := clustersPrefix + string(shop) + "/apis/autoscaling/v2/namespaces/" + team + "/horizontalpodautoscalers/web"
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counting{next, path, &sc.looks} })
		c, err := client.New(config)
		must(t, err)
		return autoscaling.New(c, i, sc.clk)
	})
	return sc
}

// use has each pod use so much CPU from now on.
func (s *scaling) use(cpu string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.says[east] = measured("web-1", cpu, "1Mi") + "," + measured("web-2", cpu, "1Mi")
	s.says[west] = measured("web-3", cpu, "1Mi")
}

// goes has a cluster answer no more, or again.
func (s *scaling) goes(mirror logicalcluster.Name, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away[mirror] = why
}

// replicas has web of shop have so many, as somebody who scales it by hand.
func (s *scaling) replicas(t *testing.T, n int32) {
	t.Helper()
	_, err := s.shop.AppsV1().Deployments(team).Patch(t.Context(), "web", types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n), metav1.PatchOptions{})
	must(t, err)
}

// scaler is one of web that has each pod use 50m of CPU, and waits for nothing.
func scaler(change func(*autoscalingv2.HorizontalPodAutoscalerSpec)) *autoscalingv2.HorizontalPodAutoscaler {
	hpa := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, MaxReplicas: 20,
		Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
			Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: ptr.To(apiresource.MustParse("50m"))},
		}}},
		Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: ptr.To(int32(0))}},
	}}
	if change != nil {
		change(&hpa.Spec)
	}
	return hpa
}

func makeScaler(t *testing.T, kube kubernetes.Interface, namespace string, hpa *autoscalingv2.HorizontalPodAutoscaler) {
	t.Helper()
	_, err := kube.AutoscalingV2().HorizontalPodAutoscalers(namespace).Create(t.Context(), hpa, metav1.CreateOptions{})
	must(t, err)
}

// has waits until web of shop has so many replicas, while time passes.
func (s *scaling) has(t *testing.T, why string, want int32) {
	t.Helper()
	waitRuns(t, s.clk, fmt.Sprintf("web has %d replicas: %s", want, why), func() (string, bool) {
		d, err := s.shop.AppsV1().Deployments(team).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err.Error(), false
		}
		return fmt.Sprintf("%d, %s", *d.Spec.Replicas, said(t, s.shop, team, "web")), *d.Spec.Replicas == want
	})
}

// said are the conditions of a scaler.
func said(t *testing.T, kube kubernetes.Interface, namespace, name string) string {
	t.Helper()
	hpa, err := kube.AutoscalingV2().HorizontalPodAutoscalers(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, c := range hpa.Status.Conditions {
		all = append(all, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return strings.Join(all, "; ")
}

// saying waits until a scaler of shop says something in a condition, while time passes.
func (s *scaling) saying(t *testing.T, name string, words ...string) {
	t.Helper()
	waitRuns(t, s.clk, name+" says "+strings.Join(words, ", "), func() (string, bool) {
		is := said(t, s.shop, team, name)
		for _, w := range words {
			if !strings.Contains(is, w) {
				return is, false
			}
		}
		return is, true
	})
}

// passes lets time pass in which web is looked at, and all is written that follows.
func (s *scaling) passes(t *testing.T) {
	t.Helper()
	before := s.looks.Load()
	waitRuns(t, s.clk, "web is looked at", func() (string, bool) {
		now := s.looks.Load()
		return fmt.Sprintf("%d looks after %d", now, before), now >= before+3 // the last has only begun
	})
}

// TestAutoscaling: a Deployment has as many replicas as what its pods use in all physical clusters needs, and not fewer because of what is not known; another workspace's of that name is
// left alone, as is what is in a mirror.
func TestAutoscaling(t *testing.T) {
	s := startScaling(t)
	s.makeNamespace(t, bank, team)
	others := map[string]kubernetes.Interface{"bank": s.in(t, bank), "a mirror": s.in(t, east)}
	s.makeDeployment(t, bank, team, 2, nil, nil)
	makeScaler(t, others["bank"], team, scaler(nil))
	makeScaler(t, others["a mirror"], inEast, scaler(nil))

	s.use("100m")
	makeScaler(t, s.shop, team, scaler(nil))
	s.has(t, "three use twice as much", 6)
	s.saying(t, "web", "AbleToScale=True ReadyForNewScale", "ScalingActive=True ValidMetricFound", "ScalingLimited=False DesiredWithinRange")
	hpa, err := s.shop.AutoscalingV2().HorizontalPodAutoscalers(team).Get(t.Context(), "web", metav1.GetOptions{})
	must(t, err)
	if st := hpa.Status; st.LastScaleTime == nil || st.CurrentReplicas != 6 || st.DesiredReplicas != 6 || len(st.CurrentMetrics) != 1 || st.CurrentMetrics[0].Resource.Current.AverageValue.String() != "100m" {
		t.Errorf("the status is %+v", st)
	}
	d, err := s.shop.AppsV1().Deployments(team).Get(t.Context(), "web", metav1.GetOptions{})
	must(t, err)
	if !strings.Contains(fmt.Sprint(d.ManagedFields), "scale") {
		t.Errorf("it was written by %v, want its scale", d.ManagedFields)
	}
	waitFor(t, time.Minute, "an Event tells of it", func() (string, bool) {
		list, err := s.shop.CoreV1().Events(team).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=SuccessfulRescale"})
		if err != nil || len(list.Items) == 0 {
			return fmt.Sprint(err), false
		}
		e := list.Items[0]
		return fmt.Sprintf("%+v", e), e.InvolvedObject.Kind == "HorizontalPodAutoscaler" && e.InvolvedObject.UID == hpa.UID && e.Message == "New size: 6; reason: cpu resource above target"
	})

	// By what is known two would do, and by what is away nobody knows.
	s.use("1m")
	s.goes(west, errors.New(`physical cluster "us-west-1" does not answer`))
	s.saying(t, "web", "ScalingLimited=True MissingMetrics", "us-west-1")
	s.passes(t)
	s.has(t, "one cluster is away", 6)
	s.goes(east, errors.New(`physical cluster "us-east-1" does not answer`))
	s.saying(t, "web", "ScalingActive=False FailedGetResourceMetric", `"us-east-1" does not answer`)
	s.passes(t)
	s.has(t, "both are away", 6)

	s.goes(west, nil)
	s.goes(east, nil)
	s.has(t, "all are there, and use little", 1)

	// Somebody stops it: nobody starts it again.
	s.replicas(t, 0)
	s.saying(t, "web", "ScalingActive=False ScalingDisabled")
	s.replicas(t, 25)
	s.has(t, "there are more than there may be", 20)

	for name, kube := range others {
		namespace := team
		if name == "a mirror" {
			namespace = inEast
		}
		d, err := kube.AppsV1().Deployments(namespace).Get(t.Context(), "web", metav1.GetOptions{})
		must(t, err)
		if *d.Spec.Replicas != 2 {
			t.Errorf("web in %s has %d replicas, want 2 as ever", name, *d.Spec.Replicas)
		}
		switch is := said(t, kube, namespace, "web"); {
		case name == "a mirror" && is != "":
			t.Errorf("the one in %s says %s", name, is)
		case name == "bank" && !strings.Contains(is, "no metrics returned from resource metrics API"):
			t.Errorf("the one in %s says %s, want that nothing is known of its pods", name, is)
		}
	}
}

// TestAutoscalingOfTheLost: a physical cluster that reports a pod and shows none keeps what it is of from being made smaller, by its name; once it is known to be away, a pod that had not begun there keeps nobody from growing.
func TestAutoscalingOfTheLost(t *testing.T) {
	s := startScaling(t)
	g := s.ground(t)
	target := &workloadv1alpha1.SyncTarget{}
	must(t, g.objects.Get(client.In(t.Context(), "root"), types.NamespacedName{Name: "us-west-1"}, target))
	g.status(t, "root", target, func(st *workloadv1alpha1.SyncTargetStatus) {
		st.CarriedResources = []string{"pods"}
	})
	must(t, s.west.CoreV1().Pods(inEast).Delete(t.Context(), "web-3", metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}))
	leaf, err := s.in(t, west).AppsV1().Deployments(inEast).Get(t.Context(), "web", metav1.GetOptions{})
	must(t, err)
	leaf.Status.Replicas = 1
	_, err = s.in(t, west).AppsV1().Deployments(inEast).UpdateStatus(t.Context(), leaf, metav1.UpdateOptions{})
	must(t, err)

	s.use("1m")
	makeScaler(t, s.shop, team, scaler(nil))
	s.saying(t, "web", "ScalingLimited=True MissingMetrics", "pods of physical cluster us-west-1 is not")
	s.passes(t)
	s.has(t, "nobody knows what west does", 3)

	_, err = s.west.CoreV1().Pods(inEast).Create(t.Context(), s.below("web-3", func(pod *corev1.Pod) { pod.OwnerReferences[0].UID = leaf.UID }), metav1.CreateOptions{})
	must(t, err)
	s.goes(west, errors.New(`physical cluster "us-west-1" does not answer`))
	s.use("90m")
	s.has(t, "the one that begins will take its part", 4)
	g.status(t, "root", target, func(st *workloadv1alpha1.SyncTargetStatus) { setReady(st, metav1.ConditionUnknown, "NotHeard") })
	s.saying(t, "web", "what pods of physical cluster us-west-1 use is not known")
	s.has(t, "it will not", 5)
}

// TestAutoscalingWaits: a deployment does not shrink before the window that is asked for, or Kubernetes' own, and where each cluster runs all replicas there are as many as the one needs that needs most.
func TestAutoscalingWaits(t *testing.T) {
	s := startScaling(t)
	s.placed(t, placementv1alpha1.SplitDuplicate, east, west)
	s.use("100m")
	s.replicas(t, 2)
	makeScaler(t, s.shop, team, scaler(func(spec *autoscalingv2.HorizontalPodAutoscalerSpec) { spec.Behavior = nil }))
	s.has(t, "two in east use twice as much, which is four in each", 4)
	began := s.clk.Now() // before anybody can want fewer
	s.use("1m")
	s.saying(t, "web", "AbleToScale=True ScaleDownStabilized")
	s.has(t, "it was so for five minutes", 1)
	if after := s.clk.Since(began); after < 4*time.Minute+30*time.Second {
		t.Errorf("there are fewer after %s, want five minutes", after)
	}
}

// TestAutoscalingOfAReplicaSet: one that no Deployment has is scaled as a Deployment, also where each cluster runs all replicas; and so is a
// ReplicationController.
func TestAutoscalingOfAReplicaSet(t *testing.T) {
	crew := metav1.ObjectMeta{Name: "crew"}
	type scaleOf func(context.Context, string, metav1.GetOptions) (*autoscalingv1.Scale, error)
	for of, tc := range map[string]struct {
		apiVersion string
		make       func(kubernetes.Interface, *appsv1.DeploymentSpec) (scaleOf, error)
	}{
		"ReplicaSet": {"apps/v1", func(kube kubernetes.Interface, web *appsv1.DeploymentSpec) (scaleOf, error) {
			sets := kube.AppsV1().ReplicaSets(team)
			_, err := sets.Create(t.Context(), &appsv1.ReplicaSet{
				ObjectMeta: crew, Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To(int32(2)), Selector: web.Selector, Template: web.Template},
			}, metav1.CreateOptions{})
			return sets.GetScale, err
		}},
		"ReplicationController": {"v1", func(kube kubernetes.Interface, web *appsv1.DeploymentSpec) (scaleOf, error) {
			controllers := kube.CoreV1().ReplicationControllers(team)
			_, err := controllers.Create(t.Context(), &corev1.ReplicationController{
				ObjectMeta: crew, Spec: corev1.ReplicationControllerSpec{Replicas: ptr.To(int32(2)), Selector: web.Selector.MatchLabels, Template: &web.Template},
			}, metav1.CreateOptions{})
			return controllers.GetScale, err
		}},
	} {
		t.Run(of, func(t *testing.T) {
			s := startScaling(t)
			s.placed(t, placementv1alpha1.SplitDuplicate, east, west)
			s.use("100m")
			web, err := s.shop.AppsV1().Deployments(team).Get(t.Context(), "web", metav1.GetOptions{})
			must(t, err)
			scale, err := tc.make(s.shop, &web.Spec)
			must(t, err)
			hpa := scaler(func(spec *autoscalingv2.HorizontalPodAutoscalerSpec) {
				spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{APIVersion: tc.apiVersion, Kind: of, Name: "crew"}
			})
			hpa.Name = "crew"
			makeScaler(t, s.shop, team, hpa)
			has := func(why string, want int32) {
				t.Helper()
				s.saying(t, "crew", "AbleToScale=True ReadyForNewScale", "ScalingActive=True ValidMetricFound")
				waitRuns(t, s.clk, fmt.Sprintf("crew has %d replicas: %s", want, why), func() (string, bool) {
					is, err := scale(t.Context(), "crew", metav1.GetOptions{})
					must(t, err)
					return fmt.Sprintf("%d, %s", is.Spec.Replicas, said(t, s.shop, team, "crew")), is.Spec.Replicas == want
				})
			}
			has("two in east use twice as much, which is four in each", 4)
			s.placed(t, placementv1alpha1.SplitEven, east, west)
			has("three that are divided use twice as much", 6)
			s.use("1m")
			has("they use little", 1)
			s.has(t, "nobody scales the Deployment", 3)
		})
	}
}

// TestAutoscalingOfOthers: what has a scale is scaled, also a custom resource of the workspace's own, and what cannot be says so.
func TestAutoscalingOfOthers(t *testing.T) {
	s := startScaling(t)
	s.use("100m")
	crd := widgets(`{"replicas":{"type":"integer"}}`)
	crd.Spec.Versions[0].Subresources.Scale = &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas", LabelSelectorPath: ptr.To(".status.selector")}
	c := s.custom(t, shop)
	c.define(t, crd)
	objects := c.objects.Resource(widgetsV1).Namespace(team)
	_, err := objects.Create(t.Context(), widget("rose", map[string]any{"replicas": int64(3)}), metav1.CreateOptions{})
	must(t, err)
	of := func(name, apiVersion, kind, target string, change func(*autoscalingv2.HorizontalPodAutoscalerSpec)) {
		t.Helper()
		hpa := scaler(change)
		hpa.Name, hpa.Spec.ScaleTargetRef = name, autoscalingv2.CrossVersionObjectReference{APIVersion: apiVersion, Kind: kind, Name: target}
		makeScaler(t, s.shop, team, hpa)
	}
	of("rose", "shop.example/v1", "Widget", "rose", nil)
	s.saying(t, "rose", "ScalingActive=False InvalidSelector", "missing a selector")
	_, err = objects.Patch(t.Context(), "rose", types.MergePatchType, []byte(`{"status":{"selector":"app=web","replicas":3}}`), metav1.PatchOptions{}, "status")
	must(t, err)
	waitRuns(t, s.clk, "a custom resource is scaled", func() (string, bool) {
		rose, err := objects.Get(t.Context(), "rose", metav1.GetOptions{})
		return fmt.Sprint(rose, err, said(t, s.shop, team, "rose")), err == nil && strings.Contains(fmt.Sprint(rose.Object["spec"]), "replicas:6")
	})

	// Its pods are web's, too, which two would scale against each other.
	makeScaler(t, s.shop, team, scaler(nil))
	s.saying(t, "web", "ScalingActive=False AmbiguousSelector", "controlled by multiple HPAs: rose, web")
	s.saying(t, "rose", "ScalingActive=False AmbiguousSelector", "controlled by multiple HPAs: rose, web")
	s.passes(t)
	s.has(t, "two would scale it", 3)
	must(t, s.shop.AutoscalingV2().HorizontalPodAutoscalers(team).Delete(t.Context(), "rose", metav1.DeleteOptions{}))
	s.has(t, "the other one is gone", 6)
	must(t, s.shop.AutoscalingV2().HorizontalPodAutoscalers(team).Delete(t.Context(), "web", metav1.DeleteOptions{}))

	of("no-kind", "shop.example/v1", "Flower", "rose", nil)
	s.saying(t, "no-kind", "AbleToScale=False FailedGetScale", `no matches for kind "Flower" in group "shop.example"`)
	of("no-group", "flowers.example/v1", "Widget", "rose", nil)
	s.saying(t, "no-group", "AbleToScale=False FailedGetScale", `no matches for kind "Widget" in group "flowers.example"`)
	of("no-path", "../v1", "Widget", "rose", nil)
	s.saying(t, "no-path", "AbleToScale=False FailedGetScale", `no matches for kind "Widget" in group ".."`)
	of("no-scale", "apps/v1", "DaemonSet", "rose", nil)
	s.saying(t, "no-scale", "AbleToScale=False FailedGetScale", "could not find")
	of("old", "apps/v1beta1", "Deployment", "web", func(spec *autoscalingv2.HorizontalPodAutoscalerSpec) {
		spec.Metrics = []autoscalingv2.MetricSpec{{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: "requests"}, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: apiresource.NewQuantity(1, apiresource.DecimalSI)},
		}}}
	})
	s.saying(t, "old", "AbleToScale=True SucceededGetScale", "ScalingActive=False FailedGetPodsMetric", "no custom metrics API")
}

// TestServedAutoscalers: what is not said is set, what cannot be is refused, and both versions are of the same.
func TestServedAutoscalers(t *testing.T) {
	r := startServer(t, nil)
	r.makeNamespace(t, shop, team)
	kube := r.in(t, shop)
	v1 := kube.AutoscalingV1().HorizontalPodAutoscalers(team)
	ref := autoscalingv1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	_, err := v1.Create(t.Context(), &autoscalingv1.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: autoscalingv1.HorizontalPodAutoscalerSpec{ScaleTargetRef: ref, MaxReplicas: 3}}, metav1.CreateOptions{})
	must(t, err)
	v2 := kube.AutoscalingV2().HorizontalPodAutoscalers(team)
	hpa, err := v2.Get(t.Context(), "web", metav1.GetOptions{})
	must(t, err)
	if m := hpa.Spec.Metrics; ptr.Deref(hpa.Spec.MinReplicas, 0) != 1 || len(m) != 1 || m[0].Resource.Name != corev1.ResourceCPU || ptr.Deref(m[0].Resource.Target.AverageUtilization, 0) != 80 {
		t.Errorf("what is set is %+v", hpa.Spec)
	}
	hpa.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: &autoscalingv2.HPAScalingRules{Tolerance: ptr.To(apiresource.MustParse("0.2"))}}
	hpa.Status.CurrentReplicas = 7
	hpa, err = v2.Update(t.Context(), hpa, metav1.UpdateOptions{})
	must(t, err)
	if b := hpa.Spec.Behavior; hpa.Status.CurrentReplicas != 0 || b.ScaleUp.Tolerance == nil || len(b.ScaleUp.Policies) != 2 || len(b.ScaleDown.Policies) != 1 {
		t.Errorf("after a change of the spec it is %+v, %+v", b, hpa.Status)
	}
	hpa.Spec.MaxReplicas, hpa.Status.CurrentReplicas = 9, 7
	hpa, err = v2.UpdateStatus(t.Context(), hpa, metav1.UpdateOptions{})
	must(t, err)
	if hpa.Spec.MaxReplicas != 3 || hpa.Status.CurrentReplicas != 7 {
		t.Errorf("after a change of the status it is %+v", hpa)
	}
	bad := scaler(func(spec *autoscalingv2.HorizontalPodAutoscalerSpec) { spec.MinReplicas = ptr.To(int32(21)) })
	bad.Name = "bad"
	if _, err := v2.Create(t.Context(), bad, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("one with fewer at most than at least: %v", err)
	}
	table, err := kube.Discovery().RESTClient().Get().AbsPath("/apis/autoscaling/v2/namespaces/"+team+"/horizontalpodautoscalers").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(t.Context()).Raw()
	if err != nil || !strings.Contains(string(table), `"cells":["web","Deployment/web","cpu: \u003cunknown\u003e/80%","1",3,7,`) {
		t.Errorf("table: %s (%v)", table, err)
	}
}
