package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// What both servers have alike: TLS and its keys (ECDSA), a client certificate of an administrator, no audit log, no
// API Priority and Fairness, which in Atoll leaves administrators alone, admission by what Atoll has, too, storage in
// protobuf, etcd with fsync. The kube-apiserver is alone in its process, without an authenticating proxy; Atoll's process
// has its controllers, too.
const howPeer = "alternating rounds against the kube-apiserver of contrib/physical, alone in its process: same TLS, client certificate, no audit, " +
	"no priority and fairness, limits in flight that are not reached, the admission plugins that both have; median of the ratios; protobuf. "

// withoutAtoll are the admission plugins that a kube-apiserver has by default, and Atoll does not have. None of them looks at what
// is compared.
var withoutAtoll = []string{"TaintNodesByCondition", "StorageObjectInUseProtection", "ClusterTrustBundleAttest", "PodTopologyLabels"}

const (
	peerConnections = 8
	peerRounds      = 7
	// listedObjects are in every list.
	listedObjects = 500
)

// peerVerb is one verb that is compared.
type peerVerb struct {
	name    string
	how     string
	workers int
}

var peerVerbs = []peerVerb{
	{name: "GET", workers: 16, how: "a ConfigMap of 1 KB and a Deployment in turns"},
	{name: "LIST", workers: 4, how: "500 ConfigMaps of 1 KB and 500 Deployments in turns, without resourceVersion, uncompressed"},
	{name: "CREATE", workers: 16, how: "ConfigMaps of 1 KB and Deployments in turns"},
}

// peerScope is where the requests go.
type peerScope struct {
	name string
	how  string
	many bool
}

var peerScopes = []peerScope{
	{name: "one workspace", how: "in one namespace on both sides"},
	{name: "many workspaces", how: "spread over --workspaces, and over as many namespaces of the kube-apiserver; lists of the first of them", many: true},
}

func peerThroughput(v peerVerb, s peerScope, etcd string) string {
	return fmt.Sprintf("%s against kube-apiserver, %s, %s etcd", v.name, s.name, etcd)
}

func peerCPU(v peerVerb, s peerScope, etcd string) string {
	return fmt.Sprintf("CPU of a %s against kube-apiserver's, %s, %s etcd", v.name, s.name, etcd)
}

func peerRows(etcd, where string) []Row {
	var rows []Row
	for _, s := range peerScopes {
		for _, v := range peerVerbs {
			how := howPeer + v.how + ", " + s.how + "; " + where
			rows = append(rows,
				Row{Name: peerThroughput(v, s, etcd), Goal: atLeast(1), How: "requests per second: " + how},
				Row{Name: peerCPU(v, s, etcd), Goal: atMost(1), How: "user and system time of the server's process for each request: " + how})
		}
	}
	return rows
}

var peerSameEtcd = Scenario{
	Name: "peer-same-etcd",
	Rows: peerRows("same", "both on one etcd in a third process"),
	Run:  func(ctx context.Context, env *Env) error { return runPeer(ctx, env, "same") },
}

var peerOwnEtcd = Scenario{
	Name: "peer-own-etcd",
	Rows: peerRows("own", "each with an etcd in its process, which is of the process's CPU"),
	Run:  func(ctx context.Context, env *Env) error { return runPeer(ctx, env, "own") },
}

// peers are the two sides and what is asked of them.
type peers struct {
	env *Env
	// listedHomes are the first homes, whose lists are compared.
	listedHomes      int
	atoll, kube      *peerSide
	config, workload peerKind
}

func runPeer(ctx context.Context, env *Env, etcd string) error {
	p, err := startPeers(ctx, env, etcd == "same")
	if err != nil {
		return err
	}
	defer p.atoll.close()
	defer p.kube.close()
	if err := p.fill(ctx); err != nil {
		return err
	}
	for _, scope := range peerScopes {
		for _, verb := range peerVerbs {
			if err := p.compare(ctx, verb, scope, etcd); err != nil {
				return fmt.Errorf("%s, %s: %w", verb.name, scope.name, err)
			}
		}
	}
	return nil
}

func startPeers(ctx context.Context, env *Env, sameEtcd bool) (*peers, error) {
	p := &peers{env: env, listedHomes: env.N(10, 2)}
	if env.Workspaces <= p.listedHomes {
		return nil, fmt.Errorf("--workspaces=%d: lists are of %d of them, and creates go to others: give more", env.Workspaces, p.listedHomes)
	}
	var err error
	if p.config, err = peerConfigMap(); err != nil {
		return nil, err
	}
	if p.workload, err = peerDeployment(); err != nil {
		return nil, err
	}
	var flags []string
	kubeFlags := []string{
		"--only-apiserver", "--audit-log=false", "--etcd-fsync",
		"--apiserver-flag=--enable-priority-and-fairness=false",
		"--apiserver-flag=--max-requests-inflight=1600",
		"--apiserver-flag=--max-mutating-requests-inflight=800",
		"--apiserver-flag=--requestheader-client-ca-file=",
		"--apiserver-flag=--disable-admission-plugins=" + strings.Join(withoutAtoll, ","),
	}
	if sameEtcd {
		store, err := startPart(ctx, env, "store", "--only-etcd", "--etcd-fsync")
		if err != nil {
			return nil, err
		}
		flags = append(store.etcdFlags(), "--etcd-servers="+store.URL)
		kubeFlags = append(kubeFlags, "--etcd-servers="+store.URL, "--apiserver-flag=--etcd-prefix=/kube")
		for _, flag := range store.etcdFlags() {
			kubeFlags = append(kubeFlags, "--apiserver-flag="+flag)
		}
	}
	kube, err := startPart(ctx, env, "kube", kubeFlags...)
	if err != nil {
		return nil, err
	}
	kubeConfig, err := clientcmd.BuildConfigFromFlags("", kube.Kubeconfig)
	if err != nil {
		return nil, err
	}
	if p.kube, err = newPeerSide(kube.PID, kubeConfig, peerConnections); err != nil {
		return nil, err
	}
	a := env.StartAtoll(flags...)
	if p.atoll, err = newPeerSide(a.PID(), a.Config(), peerConnections); err != nil {
		return nil, err
	}
	workspaces, err := NewWorkspaces(ctx, env, a.Clients())
	if err != nil {
		return nil, err
	}
	env.Progress("make %d workspaces", env.Workspaces)
	clusters, _, _, err := workspaces.CreateMany(ctx, 0, env.Workspaces)
	if err != nil {
		return nil, err
	}
	for i, cluster := range clusters {
		p.atoll.homes = append(p.atoll.homes, home{prefix: "/clusters/" + string(cluster), namespace: "default"})
		p.kube.homes = append(p.kube.homes, home{namespace: fmt.Sprintf("bench-%06d", i)})
	}
	return p, nil
}

// fill makes the objects that are read: in the first homes those of the lists, with the numbers 1 to listedObjects, and
// in each of the others one with the number 1.
func (p *peers) fill(ctx context.Context) error {
	p.env.Progress("make the objects on both sides")
	kubeHomes := p.kube.homes
	_, _, err := Load(ctx, inFlight, len(kubeHomes), func(ctx context.Context, i int) error {
		return p.kube.makeNamespace(ctx, i, kubeHomes[i].namespace)
	})
	if err != nil {
		return err
	}
	type made struct{ home, number int }
	var all []made
	for i := range kubeHomes {
		objects := 1
		if i < p.listedHomes {
			objects = listedObjects
		}
		for number := range objects {
			all = append(all, made{i, number + 1})
		}
	}
	for _, side := range []*peerSide{p.atoll, p.kube} {
		_, _, err := Load(ctx, inFlight, len(all), func(ctx context.Context, i int) error {
			for _, kind := range []peerKind{p.config, p.workload} {
				if err := side.createNamed(ctx, i, kind, inProtobuf, side.homes[all[i].home], all[i].number); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		side.made.Store(listedObjects)
	}
	return nil
}

// request returns what a worker does again and again.
func (p *peers) request(side *peerSide, verb peerVerb, scope peerScope, enc encoding, kinds ...peerKind) func(ctx context.Context, worker, i int) error {
	return func(ctx context.Context, worker, i int) error {
		kind := kinds[i%len(kinds)]
		i /= len(kinds)
		switch verb.name {
		case "GET":
			number, at := 1+i%listedObjects, side.homes[0]
			if scope.many {
				number, at = 1, side.homes[i%len(side.homes)]
			}
			return side.do(ctx, worker, "GET", kind.path(at)+"/"+objectName(number), enc, nil, 200)
		case "LIST":
			at := side.homes[0]
			if scope.many {
				at = side.homes[i%p.listedHomes]
			}
			return side.do(ctx, worker, "GET", kind.path(at), enc, nil, 200)
		}
		at := side.homes[p.listedHomes] // not where lists are, so that those stay as long as they are
		if scope.many {
			at = side.homes[p.listedHomes+i%(len(side.homes)-p.listedHomes)]
		}
		return side.create(ctx, worker, kind, enc, at)
	}
}

// peerLoad is one kind of load that is compared.
type peerLoad struct {
	enc   encoding
	kinds []peerKind
	how   time.Duration
}

func (p *peers) compare(ctx context.Context, verb peerVerb, scope peerScope, etcd string) error {
	goalTime := time.Duration(p.env.N(2000, 300)) * time.Millisecond
	kinds := []peerKind{p.config, p.workload}
	rounds, cpu, err := p.rounds(ctx, verb, scope, peerLoad{enc: inProtobuf, kinds: kinds, how: goalTime})
	if err != nil {
		return err
	}
	json, jsonCPU, err := p.rounds(ctx, verb, scope, peerLoad{enc: inJSON, kinds: kinds, how: goalTime / 2})
	if err != nil {
		return err
	}
	throughputDetail := []string{fmt.Sprintf("%s/s against %s/s", number(Median(rounds.A)), number(Median(rounds.B))), "JSON " + number(Median(json.Ratios))}
	cpuDetail := []string{fmt.Sprintf("%s ms against %s ms", threeDigits(Median(cpu.A)), threeDigits(Median(cpu.B))), "JSON " + number(Median(jsonCPU.Ratios))}
	samples, cpuSamples := rounds.Samples("Atoll /s", "kube-apiserver /s"), cpu.Samples("Atoll ms", "kube-apiserver ms")
	samples["JSON: ratio of each round"], cpuSamples["JSON: ratio of each round"] = json.Ratios, jsonCPU.Ratios
	if err := p.env.Report(peerThroughput(verb, scope, etcd), Median(rounds.Ratios), strings.Join(throughputDetail, "; "), samples); err != nil {
		return err
	}
	return p.env.Report(peerCPU(verb, scope, etcd), Median(cpu.Ratios), strings.Join(cpuDetail, "; "), cpuSamples)
}

// rounds measures requests per second and milliseconds of CPU for each, Atoll's and the kube-apiserver's.
func (p *peers) rounds(ctx context.Context, verb peerVerb, scope peerScope, l peerLoad) (throughput, cpu Rounds, err error) {
	measure := func(side *peerSide, cpu *[]float64) func(context.Context) (float64, error) {
		request := p.request(side, verb, scope, l.enc, l.kinds...)
		return func(ctx context.Context) (float64, error) {
			// Atoll's controllers look at each Deployment that was made: not while the other side is measured, or the next requests.
			if err := settle(ctx, p.atoll.pid, p.kube.pid); err != nil {
				return 0, err
			}
			b, err := side.load(ctx, verb.workers, l.how, request)
			*cpu = append(*cpu, b.cpu)
			return b.perSecond, err
		}
	}
	throughput, err = Compare(ctx, p.env.N(peerRounds, 1), measure(p.atoll, &cpu.A), measure(p.kube, &cpu.B))
	if err != nil {
		return throughput, cpu, err
	}
	cpu.A, cpu.B = cpu.A[1:], cpu.B[1:] // the uncounted round
	for i := range cpu.A {
		cpu.Ratios = append(cpu.Ratios, cpu.A[i]/cpu.B[i])
	}
	return throughput, cpu, nil
}

// threeDigits renders small figures, too, with three digits.
func threeDigits(v float64) string { return fmt.Sprintf("%.3g", v) }
