package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// peerProgram is what Atoll is compared with.
//
// What both servers have alike: TLS and its keys (ECDSA), a client certificate of an administrator, no audit log, no
// API Priority and Fairness, which in Atoll leaves administrators alone, admission by what Atoll has, too, storage in
// protobuf, etcd with fsync, no authenticating proxy. Atoll's process has its controllers, too: they do nothing about what is read, nor
// about ConfigMaps that are made. CREATE of what they work on is compared with a kube-apiserver that has controllers in its process, too.
type peerProgram struct {
	name, whose string // in names of rows
	how         string
	flag        string // of contrib/physical
	filled      bool   // with objects to read, before
	verbs       []peerVerb
}

var peerAlone = peerProgram{
	name: "kube-apiserver", whose: "kube-apiserver's",
	how:  "the kube-apiserver of contrib/physical, alone in its process",
	flag: "--only-apiserver", filled: true,
	verbs: []peerVerb{
		{name: peerGet, one: "a GET", workers: 16, how: "a ConfigMap of 1 KB and a Deployment in turns"},
		{name: peerList, one: "a LIST", workers: 4, how: "500 ConfigMaps of 1 KB and 500 Deployments in turns, without resourceVersion, uncompressed"},
		{name: peerCreateConfigMaps, one: "a CREATE of a ConfigMap", workers: 16, how: "ConfigMaps of 1 KB, which Atoll's controllers do nothing about"},
	},
}

var peerManaged = peerProgram{
	name: "kube-apiserver and kube-controller-manager", whose: "that of kube-apiserver and kube-controller-manager",
	how: "kube-apiserver and kube-controller-manager of contrib/physical in one process, without scheduler and nodes, " +
		"and with all controllers of its default, each at 500 requests a second where the default is 20",
	flag: "--no-scheduler",
	verbs: []peerVerb{{name: peerCreateDeployments, one: "a CREATE of a Deployment", workers: 16,
		how: "Deployments of 0 replicas; CPU counts until what they set off is done, which is not the same on both sides: Atoll, without a physical cluster, " +
			"writes a status and an Event that it is placed nowhere, and of the first in a namespace a Placement; kube-controller-manager writes a ReplicaSet and its status, and the " +
			"Deployment's three times. Of 3 replicas it writes pods and Events, too, which Atoll leaves to physical clusters: told beside the figure, and no part of it"}},
}

const howPeer = "same TLS, client certificate, no audit, " +
	"no priority and fairness, limits in flight that are not reached, the admission plugins that both have; median of the ratios; protobuf. "

// withoutAtoll are the admission plugins that a kube-apiserver has by default, and Atoll does not have. None of them looks at what
// is compared.
var withoutAtoll = []string{"TaintNodesByCondition", "StorageObjectInUseProtection", "DefaultStorageClass", "ClusterTrustBundleAttest", "PodTopologyLabels"}

const (
	peerConnections = 8
	peerRounds      = 7
	// listedObjects are in every list of a full run.
	listedObjects = 500
)

// peerVerb is one verb that is compared.
type peerVerb struct {
	name, one string
	how       string
	workers   int
}

// The names of verbs.
const (
	peerGet               = "GET"
	peerList              = "LIST"
	peerCreateConfigMaps  = "CREATE of ConfigMaps"
	peerCreateDeployments = "CREATE of Deployments"
)

// peerScope is where the requests go.
type peerScope struct {
	name string
	how  string
	many bool
}

var peerScopes = []peerScope{
	{name: "one workspace", how: "in one namespace on both sides"},
	{name: "many workspaces", how: "spread over --workspaces, and over as many namespaces of the kube-apiserver", many: true},
}

// peerStore is where both sides keep what they have.
type peerStore struct {
	name string
	how  string
	same bool
}

var (
	peerSame = peerStore{name: "same etcd", how: "both on one etcd in a third process", same: true}
	peerOwn  = peerStore{name: "own etcd", how: "each with an etcd in its process, which is of the process's CPU"}
)

func peerThroughput(with peerProgram, v peerVerb, s peerScope, store peerStore) string {
	return fmt.Sprintf("%s against %s, %s, %s", v.name, with.name, s.name, store.name)
}

func peerCPU(with peerProgram, v peerVerb, s peerScope, store peerStore) string {
	return fmt.Sprintf("CPU of %s against %s, %s, %s", v.one, with.whose, s.name, store.name)
}

func peerScenario(name string, with peerProgram, store peerStore) Scenario {
	scenario := Scenario{Name: name, Run: func(ctx context.Context, env *Env) error { return runPeer(ctx, env, with, store) }}
	for _, s := range peerScopes {
		for _, v := range with.verbs {
			how := "alternating rounds against " + with.how + ": " + howPeer + v.how + ", " + s.how
			if s.many && v.name == peerList {
				how += "; lists of the first of them"
			}
			how += "; " + store.how
			scenario.Rows = append(scenario.Rows,
				Row{Name: peerThroughput(with, v, s, store), Goal: atLeast(1), How: "requests per second: " + how},
				Row{Name: peerCPU(with, v, s, store), Goal: atMost(1), How: "user and system time of the server's process for each request: " + how})
		}
	}
	return scenario
}

var (
	peerSameEtcd        = peerScenario("peer-same-etcd", peerAlone, peerSame)
	peerOwnEtcd         = peerScenario("peer-own-etcd", peerAlone, peerOwn)
	peerManagedSameEtcd = peerScenario("peer-managed-same-etcd", peerManaged, peerSame)
	peerManagedOwnEtcd  = peerScenario("peer-managed-own-etcd", peerManaged, peerOwn)
)

// peers are the two sides and what is asked of them.
type peers struct {
	env   *Env
	with  peerProgram
	store peerStore
	// listedHomes are the first homes, whose lists are compared; listed are the objects of each kind in every one of them.
	listedHomes, listed    int
	atoll, kube            *peerSide
	config, workload, zero peerKind
}

func runPeer(ctx context.Context, env *Env, with peerProgram, store peerStore) error {
	p := &peers{env: env, with: with, store: store, listed: env.N(listedObjects, 20)}
	if with.filled {
		p.listedHomes = env.N(10, 2)
	}
	if env.Workspaces <= p.listedHomes {
		return fmt.Errorf("--workspaces=%d: lists are of %d of them, and creates go to others: give more", env.Workspaces, p.listedHomes)
	}
	if err := p.start(ctx); err != nil {
		return err
	}
	defer p.atoll.close()
	defer p.kube.close()
	if err := p.makeNamespaces(ctx); err != nil {
		return err
	}
	if with.filled {
		if err := p.fill(ctx); err != nil {
			return err
		}
	}
	for _, scope := range peerScopes {
		for _, verb := range with.verbs {
			if !env.Asked(peerThroughput(with, verb, scope, store), peerCPU(with, verb, scope, store)) {
				continue
			}
			if err := p.compare(ctx, verb, scope); err != nil {
				return fmt.Errorf("%s, %s: %w", verb.name, scope.name, err)
			}
		}
	}
	return nil
}

func (p *peers) start(ctx context.Context) error {
	var err error
	if p.config, err = peerConfigMap(); err != nil {
		return err
	}
	if p.workload, err = peerDeployment(peerReplicas); err != nil {
		return err
	}
	if p.zero, err = peerDeployment(0); err != nil {
		return err
	}
	var flags []string
	kubeFlags := []string{
		p.with.flag, "--audit-log=false", "--etcd-fsync",
		"--apiserver-flag=--enable-priority-and-fairness=false",
		"--apiserver-flag=--max-requests-inflight=1600",
		"--apiserver-flag=--max-mutating-requests-inflight=800",
		"--apiserver-flag=--requestheader-client-ca-file=",
		"--apiserver-flag=--disable-admission-plugins=" + strings.Join(withoutAtoll, ","),
	}
	if p.store.same {
		store, err := startPart(ctx, p.env, "store", "--only-etcd", "--etcd-fsync")
		if err != nil {
			return err
		}
		flags = append(store.etcdFlags(), "--etcd-servers="+store.URL)
		kubeFlags = append(kubeFlags, "--etcd-servers="+store.URL, "--apiserver-flag=--etcd-prefix=/kube")
		for _, flag := range store.etcdFlags() {
			kubeFlags = append(kubeFlags, "--apiserver-flag="+flag)
		}
	}
	kube, err := startPart(ctx, p.env, "kube", kubeFlags...)
	if err != nil {
		return err
	}
	kubeConfig, err := clientcmd.BuildConfigFromFlags("", kube.Kubeconfig)
	if err != nil {
		return err
	}
	if p.kube, err = newPeerSide(kube.PID, kubeConfig, peerConnections); err != nil {
		return err
	}
	a := p.env.StartAtoll(flags...)
	if p.atoll, err = newPeerSide(a.PID(), a.Config(), peerConnections); err != nil {
		return err
	}
	workspaces, err := NewWorkspaces(ctx, p.env, a.Clients())
	if err != nil {
		return err
	}
	p.env.Progress("make %d workspaces", p.env.Workspaces)
	clusters, _, _, err := workspaces.CreateMany(ctx, 0, p.env.Workspaces)
	if err != nil {
		return err
	}
	for i, cluster := range clusters {
		p.atoll.homes = append(p.atoll.homes, home{prefix: "/clusters/" + string(cluster), namespace: "default"})
		p.kube.homes = append(p.kube.homes, home{namespace: fmt.Sprintf("bench-%06d", i)})
	}
	return nil
}

// makeNamespaces makes the homes of the kube-apiserver; those of Atoll have theirs.
func (p *peers) makeNamespaces(ctx context.Context) error {
	p.env.Progress("make as many namespaces of the kube-apiserver")
	_, _, err := Load(ctx, inFlight, len(p.kube.homes), func(ctx context.Context, i int) error {
		return p.kube.makeNamespace(ctx, i, p.kube.homes[i].namespace)
	})
	return err
}

// fill makes the objects that are read: in the first homes those of the lists, with the numbers 1 to listed, and
// in each of the others one with the number 1.
func (p *peers) fill(ctx context.Context) error {
	p.env.Progress("make the objects on both sides")
	type made struct{ home, number int }
	var all []made
	for i := range p.kube.homes {
		objects := 1
		if i < p.listedHomes {
			objects = p.listed
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
		side.made.Store(int64(p.listed))
	}
	// What is read is the same on both sides: where no controller is, nobody writes a status.
	last := all[len(all)-1]
	err := p.atoll.rest(ctx, func(ctx context.Context) (bool, error) {
		return p.atoll.handled(ctx, p.workload, p.atoll.homes[last.home], last.number)
	})
	if err != nil {
		return err
	}
	_, _, err = Load(ctx, inFlight, len(all), func(ctx context.Context, i int) error {
		at := all[i]
		ours, err := p.atoll.deployment(ctx, i, p.workload, p.atoll.homes[at.home], at.number)
		if err != nil {
			return err
		}
		return p.kube.tell(ctx, i, p.workload, p.kube.homes[at.home], at.number, ours.Status)
	})
	return err
}

// request returns what a worker does again and again.
func (p *peers) request(side *peerSide, verb peerVerb, scope peerScope, l peerLoad) func(ctx context.Context, worker, i int) error {
	return func(ctx context.Context, worker, i int) error {
		kind := l.kinds[i%len(l.kinds)]
		i /= len(l.kinds)
		switch verb.name {
		case peerGet:
			number, at := 1+i%p.listed, side.homes[0]
			if scope.many {
				number, at = 1, side.homes[i%len(side.homes)]
			}
			return side.do(ctx, worker, "GET", kind.path(at)+"/"+objectName(number), l.enc, nil, 200)
		case peerList:
			at := side.homes[0]
			if scope.many {
				at = side.homes[i%p.listedHomes]
			}
			return side.do(ctx, worker, "GET", kind.path(at), l.enc, nil, 200)
		}
		number := int(side.made.Add(1))
		return side.createNamed(ctx, worker, kind, l.enc, p.newHome(side, scope, number), number)
	}
}

// newHome is where the object of a number is made: not where lists are, so that those stay as long as they are.
func (p *peers) newHome(side *peerSide, scope peerScope, number int) home {
	homes := side.homes[p.listedHomes:]
	if !scope.many {
		return homes[0]
	}
	return homes[number%len(homes)]
}

// peerLoad is one kind of load that is compared.
type peerLoad struct {
	name  string // of one that is told beside the figure
	enc   encoding
	kinds []peerKind
	// how long a round is, and how many there are in a full run
	how    time.Duration
	rounds int
}

// loads are that of the figures of a verb, and one that is told beside it.
func (p *peers) loads(verb peerVerb) (figure, beside peerLoad) {
	how := time.Duration(p.env.N(2000, 300)) * time.Millisecond
	kinds := []peerKind{p.config, p.workload}
	switch verb.name {
	case peerCreateDeployments:
		// Shorter, and fewer: what is set off takes several times as long, and more the more Deployments a namespace has.
		return peerLoad{enc: inProtobuf, kinds: []peerKind{p.zero}, how: how / 4, rounds: peerRounds},
			peerLoad{name: fmt.Sprintf("of %d replicas", peerReplicas), enc: inProtobuf, kinds: []peerKind{p.workload}, how: how / 8, rounds: 3}
	case peerCreateConfigMaps:
		kinds = []peerKind{p.config}
	}
	return peerLoad{enc: inProtobuf, kinds: kinds, how: how, rounds: peerRounds},
		peerLoad{name: "JSON", enc: inJSON, kinds: kinds, how: how / 2, rounds: peerRounds}
}

func (p *peers) compare(ctx context.Context, verb peerVerb, scope peerScope) error {
	load, other := p.loads(verb)
	rounds, cpu, err := p.rounds(ctx, verb, scope, load)
	if err != nil {
		return err
	}
	beside, besideCPU, err := p.rounds(ctx, verb, scope, other)
	if err != nil {
		return err
	}
	throughputDetail := []string{fmt.Sprintf("%s/s against %s/s", number(Median(rounds.A)), number(Median(rounds.B))), other.name + " " + number(Median(beside.Ratios))}
	cpuDetail := []string{fmt.Sprintf("%s ms against %s ms", threeDigits(Median(cpu.A)), threeDigits(Median(cpu.B))), other.name + " " + number(Median(besideCPU.Ratios))}
	samples, cpuSamples := rounds.Samples("Atoll /s", p.with.name+" /s"), cpu.Samples("Atoll ms", p.with.name+" ms")
	samples[other.name+": ratio of each round"], cpuSamples[other.name+": ratio of each round"] = beside.Ratios, besideCPU.Ratios
	if err := p.env.Report(peerThroughput(p.with, verb, scope, p.store), Median(rounds.Ratios), strings.Join(throughputDetail, "; "), samples); err != nil {
		return err
	}
	return p.env.Report(peerCPU(p.with, verb, scope, p.store), Median(cpu.Ratios), strings.Join(cpuDetail, "; "), cpuSamples)
}

// rounds measures requests per second and milliseconds of CPU for each, Atoll's and the peer's.
func (p *peers) rounds(ctx context.Context, verb peerVerb, scope peerScope, l peerLoad) (throughput, cpu Rounds, err error) {
	measure := func(side *peerSide, cpu *[]float64) func(context.Context) (float64, error) {
		request := p.request(side, verb, scope, l)
		return func(ctx context.Context) (float64, error) {
			// Controllers look at each Deployment that was made: not while the other side is measured, or the next requests.
			if err := settle(ctx, p.atoll.pid, p.kube.pid); err != nil {
				return 0, err
			}
			b, err := side.load(ctx, verb.workers, l.how, request, func(ctx context.Context) (bool, error) {
				if verb.name != peerCreateDeployments {
					return true, nil
				}
				last := int(side.made.Load())
				return side.handled(ctx, l.kinds[0], p.newHome(side, scope, last), last)
			})
			*cpu = append(*cpu, b.cpu)
			return b.perSecond, err
		}
	}
	throughput, err = Compare(ctx, p.env.N(l.rounds, 1), measure(p.atoll, &cpu.A), measure(p.kube, &cpu.B))
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
