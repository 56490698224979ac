package crash

import (
	"context"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/server"
	"atoll.dev/atoll/server/aggregation"
	"atoll.dev/atoll/server/autoscaling"
	"atoll.dev/atoll/server/certificates"
	"atoll.dev/atoll/server/cronjobs"
	"atoll.dev/atoll/server/disruption"
	"atoll.dev/atoll/server/endpoints"
	"atoll.dev/atoll/server/finishedjobs"
	"atoll.dev/atoll/server/namespaces"
	"atoll.dev/atoll/server/quota"
)

// The house is what does in workspaces what kube-controller-manager does in a cluster, but for the garbage collector. Its controllers live
// and crash together, over one line and on one set of informers, as in the process of the leader.

// partsOfTheHouse are its controllers, as cmd/atoll calls them, and partAgent what each says before its name when it asks.
var partsOfTheHouse = []string{
	"namespaces", "quota", "aggregation", "finishedjobs", "cronjobs", "disruption", "endpoints", "autoscaling", "certificates",
}

const partAgent = "atoll-"

// Whoever adds a controller to the binary adds it here.
func TestNoControllerIsLeftOut(t *testing.T) {
	source, err := os.ReadFile("../../../cmd/atoll/controllers.go")
	must(t, err)
	added := regexp.MustCompile(`\bl\.add\("(\w+)"`).FindAllSubmatch(source, -1)
	if len(added) <= len(partsOfTheHouse) {
		t.Fatalf("%d controllers are found in the binary, want more than in the house", len(added))
	}
	for _, found := range added {
		name := string(found[1])
		if name == "syncers" { // which it starts
			name = "syncer"
		}
		if !slices.Contains(partsOfTheHouse, name) && !slices.Contains(everyone, name) {
			t.Errorf("controller %q of the binary is under no fault here", name)
		}
	}
}

func makeHouse(w *world, l *line) (func(context.Context) error, error) {
	c, i, err := w.shared(l)
	if err != nil {
		return nil, err
	}
	type controller interface{ Run(context.Context) error }
	all := map[string]controller{}
	var failed error
	add := func(name string, made controller, err error) {
		all[name], failed = made, errors.Join(failed, err)
	}
	spaces, err := namespaces.New(c, i, namespaces.Options{RootCA: w.server.CACertificate(), Read: w.server.Read, Custom: w.server.CustomIn})
	add("namespaces", spaces, err)
	add("quota", quota.New(i, countsOver{w.server.QuotaStores(), l}), nil)
	roles, err := aggregation.New(c, i, w.server.ClusterRoles, clock.RealClock{})
	add("aggregation", roles, err)
	jobs, err := finishedjobs.New(c, i, w.later)
	add("finishedjobs", jobs, err)
	crons, err := cronjobs.New(c, i, w.server.Jobs(), w.later)
	add("cronjobs", crons, err)
	budgets, err := disruption.New(c, i, clock.RealClock{})
	add("disruption", budgets, err)
	services, err := endpoints.New(c, i, w.server.EndpointRows(), clock.RealClock{})
	add("endpoints", services, err)
	scalers, err := autoscaling.New(c, i, fastClock{began: time.Now(), times: haste})
	add("autoscaling", scalers, err)
	requests, err := certificates.New(c, i, certificates.Options{
		Sign: w.server.SignForWorkspace, Reserved: server.ReservedInWorkspaces, Longest: w.server.CertificateLifetime(), Clock: w.later,
	})
	add("certificates", requests, err)
	if failed != nil {
		return nil, failed
	}
	return together(i, func(ctx context.Context) error {
		working, ctx := errgroup.WithContext(ctx)
		for _, part := range partsOfTheHouse {
			working.Go(func() error {
				if err := all[part].Run(client.As(ctx, partAgent+part)); err != nil && ctx.Err() == nil {
					return fmt.Errorf("controller %s: %w", part, err)
				}
				return nil
			})
		}
		return working.Wait()
	}), nil
}

// countsOver are stores in which ResourceQuotas are counted over a line: to begin, and to write what was counted, are no requests.
type countsOver struct {
	quota.Stores
	line *line
}

func (c countsOver) BeginCount(ctx context.Context, read *corev1.ResourceQuota, newLimits, hold bool) (begun int64, err error) {
	err = c.line.call("counts", func() error {
		begun, err = c.Stores.BeginCount(ctx, read, newLimits, hold)
		return err
	})
	return begun, err
}

func (c countsOver) UpdateQuotaStatus(ctx context.Context, read *corev1.ResourceQuota, begun int64) error {
	return c.line.call("counted", func() error { return c.Stores.UpdateQuotaStatus(ctx, read, begun) })
}

// What a user has beside the app for all of the house to have something to do.
const (
	extra    = "extra" // a namespace
	whole    = "whole" // a ClusterRole that is made of others
	part     = "part"  // one of these
	person   = "olga"  // who asks for a certificate, and its request
	impostor = "impostor"
	report   = "report" // a CronJob
	once     = "once"   // a Job that goes an hour after it has ended
)

// fires is the one time at which the CronJob is due: about half a year away, so that no run is there when it comes by itself.
var fires = func(now time.Time) time.Time {
	return time.Date(now.Year(), now.Month()+6, 1, 0, 0, 0, 0, time.UTC)
}(time.Now().UTC())

// nameOfRun is that of its Job.
func nameOfRun() string { return fmt.Sprintf("%s-%d", report, fires.Unix()/60) }

func inDefault(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}
}

// furnish makes the app and all that is beside it. What the house watches is made and then changed: who is shown the last state alone has
// missed something of each.
func (u *user) furnish() error {
	of := func(role string) map[string]string { return map[string]string{"of": role} }
	return errors.Join(
		u.place("east"),
		u.twice(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: extra}}, `{"metadata":{"labels":{"for":"nothing"}}}`),
		u.make([]ctrlclient.Object{
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: extra, Name: app}},
			&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: whole}, AggregationRule: &rbacv1.AggregationRule{
				ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: of(whole)}},
			}},
			&rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: person},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
				Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: person}},
			},
		}),
		u.twice(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: part, Labels: of(whole)}}, about("pods")),
		u.request(person, person), u.request(impostor, "system:serviceaccount:default:default"),
		u.twice(cron(), `{"spec":{"suspend":false}}`),
		u.twice(budget(), aBudget),
		u.apply(1),
		u.patch(&corev1.Service{ObjectMeta: appMeta()}, `{"metadata":{"labels":{"tier":"front"}}}`),
		u.make([]ctrlclient.Object{&batchv1.Job{ObjectMeta: inDefault(once), Spec: jobOf(once, ptr.To[int32](3600))}}),
		u.twice(&corev1.ResourceQuota{ObjectMeta: inDefault(app), Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			usedConfigMaps: apiresource.MustParse("10"),
		}}}, fmt.Sprintf(`{"spec":{"hard":{%q:"10"}}}`, usedJobs)),
	)
}

// What the ResourceQuota limits.
const (
	usedConfigMaps = corev1.ResourceName("count/configmaps")
	usedJobs       = corev1.ResourceName("count/jobs.batch")
)

// aBudget makes of a budget of so many pods one of a part of those that there are to be.
const aBudget = `{"spec":{"minAvailable":null,"maxUnavailable":1}}`

func budget() *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{ObjectMeta: inDefault(app), Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
	}}
}

// about is a change of a ClusterRole to one about some resources.
func about(resources ...string) string {
	return fmt.Sprintf(`{"rules":[{"verbs":["get"],"apiGroups":[""],"resources":["%s"]}]}`, strings.Join(resources, `","`))
}

func jobOf(name string, ttl *int32) batchv1.JobSpec {
	return batchv1.JobSpec{TTLSecondsAfterFinished: ttl, Template: corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"job": name}},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "work", Image: "registry.example/work:1"}},
		},
	}}
}

func cron() *batchv1.CronJob {
	return &batchv1.CronJob{ObjectMeta: inDefault(report), Spec: batchv1.CronJobSpec{
		Schedule: fmt.Sprintf("0 0 1 %d *", fires.Month()), Suspend: ptr.To(true),
		JobTemplate: batchv1.JobTemplateSpec{Spec: jobOf(report, nil)},
	}}
}

func scaler() *autoscalingv2.HorizontalPodAutoscaler {
	return &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: inDefault(app), Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment", Name: app},
		MinReplicas:    ptr.To[int32](2), MaxReplicas: 4,
	}}
}

// halfAYear has half a year pass: the CronJob is due, the Job that has ended goes, and the answered requests do. Meanwhile the app is scaled,
// the role is another, and the other namespace is not needed any more.
func (u *user) halfAYear() error {
	u.later.set(time.Until(fires.Add(30 * time.Second)))
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: part}}
	return errors.Join(
		u.patch(role, about("nodes")), u.patch(role, about("pods", "services", "nodes")),
		u.twice(scaler(), `{"spec":{"maxReplicas":5}}`),
		u.drop(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: extra}}),
	)
}

// strip leaves the ResourceQuota and the role that is made of others.
func (u *user) strip() error {
	return errors.Join(u.drop(scaler(), budget(), cron(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: part}}), u.delete())
}

// twice makes an object and changes it.
func (u *user) twice(o ctrlclient.Object, patch string) error {
	if err := u.make([]ctrlclient.Object{o}); err != nil {
		return err
	}
	return u.patch(o, patch)
}

func (u *user) patch(o ctrlclient.Object, patch string) error {
	if err := u.clients.Objects.Patch(u.home(), o, ctrlclient.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		return fmt.Errorf("patch %T: %w", o, err)
	}
	return nil
}

// drop deletes objects with what they own.
func (u *user) drop(objects ...ctrlclient.Object) error {
	for _, o := range objects {
		if err := u.clients.Objects.Delete(u.home(), o, ctrlclient.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
			return fmt.Errorf("delete %T: %w", o, err)
		}
	}
	return nil
}

// request asks for a certificate of the workspace, and approves it.
func (u *user) request(name, as string) error {
	if u.key == nil {
		key, err := keyutil.MakeEllipticPrivateKeyPEM()
		if err != nil {
			return err
		}
		u.key, u.known = key, map[string]string{}
	}
	pem, err := certificateRequest(u.key, pkix.Name{CommonName: as})
	if err != nil {
		return err
	}
	requests := u.clients.Kube.CertificatesV1().CertificateSigningRequests()
	asked, err := requests.Create(u.home(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem, SignerName: certificatesv1.KubeAPIServerClientSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("ask for a certificate as %q: %w", as, err)
	}
	asked.Status.Conditions = append(asked.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Known",
	})
	if _, err := requests.UpdateApproval(u.home(), name, asked, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("approve the request as %q: %w", as, err)
	}
	return nil
}

// whoIs says who somebody is by a certificate, as the server takes it, or why nobody.
func (u *user) whoIs(certificate []byte) string {
	if who := u.known[string(certificate)]; who != "" {
		return who
	}
	kube, err := kubernetes.NewForConfig(&rest.Config{
		Host:            u.server.URL() + "/clusters/" + u.clusters[len(u.clusters)-1],
		TLSClientConfig: rest.TLSClientConfig{CAData: u.server.CACertificate(), CertData: certificate, KeyData: u.key},
	})
	if err != nil {
		return err.Error()
	}
	review, err := kube.AuthenticationV1().SelfSubjectReviews().Create(u.ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return err.Error()
	}
	u.known[string(certificate)] = review.Status.UserInfo.Username
	return review.Status.UserInfo.Username
}

// cronJobs have Jobs, which say of which.
var cronJobs = batchv1.SchemeGroupVersion.WithResource("cronjobs")

// ofTheHouse are the resources that the house writes and nothing carries down, and which of them are looked at. Requests for certificates
// are told of by what became of them (addRequests).
var ofTheHouse = map[schema.GroupVersionResource]string{
	cronJobs: "",
	corev1.SchemeGroupVersion.WithResource("resourcequotas"):                  "",
	corev1.SchemeGroupVersion.WithResource("endpoints"):                       "",
	discoveryv1.SchemeGroupVersion.WithResource("endpointslices"):             "",
	policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets"):          "",
	autoscalingv2.SchemeGroupVersion.WithResource("horizontalpodautoscalers"): "",
	rbacv1.SchemeGroupVersion.WithResource("clusterroles"):                    "kubernetes.io/bootstrapping!=rbac-defaults",
}

// addRequests adds what became of each request for a certificate, and who is somebody by it.
func (r *run) addRequests(s state, in context.Context, alias string) {
	r.t.Helper()
	requests, err := r.clients.Kube.CertificatesV1().CertificateSigningRequests().List(in, metav1.ListOptions{})
	must(r.t, err)
	for _, q := range requests.Items {
		var conditions []string
		for _, c := range q.Status.Conditions {
			conditions = append(conditions, fmt.Sprintf("%s %s: %s", c.Type, c.Reason, c.Message))
		}
		who := "nobody"
		if len(q.Status.Certificate) > 0 {
			who = r.user.whoIs(q.Status.Certificate)
		}
		s[alias+" certificatesigningrequests "+q.Name] = fmt.Sprintf("%q, is %s", conditions, who)
	}
}

// tally is how much there is, in namespace default where nothing else is said, of what the house makes and takes away.
type tally struct {
	resources                int // that the ClusterRole is about which is made of others
	signed, refused          int // requests for certificates; by one that is signed the person is known
	given                    int // ServiceAccounts and ConfigMaps of the extra namespace
	jobs, ended              int
	ran                      bool // the CronJob, with success
	usedJobs, usedConfigMaps int64
	expected, healthy        int32 // pods, as the budget says
	ready, addresses         int   // in EndpointSlices and Endpoints of the app
	scaled                   int32 // replicas of the app, as its HorizontalPodAutoscaler says, which has asked for metrics
}

func (r *run) tally() (n tally) {
	r.t.Helper()
	in, kube := r.home(), r.clients.Kube
	get := func(o ctrlclient.Object, namespace, name string) {
		if err := r.clients.Objects.Get(in, types.NamespacedName{Namespace: namespace, Name: name}, o); !apierrors.IsNotFound(err) {
			must(r.t, err)
		}
	}
	var role rbacv1.ClusterRole
	var cron batchv1.CronJob
	var quota corev1.ResourceQuota
	var budget policyv1.PodDisruptionBudget
	var scaler autoscalingv2.HorizontalPodAutoscaler
	var older endpoints.Endpoints
	get(&role, "", whole)
	get(&cron, metav1.NamespaceDefault, report)
	get(&quota, metav1.NamespaceDefault, app)
	get(&budget, metav1.NamespaceDefault, app)
	get(&scaler, metav1.NamespaceDefault, app)
	get(&older, metav1.NamespaceDefault, app)
	for _, rule := range role.Rules {
		n.resources += len(rule.Resources)
	}
	n.ran = cron.Status.LastSuccessfulTime != nil && len(cron.Status.Active) == 0
	used := func(name corev1.ResourceName) int64 {
		is := quota.Status.Used[name]
		return is.Value()
	}
	n.usedJobs, n.usedConfigMaps = used(usedJobs), used(usedConfigMaps)
	n.expected, n.healthy = budget.Status.ExpectedPods, budget.Status.CurrentHealthy
	for _, c := range scaler.Status.Conditions {
		if c.Type == autoscalingv2.ScalingActive {
			n.scaled = scaler.Status.CurrentReplicas
		}
	}
	for _, s := range older.Subsets {
		n.addresses += len(s.Addresses)
	}

	requests, err := kube.CertificatesV1().CertificateSigningRequests().List(in, metav1.ListOptions{})
	must(r.t, err)
	for _, q := range requests.Items {
		if len(q.Status.Certificate) > 0 && r.user.whoIs(q.Status.Certificate) == person {
			n.signed++
		}
		for _, c := range q.Status.Conditions {
			if c.Type == certificatesv1.CertificateFailed {
				n.refused++
			}
		}
	}
	accounts, err := kube.CoreV1().ServiceAccounts(extra).List(in, metav1.ListOptions{})
	must(r.t, err)
	maps, err := kube.CoreV1().ConfigMaps(extra).List(in, metav1.ListOptions{})
	must(r.t, err)
	n.given = len(accounts.Items) + len(maps.Items)
	jobs, err := kube.BatchV1().Jobs(metav1.NamespaceDefault).List(in, metav1.ListOptions{})
	must(r.t, err)
	n.jobs = len(jobs.Items)
	for i := range jobs.Items {
		if hasEnded(&jobs.Items[i]) {
			n.ended++
		}
	}
	all, err := kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(in, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + app})
	must(r.t, err)
	for _, s := range all.Items {
		for _, e := range s.Endpoints {
			if ptr.Deref(e.Conditions.Ready, false) {
				n.ready++
			}
		}
	}
	return n
}

func hasEnded(job *batchv1.Job) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed)
	})
}

// judgeHouse holds the hub's audit log against what the user has asked for until now:
//   - The house deletes in the user's workspaces what was asked for, each as often as the steps say, and what is in a namespace that was
//     asked to go. What it made while it saw the past it may take away again.
//   - It deletes no Job that has not ended.
//   - It makes each Job once.
func (r *run) judgeHouse(asked []string) {
	r.t.Helper()
	allowed, jobs := slices.Clone(asked), map[string]bool{}
	for i, a := range r.logs[hubSide].read(r.t) {
		if !strings.HasPrefix(a.id, "house-") || a.code >= 300 || !slices.Contains(r.clusters, a.cluster) {
			continue
		}
		name := hubSide + " " + a.String()
		fail := func(what string) {
			r.t.Fatalf("run %d, step %s: %s %s (%s)", r.number, r.scenario.steps[r.done-1].name, name, what, a.id)
		}
		if a.verb == "create" && a.code == http.StatusCreated {
			if a.resource == "jobs" && jobs[a.name] {
				fail("was made once more")
			}
			jobs[a.name] = jobs[a.name] || a.resource == "jobs"
			if slices.ContainsFunc(r.past[hubSide], func(s stretch) bool { return s.from <= i && i < s.to }) {
				allowed = append(allowed, name)
			}
			continue
		}
		if !strings.HasPrefix(a.verb, "delete") {
			continue
		}
		if a.resource == "jobs" {
			var job batchv1.Job
			must(r.t, json.Unmarshal(a.answer, &job))
			if !hasEnded(&job) {
				fail(fmt.Sprintf("was deleted before it had ended: %+v", job.Status))
			}
		}
		at := slices.Index(allowed, name)
		switch {
		case at >= 0:
			allowed = slices.Delete(allowed, at, at+1)
		case a.resource == "namespaces" || !slices.Contains(asked, hubSide+" namespaces/"+a.space):
			fail("was deleted, which nobody had asked for")
		}
	}
}
