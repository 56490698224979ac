package customresources

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/queue"
	"atoll.dev/atoll/server/storage"
)

const (
	// workers of either queue share all logical clusters. To establish takes a few milliseconds, most of it etcd's.
	workers = 8
	// endingAtOnce is how many definitions of one logical cluster are ended at a time: its webhooks may take their time.
	endingAtOnce = 2
)

// key names a definition.
type key struct {
	cluster logicalcluster.Name
	name    string
}

// String is "cluster|name".
func (k key) String() string { return string(k.cluster) + "|" + k.name }

// Tenant is the logical cluster: the definitions of each are handled in turn.
func (k key) Tenant() string { return string(k.cluster) }

func keyOf(def *Definition) key { return key{clusterOf(def), def.Name} }

// reconciler gives definitions the status they should have, and ends those that are deleted.
type reconciler struct {
	definitions *Definitions
	status      *customresourcedefinition.StatusREST
	objectsOf   func(*Definition) (_ deletable, done func(), _ error)
	hasObjects  func(context.Context, *Definition) (bool, error)
	// rows has on record which logical clusters may have objects of which definitions.
	rows interface {
		RecordCustom(ctx context.Context, cluster logicalcluster.Name, gr schema.GroupResource) error
		ForgetCustom(ctx context.Context, cluster logicalcluster.Name, gr schema.GroupResource, revision int64) (bool, error)
	}
	// importing says whether an import fills a logical cluster.
	importing func(context.Context, logicalcluster.Name) (bool, error)
	// goingAt is Definitions.goingAt.
	goingAt  func(ctx context.Context, def *Definition) (revision int64, err error)
	keys     *queue.Queue[key]
	going    *queue.Queue[key] // definitions that are being deleted
	lookTime time.Duration
	now      func() time.Time
	ending   struct {
		sync.Mutex
		of map[logicalcluster.Name]int // number of those that are being ended; none are not there
	}
	recorded struct {
		sync.Mutex
		of map[key]types.UID // of the definitions that this process knows to be on record
	}
	// turns keep two definitions of one logical cluster from being given the same name at the same time.
	turns [64]sync.Mutex
}

func newReconciler(d *Definitions, status *customresourcedefinition.StatusREST, objectsOf func(*Definition) (deletable, func(), error), hasObjects func(context.Context, *Definition) (bool, error)) *reconciler {
	r := &reconciler{definitions: d, status: status, objectsOf: objectsOf, hasObjects: hasObjects, goingAt: d.goingAt, lookTime: lookTime, now: time.Now}
	r.importing = func(context.Context, logicalcluster.Name) (bool, error) { return false, nil }
	r.ending.of = map[logicalcluster.Name]int{}
	r.recorded.of = map[key]types.UID{}
	r.keys = queue.New("customresourcedefinitions", r.reconcile)
	r.going = queue.New("customresourcedefinitions-deleted", r.end)
	return r
}

func (r *reconciler) run(ctx context.Context) {
	defer r.stop()
	if err := r.definitions.WaitSynced(ctx); err != nil {
		return // stopping
	}
	var running sync.WaitGroup
	running.Go(func() { r.keys.Run(ctx, workers) })
	running.Go(func() { r.going.Run(ctx, workers) })
	running.Wait()
}

// stop ends the queues, also of a reconciler that never ran.
func (r *reconciler) stop() {
	r.keys.Stop()
	r.going.Stop()
}

// onChange looks at a definition that is new or has changed, and at those that may have waited for names it had.
func (r *reconciler) onChange(before, after *Definition, anticipated bool) {
	if after != nil && !anticipated {
		r.keys.Add(keyOf(after))
	}
	if before != nil && after == nil {
		r.unrecord(before)
	}
	if before == nil || after != nil && equality.Semantic.DeepEqual(before.Status.AcceptedNames, after.Status.AcceptedNames) {
		return
	}
	for _, other := range r.definitions.ofGroup(clusterOf(before), before.Spec.Group) {
		if other.Name != before.Name && !isTrue(other.Status.Conditions, apiextensionsv1.NamesAccepted) {
			r.keys.Add(keyOf(other))
		}
	}
}

func (r *reconciler) reconcile(ctx context.Context, k key) (time.Duration, error) {
	seen, ok := r.definitions.get(k.cluster, k.name)
	if !ok {
		return 0, nil
	}
	ctx = request.WithNamespace(lcctx.WithCluster(ctx, lcctx.Cluster{Name: k.cluster}), metav1.NamespaceNone)
	if seen.DeletionTimestamp != nil {
		r.going.Add(k)
		return 0, nil
	}
	turn := r.turn(k.cluster)
	turn.Lock()
	defer turn.Unlock()
	// Most are looked at because this has just written them, and are as they should be.
	seen, anticipated, ok := r.definitions.look(k.cluster, k.name)
	if !ok {
		return 0, nil
	}
	// Whether or not it is established, or will be in a moment: people may write its status, too.
	if err := r.record(ctx, k, seen); err != nil {
		return 0, fmt.Errorf("establish CustomResourceDefinition %q of logical cluster %q: %w", k.name, k.cluster, err)
	}
	if !anticipated && sameStatus(seen.Status, r.decide(k.cluster, seen)) {
		return 0, nil
	}
	err := r.write(ctx, seen, func(current *Definition) (*Definition, error) {
		if current.DeletionTimestamp != nil {
			return nil, nil
		}
		status := r.decide(k.cluster, current)
		if sameStatus(current.Status, status) {
			return nil, nil
		}
		return current.withStatus(status)
	})
	if err != nil {
		return 0, fmt.Errorf("establish CustomResourceDefinition %q of logical cluster %q: %w", k.name, k.cluster, err)
	}
	return 0, nil
}

// record has on record that there may be objects of a definition, once for each that this process sees. It is so before any
// object of it is created, here or elsewhere: reconcile does it before it establishes one, and each request that may create an
// object, too.
func (r *reconciler) record(ctx context.Context, k key, def *Definition) error {
	r.recorded.Lock()
	uid, known := r.recorded.of[k]
	r.recorded.Unlock()
	if known && uid == def.UID {
		return nil
	}
	if err := r.rows.RecordCustom(ctx, k.cluster, resourceOf(def)); err != nil {
		return err
	}
	r.recorded.Lock()
	defer r.recorded.Unlock()
	if _, there := r.definitions.get(k.cluster, k.name); there { // else nobody calls unrecord any more
		r.recorded.of[k] = def.UID
	}
	return nil
}

// unrecord forgets what this process knows of a definition that is gone, unless it is of another one of its name.
func (r *reconciler) unrecord(def *Definition) {
	r.recorded.Lock()
	defer r.recorded.Unlock()
	if r.recorded.of[keyOf(def)] == def.UID {
		delete(r.recorded.of, keyOf(def))
	}
}

func (r *reconciler) turn(cluster logicalcluster.Name) *sync.Mutex {
	h := fnv.New32a()
	_, _ = h.Write([]byte(cluster)) // never fails
	return &r.turns[h.Sum32()%uint32(len(r.turns))]
}

func (r *reconciler) decide(cluster logicalcluster.Name, def *Definition) apiextensionsv1.CustomResourceDefinitionStatus {
	group := def.Spec.Group
	return decide(def, taken(r.definitions.builtin[group], r.definitions.ofGroup(cluster, group), def), r.now())
}

func sameStatus(a, b apiextensionsv1.CustomResourceDefinitionStatus) bool {
	return equality.Semantic.DeepEqual(a, b)
}

// write changes the status, and the finalizers, of the definition that etcd holds to what change makes of it; nil changes
// nothing. If another definition has its name, that is an error. It is one write, past the handler chain, into the logical
// cluster of ctx. What it will be is known here before it is written, and so before anybody can be told of it.
func (r *reconciler) write(ctx context.Context, def *Definition, change func(current *Definition) (*Definition, error)) error {
	written, _, err := r.status.Update(ctx, def.Name, storage.ChangeOf(def.UID, func(old runtime.Object) (runtime.Object, error) {
		stored, ok := old.(*apiextensions.CustomResourceDefinition)
		if !ok {
			return nil, apierrors.NewInternalError(fmt.Errorf("a CustomResourceDefinition is stored as %T", old))
		}
		current, err := r.definitions.specs.define(stored)
		if err != nil {
			return nil, err
		}
		next, err := change(current)
		if err != nil || next == nil {
			return old, err
		}
		r.definitions.put(next, decided)
		out := stored.DeepCopy()
		out.Finalizers = slices.Clone(next.Finalizers)
		out.Status = apiextensions.CustomResourceDefinitionStatus{}
		if err := apiextensionsv1.Convert_v1_CustomResourceDefinitionStatus_To_apiextensions_CustomResourceDefinitionStatus(&next.Status, &out.Status, nil); err != nil {
			return nil, err
		}
		return out, nil
	}), nil, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	stored, ok := written.(*apiextensions.CustomResourceDefinition)
	if !ok {
		return fmt.Errorf("a CustomResourceDefinition was written as %T", written)
	}
	now, err := r.definitions.specs.define(stored)
	if err != nil {
		return err
	}
	r.definitions.put(now, read)
	return nil
}
