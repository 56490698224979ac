package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/cronjobs"
)

func makeCronJobs(r *running, clk clock.PassiveClock) func(*client.Clients, *client.Informers) (*cronjobs.Controller, error) {
	return func(c *client.Clients, i *client.Informers) (*cronjobs.Controller, error) {
		return cronjobs.New(c, i, r.Jobs(), clk)
	}
}

func cronJob(name, schedule string, change func(*batchv1.CronJobSpec)) *batchv1.CronJob {
	c := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: batchv1.CronJobSpec{
			Schedule: schedule,
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}},
			}}}},
		},
	}
	if change != nil {
		change(&c.Spec)
	}
	return c
}

func (r *running) createCronJob(t *testing.T, cluster logicalcluster.Name, c *batchv1.CronJob) *batchv1.CronJob {
	t.Helper()
	kube := r.in(t, cluster)
	_, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	made, err := kube.BatchV1().CronJobs("default").Create(t.Context(), c, metav1.CreateOptions{})
	must(t, err)
	return made
}

func (r *running) jobs(t *testing.T, cluster logicalcluster.Name) (jobs []batchv1.Job, names string) {
	t.Helper()
	list, err := r.in(t, cluster).BatchV1().Jobs("default").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, job := range list.Items {
		names += " " + job.Name
	}
	return list.Items, strings.TrimSpace(names)
}

// complete ends a Job as its pods would.
func (r *running) complete(t *testing.T, cluster logicalcluster.Name, name string) {
	t.Helper()
	jobs := r.in(t, cluster).BatchV1().Jobs("default")
	job, err := jobs.Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	job.Status = batchv1.JobStatus{StartTime: &now, CompletionTime: &now, Succeeded: 1}
	for _, condition := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete} {
		job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	_, err = jobs.UpdateStatus(t.Context(), job, metav1.UpdateOptions{})
	must(t, err)
}

// waitRuns lets time pass, by seconds, until check is content.
func waitRuns(t *testing.T, clk *clocktesting.FakeClock, what string, check func() (string, bool)) {
	t.Helper()
	waitSteps(t, clk, time.Second, what, check)
}

// waitLooks lets little time pass, in which nothing is due, until check is content: looks of a workspace follow each other. What a look
// took it is waited for a multiple of, and where waitRuns has stepped meanwhile that is seconds.
func waitLooks(t *testing.T, clk *clocktesting.FakeClock, what string, check func() (string, bool)) {
	t.Helper()
	waitSteps(t, clk, 10*time.Millisecond, what, check)
}

func waitSteps(t *testing.T, clk *clocktesting.FakeClock, step time.Duration, what string, check func() (string, bool)) {
	t.Helper()
	waitFor(t, time.Minute, what, func() (string, bool) {
		seen, ok := check()
		if !ok {
			clk.Step(step)
		}
		return seen, ok
	})
}

// CronJobs of equal names run each in its workspace, and not in a mirror; statuses and Events tell of it, and old Jobs go.
func TestCronJobs(t *testing.T) {
	r := startServer(t, nil)
	clk := clocktesting.NewFakeClock(time.Now())
	runController(t, r, makeCronJobs(r, clk))
	r.createCronJob(t, east, cronJob("report", "* * * * *", nil))
	cron := r.createCronJob(t, shop, cronJob("report", "* * * * *", func(s *batchv1.CronJobSpec) {
		s.ConcurrencyPolicy, s.SuccessfulJobsHistoryLimit = batchv1.ForbidConcurrent, ptr.To[int32](1)
		s.JobTemplate.Labels = map[string]string{"of": "shop"}
	}))
	r.createCronJob(t, bank, cronJob("report", "* * * * *", func(s *batchv1.CronJobSpec) { s.JobTemplate.Labels = map[string]string{"of": "bank"} }))

	for _, cluster := range []logicalcluster.Name{shop, bank} {
		waitRuns(t, clk, "a Job in "+string(cluster), func() (string, bool) {
			jobs, names := r.jobs(t, cluster)
			if len(jobs) == 0 {
				return names, false
			}
			job := jobs[0]
			at, err := time.Parse(time.RFC3339, job.Annotations[batchv1.CronJobScheduledTimestampAnnotation])
			must(t, err)
			if job.Name != fmt.Sprintf("report-%d", at.Unix()/60) || at.Second() != 0 || job.Labels["of"]+"name" != string(cluster) || metav1.GetControllerOf(&job) == nil {
				t.Errorf("in %s: %+v", cluster, job.ObjectMeta)
			}
			return names, true
		})
	}
	_, names := r.jobs(t, shop)
	first := strings.Fields(names)[0]
	crons := r.in(t, shop).BatchV1().CronJobs("default")
	holds := func(what string, is func(batchv1.CronJobStatus) bool) {
		t.Helper()
		waitLooks(t, clk, what, func() (string, bool) {
			got, err := crons.Get(t.Context(), "report", metav1.GetOptions{})
			must(t, err)
			return fmt.Sprintf("%+v", got.Status), is(got.Status)
		})
	}
	holds("it is active", func(s batchv1.CronJobStatus) bool {
		return len(s.Active) == 1 && s.Active[0].Name == first && s.LastScheduleTime != nil
	})
	waitRuns(t, clk, "in bank, where it is allowed, they run beside each other", func() (string, bool) {
		jobs, names := r.jobs(t, bank)
		return names, len(jobs) > 2
	})
	if jobs, names := r.jobs(t, shop); len(jobs) != 1 {
		t.Errorf("with Forbid: %s", names)
	}
	r.complete(t, shop, first)
	holds("the other begins once it is complete", func(s batchv1.CronJobStatus) bool {
		return len(s.Active) == 1 && s.Active[0].Name != first && s.LastSuccessfulTime != nil
	})
	_, names = r.jobs(t, shop)
	second := strings.Fields(names)[1]
	r.complete(t, shop, second)
	waitLooks(t, clk, "the first, which is more than the history holds, goes", func() (string, bool) {
		_, names := r.jobs(t, shop)
		return names, !strings.Contains(names, first)
	})
	for _, reason := range []string{"SuccessfulCreate", "JobAlreadyActive", "SawCompletedJob", "SuccessfulDelete"} {
		waitLooks(t, clk, "an Event "+reason, func() (string, bool) {
			list, err := r.in(t, shop).CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
			must(t, err)
			return fmt.Sprint(list.Items), slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
				return e.Reason == reason && e.InvolvedObject.UID == cron.UID
			})
		})
	}
	if _, names := r.jobs(t, east); names != "" {
		t.Errorf("Jobs in a mirror: %s", names)
	}
}

// What the workspace does not let in is told to who made the CronJob.
func TestCronJobsRefused(t *testing.T) {
	r := startServer(t, nil)
	clk := clocktesting.NewFakeClock(time.Now())
	runController(t, r, makeCronJobs(r, clk))
	r.createCronJob(t, shop, cronJob("report", "* * * * *", func(s *batchv1.CronJobSpec) {
		s.JobTemplate.Labels = map[string]string{"no label": "has a space"}
	}))
	waitRuns(t, clk, "an Event FailedCreate", func() (string, bool) {
		list, err := r.in(t, shop).CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		must(t, err)
		return fmt.Sprint(list.Items), slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.Reason == "FailedCreate" && strings.Contains(e.Message, "no label")
		})
	})
}

// In the place of somebody else's Job there is no run, which is told once, and the next one is made in time.
func TestCronJobsInThePlaceOfAnothersJob(t *testing.T) {
	r := startServer(t, nil)
	clk := clocktesting.NewFakeClock(time.Now())
	due := clk.Now().Truncate(time.Hour).Add(time.Hour)
	nameOf := func(run time.Time) string { return fmt.Sprintf("report-%d", run.Unix()/60) }
	r.createCronJob(t, bank, cronJob("clock", "* * * * *", nil))
	cron := r.createCronJob(t, shop, cronJob("report", "0 * * * *", nil))
	_, err := r.in(t, shop).BatchV1().Jobs("default").Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: nameOf(due)}, Spec: cron.Spec.JobTemplate.Spec,
	}, metav1.CreateOptions{})
	must(t, err)
	clk.Step(due.Add(time.Second).Sub(clk.Now()))
	runController(t, r, makeCronJobs(r, clk))
	told := func() (n int32) {
		list, err := r.in(t, shop).CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		must(t, err)
		for _, e := range list.Items {
			if e.Reason == "FailedCreate" && e.InvolvedObject.UID == cron.UID && strings.Contains(e.Message, "already exists") {
				n += e.Count
			}
		}
		return n
	}
	waitRuns(t, clk, "an Event FailedCreate", func() (string, bool) { return "none", told() > 0 })
	for i := range 4 { // it is looked at again each time
		_, err := r.in(t, shop).BatchV1().CronJobs("default").Patch(t.Context(), cron.Name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"look":"%d"}}}`, i), metav1.PatchOptions{})
		must(t, err)
		waitRuns(t, clk, "a minute of another workspace", func() (string, bool) {
			jobs, names := r.jobs(t, bank)
			return names, len(jobs) > i+1
		})
	}
	if n := told(); n != 1 {
		t.Errorf("it is told %d times that a run has no place", n)
	}
	if jobs, names := r.jobs(t, shop); len(jobs) != 1 || metav1.GetControllerOf(&jobs[0]) != nil {
		t.Errorf("Jobs: %s, want somebody's alone", names)
	}
	clk.Step(due.Add(time.Hour + time.Second).Sub(clk.Now()))
	waitRuns(t, clk, "the next run", func() (string, bool) {
		_, names := r.jobs(t, shop)
		return names, strings.Contains(names, nameOf(due.Add(time.Hour)))
	})
}

// gathered is how many Jobs the watch cache has gone through to answer lists.
func (r *running) gathered(t *testing.T) int {
	t.Helper()
	return r.jobsCounted(t, "apiserver_cache_list_fetched_objects_total")
}

// jobsCounted is what a metric counts of Jobs.
func (r *running) jobsCounted(t *testing.T, metric string) (n int) {
	t.Helper()
	for line := range strings.Lines(r.metrics(t)) {
		if strings.HasPrefix(line, metric+"{") && strings.Contains(line, `group="batch"`) && strings.Contains(line, `resource="jobs"`) {
			var some float64
			_, err := fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &some)
			must(t, err)
			n += int(some)
		}
	}
	return n
}

// A look at a CronJob costs as much as its namespace has Jobs in memory: none is read from etcd.
func TestCronJobsBesideManyJobs(t *testing.T) {
	const many, looks = 400, 5
	r := startServer(t, nil)
	cron := r.createCronJob(t, shop, cronJob("report", "* * * * *", func(s *batchv1.CronJobSpec) { s.Suspend = ptr.To(true) }))
	spec := cron.Spec.JobTemplate.Spec.DeepCopy()
	spec.Suspend = ptr.To(true)
	for i := range many {
		_, err := r.in(t, shop).BatchV1().Jobs("default").Create(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("job-", i)}, Spec: *spec}, metav1.CreateOptions{})
		must(t, err)
	}
	before := r.gathered(t)
	runController(t, r, makeCronJobs(r, clock.RealClock{}))
	looked := func(before int) (after int) {
		t.Helper()
		waitFor(t, time.Minute, "a look", func() (string, bool) {
			after = r.gathered(t)
			return fmt.Sprint(after-before, " Jobs are gathered"), after-before >= many
		})
		return after
	}
	first := looked(before)
	const read = "apiserver_storage_list_fetched_objects_total"
	last, fromEtcd := first, r.jobsCounted(t, read)
	for i := range looks {
		_, err := r.in(t, shop).BatchV1().CronJobs("default").Patch(t.Context(), cron.Name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"look":"%d"}}}`, i), metav1.PatchOptions{})
		must(t, err)
		last = looked(last)
	}
	if n := r.jobsCounted(t, read) - fromEtcd; n > 0 {
		t.Errorf("for %d looks %d Jobs are read from etcd", looks, n)
	}
	for page := (metav1.ListOptions{Limit: 10}); page.Continue == "" || r.jobsCounted(t, read) == fromEtcd; { // as a further page is
		list, err := r.in(t, shop).BatchV1().Jobs("default").List(t.Context(), page)
		must(t, err)
		if page.Continue = list.Continue; page.Continue == "" {
			t.Fatalf("no page is read from etcd, by %s", read)
		}
	}
	if n := last - first; n > 2*looks*2*many {
		t.Errorf("for %d looks the watch cache gathered %d Jobs, of %d that there are", looks, n, many)
	}
}

// A CronJob of a workspace that is full makes no Job there, though it is the server that would make it, and says so; others run. Once there is
// room it runs.
func TestCronJobsOfAFullWorkspace(t *testing.T) {
	const most = 40
	r := startServer(t, func(o *Options) { o.MaxObjectsPerWorkspace = most })
	clk := clocktesting.NewFakeClock(time.Now())
	runController(t, r, makeCronJobs(r, clk))
	cron := r.createCronJob(t, shop, cronJob("report", "* * * * *", nil))
	configMaps := r.in(t, shop).CoreV1().ConfigMaps("default")
	for i := range most {
		_, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("x%d", i)}}, metav1.CreateOptions{})
		must(t, err)
	}
	clk.Step(time.Minute)
	waitRuns(t, clk, "an Event FailedCreate", func() (string, bool) {
		list, err := r.in(t, shop).CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		must(t, err)
		return fmt.Sprint(list.Items), slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.Reason == "FailedCreate" && e.InvolvedObject.UID == cron.UID && strings.Contains(e.Message, fmt.Sprintf("and may have %d", most))
		})
	})
	r.createCronJob(t, bank, cronJob("report", "* * * * *", nil))
	waitRuns(t, clk, "several runs of another workspace", func() (string, bool) {
		jobs, names := r.jobs(t, bank)
		return names, len(jobs) > 2
	})
	if _, names := r.jobs(t, shop); names != "" {
		t.Errorf("in a full workspace: %s", names)
	}
	must(t, configMaps.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	waitRuns(t, clk, "a run once there is room", func() (string, bool) {
		jobs, names := r.jobs(t, shop)
		return names, len(jobs) > 0
	})
}

// refusals counts, by its name, what a controller was told to make later.
type refusals struct {
	next http.RoundTripper
	mu   *sync.Mutex
	of   map[string]int
}

var waiting = regexp.MustCompile(`waits\d+`)

func (r refusals) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.next.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusTooManyRequests {
		return resp, err
	}
	body, err := req.GetBody()
	if err != nil {
		return nil, errors.Join(err, resp.Body.Close())
	}
	sent, err := io.ReadAll(body)
	if err != nil {
		return nil, errors.Join(err, resp.Body.Close())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of[string(waiting.Find(sent))]++
	return resp, nil
}

// CronJobs that have to wait for a count of a ResourceQuota hold no worker, of which there are fewer: each is told so once, and asks again when it
// is time, though no time passes.
func TestCronJobsThatWaitHoldNoWorker(t *testing.T) {
	r := startServer(t, nil)
	clk := clocktesting.NewFakeClock(time.Now())
	in := r.place(t, shop)
	in.namespace(t, "default", nil, `{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {count/jobs.batch: "100"}}}`)
	stores := r.QuotaStores()
	ctx := lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: shop})
	begin := func(hold bool) {
		t.Helper()
		read, err := stores.Quota(ctx, "default", "q")
		must(t, err)
		_, err = stores.BeginCount(ctx, read, true, hold)
		must(t, err)
	}
	begin(true)
	const many = 20
	for i := range many {
		r.createCronJob(t, shop, cronJob(fmt.Sprintf("waits%d", i), "* * * * *", nil))
	}
	refused := refusals{mu: &sync.Mutex{}, of: map[string]int{}}
	runController(t, r, func(_ *client.Clients, i *client.Informers) (*cronjobs.Controller, error) {
		config := rest.CopyConfig(r.LoopbackConfig())
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			refused.next = next
			return refused
		})
		clients, err := client.New(config)
		if err != nil {
			return nil, err
		}
		return cronjobs.New(clients, i, r.Jobs(), clk)
	})
	clk.Step(time.Minute + time.Second)
	waitSteps(t, clk, time.Millisecond, "each is told to wait", func() (string, bool) {
		refused.mu.Lock()
		defer refused.mu.Unlock()
		for name, n := range refused.of {
			if n > 1 {
				t.Fatalf("%s asked %d times", name, n)
			}
		}
		return fmt.Sprint(refused.of), len(refused.of) == many
	})
	begin(false)
	waitRuns(t, clk, "each has its Job", func() (string, bool) {
		_, names := r.jobs(t, shop)
		has := map[string]bool{}
		for _, name := range strings.Fields(names) {
			has[waiting.FindString(name)] = true
		}
		return names, len(has) == many
	})
	list, err := r.in(t, shop).CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, e := range list.Items {
		if e.Reason == "FailedCreate" {
			t.Errorf("people were told of it: %s", e.Message)
		}
	}
}

// mortal is a transport of a controller that dies with its n-th write: the server has answered, and nobody heard it.
type mortal struct {
	next http.RoundTripper
	mu   *sync.Mutex
	left *int
	die  func()
}

var errDead = errors.New("dead")

func (m mortal) RoundTrip(req *http.Request) (*http.Response, error) {
	m.mu.Lock()
	dead := *m.left <= 0
	if !dead && req.Method != http.MethodGet {
		*m.left--
	}
	last := !dead && *m.left <= 0
	m.mu.Unlock()
	if dead {
		return nil, errDead
	}
	resp, err := m.next.RoundTrip(req)
	if last {
		m.die()
		if err == nil {
			err = errors.Join(errDead, resp.Body.Close())
		}
		return nil, err
	}
	return resp, err
}

// Whichever write is the last one before a crash, each run has one Job, and the status says so.
func TestCronJobsSurviveACrashAfterEachWrite(t *testing.T) {
	t.Parallel()
	r := startServer(t, nil)
	runController(t, r, makeCronJobs(r, clocktesting.NewFakeClock(time.Unix(0, 0)))) // makes the workspaces; before 1970 nothing is due
	const enough = 100
	// play has three runs of a CronJob, each of which replaces the one before, and the last is complete and goes; it says how many
	// writes that took a controller which dies after n.
	play := func(n int) int {
		name := fmt.Sprintf("report%d", n)
		clk := clocktesting.NewFakeClock(time.Now())
		watched, err := r.in(t, bank).BatchV1().Jobs("default").Watch(t.Context(), metav1.ListOptions{})
		must(t, err)
		defer watched.Stop()
		var lives sync.WaitGroup
		defer lives.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		live := func(ctx context.Context, config *rest.Config) {
			clients, err := client.New(config)
			must(t, err)
			informers, err := client.NewInformers(clients)
			must(t, err)
			c, err := cronjobs.New(clients, informers, r.Jobs(), clk)
			must(t, err)
			lives.Go(func() { informers.Run(ctx) })
			lives.Go(func() {
				if err := c.Run(ctx); err != nil && ctx.Err() == nil {
					t.Errorf("run: %v", err)
				}
			})
		}
		first, end := context.WithCancel(ctx)
		left, mu := n, &sync.Mutex{}
		config := rest.CopyConfig(r.LoopbackConfig())
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return mortal{next: next, mu: mu, left: &left, die: end}
		})
		live(first, config)
		lives.Go(func() {
			select {
			case <-first.Done():
			case <-ctx.Done():
			}
			if ctx.Err() == nil {
				live(ctx, r.LoopbackConfig())
			}
		})

		r.createCronJob(t, bank, cronJob(name, "* * * * *", func(s *batchv1.CronJobSpec) {
			s.ConcurrencyPolicy, s.SuccessfulJobsHistoryLimit = batchv1.ReplaceConcurrent, ptr.To[int32](0)
		}))
		crons := r.in(t, bank).BatchV1().CronJobs("default")
		var ran []string
		for range 3 {
			waitRuns(t, clk, fmt.Sprintf("a crash after %d writes: run %d", n, len(ran)+1), func() (string, bool) {
				c, err := crons.Get(t.Context(), name, metav1.GetOptions{})
				must(t, err)
				if len(c.Status.Active) == 1 && !slices.Contains(ran, c.Status.Active[0].Name) {
					ran = append(ran, c.Status.Active[0].Name)
					return "", true
				}
				return fmt.Sprintf("%+v", c.Status), false
			})
		}
		// From here on nothing is due.
		c, err := crons.Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		c.Spec.Suspend = ptr.To(true)
		_, err = crons.Update(t.Context(), c, metav1.UpdateOptions{})
		must(t, err)
		_, names := r.jobs(t, bank)
		if names != ran[2] {
			t.Errorf("a crash after %d writes left the Jobs %q, want %s", n, names, ran[2])
		}
		r.complete(t, bank, ran[2])
		waitLooks(t, clk, fmt.Sprintf("a crash after %d writes: all goes", n), func() (string, bool) {
			c, err := crons.Get(t.Context(), name, metav1.GetOptions{})
			must(t, err)
			_, names := r.jobs(t, bank)
			return fmt.Sprintf("%+v %s", c.Status, names), names == "" && len(c.Status.Active) == 0 && c.Status.LastSuccessfulTime != nil
		})
		must(t, crons.Delete(t.Context(), name, metav1.DeleteOptions{}))
		made, gone := map[string]int{}, 0
		for gone < len(ran) {
			select {
			case e := <-watched.ResultChan():
				job := e.Object.(*batchv1.Job)
				switch e.Type {
				case "ADDED":
					made[job.Name]++
				case "DELETED":
					gone++
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("a crash after %d writes: the watch saw %v, and %d gone", n, made, gone)
			}
		}
		for job, times := range made {
			if times > 1 || !slices.Contains(ran, job) {
				t.Errorf("a crash after %d writes: Job %s was made %d times; the status told of %s", n, job, times, ran)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		return n - left
	}
	writes := play(enough)
	if writes < 10 || writes >= enough {
		t.Fatalf("%d writes without a crash", writes)
	}
	for n := range writes {
		if play(n + 1); t.Failed() {
			return
		}
	}
	t.Logf("crashed after each of %d writes", writes)
}

// atRest returns how many goroutines there are once there have been no more for two seconds: a server that has just started begins some later.
func atRest(t *testing.T) int {
	t.Helper()
	most, since := 0, time.Now()
	waitFor(t, time.Minute, "the server has begun all that it begins", func() (string, bool) {
		now := runtime.NumGoroutine()
		if now > most {
			most, since = now, time.Now()
		}
		return fmt.Sprintf("%d goroutines", now), time.Since(since) > 2*time.Second
	})
	return most
}

// A CronJob that is not due is a name in a queue.
func TestIdleCronJobsCostNoGoroutines(t *testing.T) {
	r := startServer(t, nil)
	clk := clocktesting.NewFakeClock(time.Now())
	runController(t, r, makeCronJobs(r, clk))
	r.createCronJob(t, shop, cronJob("before", "* * * * *", nil))
	runs := func(in kubernetes.Interface) func() (string, bool) { // by one client: each has connections of its own
		return func() (string, bool) {
			list, err := in.BatchV1().Jobs("default").List(t.Context(), metav1.ListOptions{})
			must(t, err)
			return "no Jobs", len(list.Items) > 0
		}
	}
	waitRuns(t, clk, "the controller is at work", runs(r.in(t, shop)))
	before, timers := atRest(t), clk.Waiters()
	const many, spare = 1000, 50
	crons := r.in(t, bank).BatchV1().CronJobs("default")
	r.createCronJob(t, bank, cronJob("idle", "0 0 1 1 *", nil))
	for i := range many {
		_, err := crons.Create(t.Context(), cronJob(fmt.Sprintf("idle-%d", i), "0 0 1 1 *", nil), metav1.CreateOptions{})
		must(t, err)
	}
	r.createCronJob(t, bank, cronJob("after", "* * * * *", nil))
	waitRuns(t, clk, "the controller has come to the last", runs(r.in(t, bank)))
	waitFor(t, 30*time.Second, fmt.Sprintf("%d CronJobs cost no goroutine and no timer", many), func() (string, bool) {
		now, ticking := runtime.NumGoroutine(), clk.Waiters()
		return fmt.Sprintf("%d goroutines, %d before; %d timers, %d before", now, before, ticking, timers), now < before+spare && ticking <= timers+workersOfAQueue
	})
}

// workersOfAQueue may each set a timer of the moment.
const workersOfAQueue = 8
