package e2e

import (
	"encoding/base64"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/atoll/test/framework"
)

const (
	walkSteps   = 12000
	walkWorkers = 4
	// walkAtLeast is how long a walk goes on that has done its steps, and walkSoakAtLeast where ATOLL_SOAK=1.
	walkAtLeast     = time.Minute
	walkSoakAtLeast = 2 * time.Hour
)

// TestI1_NoBleed_RandomWalk lets the admins of a, a person and a ServiceAccount, try verbs and paths at random, among them every trick with
// clusters, tokens, headers and names that we could think of. No answer ever shows anything of b, and b stays as it is. Both
// have custom resources of the same name, webhooks and policies: none is asked about, or changes, what is the other's. It goes on for so
// many steps, and for a minute at least, two hours where ATOLL_SOAK=1.
func TestI1_NoBleed_RandomWalk(t *testing.T) {
	t.Parallel()
	seed := framework.Seed(t)
	atLeast := walkAtLeast
	if soaking() {
		atLeast = walkSoakAtLeast
	}
	reach := newReach(t)
	w := newIsoWorld(t, "--webhook-allowed-addresses=127.0.0.1", // where the webhooks of the test are
		fmt.Sprintf("--event-ttl=%s", atLeast+time.Hour)) // Events of b are to be there at the end
	reach.act(t, w)
	before := w.settled(t, w.b)
	var (
		wait  sync.WaitGroup
		mu    sync.Mutex
		codes = map[int]int{}
		// refused is how often a's own policy refused something.
		refused int
	)
	began := time.Now()
	var done atomic.Int64
	for worker := range walkWorkers {
		wait.Go(func() {
			// Each worker has its own sequence, so that a seed gives the same requests, if not the same order among workers, nor as many.
			walk := &isoWalk{w: w, tokens: []string{tokenA, tokenA, tokenA, reach.robot, reach.robot, reach.robot, reach.forged}, random: rand.New(rand.NewPCG(seed, uint64(worker)))}
			for step := 0; step < walkSteps/walkWorkers || time.Since(began) < atLeast; step++ {
				done.Add(1)
				next := walk.next(t)
				got, err := send(t.Context(), w.http, w.URL, next)
				if err != nil {
					// A path that is no path is refused before it is sent.
					continue
				}
				mu.Lock()
				codes[got.code]++
				if got.code == http.StatusUnprocessableEntity && strings.Contains(got.body, refusedWords) {
					refused++
				}
				mu.Unlock()
				if shown := walk.shows(got); shown != "" {
					t.Errorf("worker %d step %d: %s %s %v shows %s: %d %.500s", worker, step, next.method, next.path, next.header, shown, got.code, got.body)
				}
				// As upstream, 500 is what the store answers to a namespace or name "..", and what is answered to who wants one custom resource as a list.
				expected := got.code == http.StatusNotImplemented || got.code == http.StatusGatewayTimeout ||
					strings.Contains(got.body, "invalid key") || strings.Contains(got.body, "content is not a list")
				if got.code >= http.StatusInternalServerError && !expected {
					t.Errorf("worker %d step %d: %s %s %v fails: %d %.500s", worker, step, next.method, next.path, next.header, got.code, got.body)
				}
			}
		})
	}
	wait.Wait()
	t.Logf("figure %s: %s", "walked", time.Since(began).Round(time.Second))
	t.Logf("figure %s: %d", "steps", done.Load())
	t.Logf("answers by code: %v", codes)
	answers := 0
	for _, n := range codes {
		answers += n
	}
	t.Logf("figure %s: %d", "requests answered", answers)
	for _, code := range []int{http.StatusOK, http.StatusCreated, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusBadRequest, http.StatusConflict} {
		if codes[code] == 0 {
			t.Errorf("no answer of the walk was %d: it does not reach far", code)
		}
	}
	if asked := reach.asked[0].Load(); asked == 0 || refused == 0 {
		t.Errorf("the webhook of a was asked %d times by the walk, its policy refused %d requests: it does not reach far", asked, refused)
	}
	reach.stands(t, w)
	if diff := cmp.Diff(before, w.dump(t, w.b)); diff != "" {
		t.Errorf("the walk in a changed b (- before, + after):\n%s", diff)
	}
}

// isoWalk is one worker of the walk.
type isoWalk struct {
	w      *isoWorld
	tokens []string // of who walks
	random *rand.Rand
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// shows says what of b an answer shows: "" for nothing.
func (k *isoWalk) shows(got answer) string {
	for _, secret := range []string{canary, base64.StdEncoding.EncodeToString([]byte(canary))} {
		if strings.Contains(got.body, secret) {
			return "b's canary in the body"
		}
		for key, values := range got.header {
			if strings.Contains(key+strings.Join(values, " "), secret) {
				return "b's canary in header " + key
			}
		}
	}
	// An object of another cluster without the canary: what the system wrote.
	inYAML := clusterAnnotation + ": " + k.w.b.String()
	if (strings.Contains(got.body, `"`+clusterAnnotation+`":"`+k.w.b.String()+`"`) || strings.Contains(got.body, inYAML)) && !strings.Contains(got.body, `"kind":"Status"`) {
		return "an object of b"
	}
	return ""
}

// next is the next request of the walk.
func (k *isoWalk) next(t *testing.T) request {
	r, random := k.w.resources[k.random.IntN(len(k.w.resources))], k.random
	a, b := k.w.a.String(), k.w.b.String()
	cluster := a
	switch random.IntN(6) {
	case 0: // plainly another's
		cluster = pick(random, b, "root:b", "*")
	case 1:
		cluster = pick(random, "root:a", b, "root:b", "*", "root", "system:admin", a+"%2f"+b, a+"/../"+b, "%2e%2e/"+b, a+"%00"+b,
			"root:a:../"+b, b+"%20", strings.ToUpper(b), "root:b:iso", "a:b", "system:"+b, "", ".", "..", "*:"+b, a+","+b, "nothere123", "root:a/clusters/"+b, "/"+b)
	}
	namespace := r.namespace()
	if r.namespaced {
		namespace = pick(random, isoNamespace, isoNamespace, "", "default", b, "..", "*", "%2e%2e", isoNamespace+"%2f.."+"%2f"+b)
	} else if random.IntN(10) == 0 {
		namespace = isoNamespace
	}
	name := pick(random, r.name(), r.name(), "", r.name()+"-second", "..%2f"+b+"%2f"+isoNamespace+"%2f"+r.name(), b, "%2e%2e", "..", "*", b+"/"+r.name(), "walk-"+strconv.Itoa(random.IntN(20)))
	verb := pick(random, http.MethodGet, http.MethodGet, http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodHead, http.MethodOptions)
	switch random.IntN(4) {
	case 0: // what is likely to be there
		namespace, name = r.namespace(), r.name()
	case 1: // all of it
		namespace, name = pick(random, "", r.namespace()), ""
	}
	if verb == http.MethodPost && random.IntN(5) > 0 {
		name = ""
	}
	path := r.path(cluster, namespace, name)
	if cluster == "" && random.IntN(2) == 0 {
		path = "/clusters/" + path
	}
	if random.IntN(12) == 0 {
		path += "/" + pick(random, "status", "scale", "log", "proxy", "exec", "binding", "eviction", "finalize", "token", "approval")
	}
	if random.IntN(25) == 0 {
		path = "/clusters/" + cluster + pick(random, "/api", "/apis", "/openapi/v2", "/openapi/v3", "/metrics", "/debug/pprof/goroutine?debug=2", "/version", "/healthz?verbose", "/readyz?verbose", "/", "/logs", "/statusz")
	}
	next := request{method: verb, token: pick(random, k.tokens...), header: map[string]string{}}
	takesAway := name == "" && slices.Contains([]string{"rbac.authorization.k8s.io", "admissionregistration.k8s.io", "apiextensions.k8s.io"}, r.Group) ||
		r.kind == "CustomResourceDefinition" && name == r.name() || r.kind == "LogicalCluster"
	if verb == http.MethodDelete && takesAway {
		next.method = http.MethodGet // or the walk would soon be without rights, and nothing act upon its requests
	}
	var query []string
	if verb == http.MethodGet {
		if random.IntN(3) == 0 {
			query = append(query, pick(random, "watch=true&timeoutSeconds=1", "watch=1&timeoutSeconds=1&resourceVersion=0", "watch=1&timeoutSeconds=1&resourceVersion=1",
				"watch=true&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"))
		}
		if random.IntN(3) == 0 {
			query = append(query, pick(random, "resourceVersion=0", "limit=1", "limit=2", "resourceVersion=1&resourceVersionMatch=Exact", "labelSelector=iso%3Db", "labelSelector=canary",
				"fieldSelector=metadata.name%3D"+r.name(), "fieldSelector=metadata.namespace%3D"+b, "fieldSelector=kcp.cluster%3D"+b, "shard=1", "cluster="+b, "pretty=true"))
		}
		if random.IntN(6) == 0 {
			start := pick(random, "/", "", "../"+b+"/", "/"+b+"/", b+"/"+isoNamespace+"/", "../../secrets/"+b+"/")
			token := fmt.Sprintf(`{"v":"meta.k8s.io/v1","rv":%d,"start":%q}`, pick(random, 0, -1, 1), start)
			query = append(query, "continue="+base64.RawURLEncoding.EncodeToString([]byte(token)))
		}
		if random.IntN(4) == 0 {
			next.header["Accept"] = pick(random, "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/yaml", "application/vnd.kubernetes.protobuf")
		}
	}
	if random.IntN(8) == 0 {
		for _, header := range []map[string]string{
			{"Impersonate-User": "bob"}, {"Impersonate-User": "x", "Impersonate-Group": "system:masters"},
			{"X-Remote-User": "bob", "X-Remote-Group": "system:masters"}, {"X-Kcp-Cluster": b, "X-Kubernetes-Cluster": b}, {"X-Forwarded-Prefix": "/clusters/" + b},
			{"X-Original-URL": "/clusters/" + b + "/api/v1/configmaps"}, {"Kcp-Cluster": b, "Cluster": b},
		}[random.IntN(7):][:1] {
			maps.Copy(next.header, header)
		}
	}
	k.body(t, &next, r, b)
	if len(query) > 0 {
		separator := "?"
		if strings.Contains(path, "?") {
			separator = "&"
		}
		path += separator + strings.Join(query, "&")
	}
	next.path = path
	return next
}

// body adds what a write writes: an object of a, or one that claims to be of b.
func (k *isoWalk) body(t *testing.T, next *request, r isoResource, b string) {
	if !slices.Contains([]string{http.MethodPost, http.MethodPut, http.MethodPatch}, next.method) {
		return
	}
	object := k.w.object(r, "a")
	if k.random.IntN(2) == 0 {
		setAnnotation(object, clusterAnnotation, b)
	}
	if k.random.IntN(2) == 0 {
		object.SetName("walk-" + strconv.Itoa(k.random.IntN(20)))
	}
	if k.random.IntN(6) == 0 {
		object.SetNamespace(pick(k.random, b, "../"+b, "default"))
	}
	if next.method != http.MethodPatch {
		next.body = string(mustJSON(t, object.Object))
		return
	}
	kind := pick(k.random, "application/merge-patch+json", "application/strategic-merge-patch+json", "application/json-patch+json", "application/apply-patch+yaml")
	next.header["Content-Type"] = kind
	switch kind {
	case "application/json-patch+json":
		next.body = `[{"op":"add","path":"/metadata/annotations/kcp.io~1cluster","value":"` + b + `"},{"op":"replace","path":"/metadata/labels/iso","value":"a"}]`
	default:
		next.body = string(mustJSON(t, object.Object))
	}
}
