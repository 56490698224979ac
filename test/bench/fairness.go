package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"atoll.dev/atoll/client"
)

const (
	fairWrites  = "p99 of a quiet workspace while another floods writes"
	fairLists   = "p99 of a quiet workspace while another floods lists"
	fairWatches = "p99 of a quiet workspace while another has 1,000 watches of what it writes"

	fairnessRounds = 5
	// quietRequests are measured in a round, one after the other, with a pause in between.
	quietRequests = 1500
	quietPause    = 5 * time.Millisecond
	// floodListed objects are in every list of the flood.
	floodListed = 1000
)

var fairness = Scenario{
	Name: "fairness",
	Rows: []Row{
		{Name: fairWrites, Goal: atMost(2), How: howFair + "64 clients of the other create ConfigMaps"},
		{Name: fairLists, Goal: atMost(2), How: howFair + "64 clients of the other list 1,000 ConfigMaps each time"},
		{Name: fairWatches, Goal: atMost(2), How: howFair + "the other has 1,000 watches of its ConfigMaps and 64 clients who create some"},
	},
	Run: runFairness,
}

const howFair = "GETs and CREATEs of ConfigMaps in turns, one at a time, by a user with a role: p99 during the flood against p99 just before or after it, " +
	"median of alternating rounds; the flood comes from a process of this machine that yields to the others (nice 19); "

// fair are two workspaces of two users.
type fair struct {
	env     *Env
	pid     int
	quiet   logicalcluster.Name
	asQuiet *client.Clients
	created int
	loud    flood
}

func runFairness(ctx context.Context, env *Env) error {
	f, err := startFair(ctx, env)
	if err != nil {
		return err
	}
	for _, row := range []struct {
		name, of string
		watches  int
	}{
		{fairWrites, floodOfWrites, 0}, {fairLists, floodOfLists, 0}, {fairWatches, floodOfWrites, env.N(floodWatches, 20)},
	} {
		if !env.Asked(row.name) {
			continue
		}
		env.Progress("%s", row.name)
		loud := f.loud
		loud.Of, loud.Watches = row.of, row.watches
		var rates []float64
		unflooded := func(ctx context.Context) (float64, error) {
			if err := settle(ctx, f.pid); err != nil {
				return 0, err
			}
			return f.p99(ctx)
		}
		flooded := func(ctx context.Context) (float64, error) {
			stop, err := loud.start(ctx)
			if err != nil {
				return 0, err
			}
			figure, err := f.p99(ctx)
			did, stopped := stop()
			rates = append(rates, did.rate())
			return figure, errors.Join(err, stopped)
		}
		r, err := Compare(ctx, env.N(fairnessRounds, 1), flooded, unflooded)
		if err != nil {
			return fmt.Errorf("%s: %w", row.name, err)
		}
		if err := env.Report(row.name, Median(r.Ratios),
			fmt.Sprintf("%s ms against %s ms; %s/s flooded", number(Median(r.A)), number(Median(r.B)), number(Median(rates[1:]))), // without the uncounted round
			r.Samples("ms, flooded", "ms, not flooded")); err != nil {
			return err
		}
	}
	return nil
}

func startFair(ctx context.Context, env *Env) (*fair, error) {
	tokens := filepath.Join(env.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("quiettoken,quiet,1\nloudtoken,loud,2\n"), 0o600); err != nil {
		return nil, err
	}
	a := env.StartAtoll("--token-auth-file=" + tokens)
	admin := a.Clients()
	workspaces, err := NewWorkspaces(ctx, env, admin)
	if err != nil {
		return nil, err
	}
	clusters, _, _, err := workspaces.CreateMany(ctx, 0, 2)
	if err != nil {
		return nil, err
	}
	written := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "written"}}
	if _, err := admin.Kube.CoreV1().Namespaces().Create(client.In(ctx, clusters[1]), written, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create namespace %q: %w", written.Name, err)
	}
	config := rest.AnonymousClientConfig(a.Config())
	config.QPS, config.BearerToken = -1, "quiettoken"
	config.Dial = (&net.Dialer{}).DialContext // connections of its own
	f := &fair{env: env, pid: a.PID(), quiet: clusters[0]}
	if f.asQuiet, err = client.New(config); err != nil {
		return nil, err
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, err
	}
	f.loud = flood{Server: config.Host, CA: config.CAData, Token: "loudtoken", Cluster: clusters[1], List: "default", Write: written.Name}
	for i, name := range []string{"quiet", "loud"} {
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
		}
		if _, err := admin.Kube.RbacV1().ClusterRoleBindings().Create(client.In(ctx, clusters[i]), binding, metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("let %s into logical cluster %q: %w", name, clusters[i], err)
		}
	}
	env.Progress("make %d ConfigMaps", floodListed)
	_, _, err = Load(ctx, floodWorkers, env.N(floodListed, 20), func(ctx context.Context, i int) error {
		return put(ctx, admin, f.loud.Cluster, "listed-"+strconv.Itoa(i))
	})
	return f, err
}

// p99 of the requests of the quiet workspace, in ms.
func (f *fair) p99(ctx context.Context) (float64, error) {
	n := f.env.N(quietRequests, 10)
	ms := make([]float64, 0, n)
	last := ""
	for i := range n {
		began := time.Now()
		if i%2 == 0 {
			last = "quiet-" + strconv.Itoa(f.created)
			f.created++
			if err := put(ctx, f.asQuiet, f.quiet, last); err != nil {
				return 0, err
			}
		} else if _, err := f.asQuiet.Kube.CoreV1().ConfigMaps("default").Get(client.In(ctx, f.quiet), last, metav1.GetOptions{}); err != nil {
			return 0, err
		}
		ms = append(ms, Milliseconds(time.Since(began)))
		if err := pause(ctx, quietPause); err != nil {
			return 0, err
		}
	}
	return Percentile(ms, 99), nil
}
