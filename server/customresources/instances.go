package customresources

import (
	"container/list"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kube-openapi/pkg/validation/spec"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/webhooks"
)

var errTerminating = errors.New("create not allowed while custom resource definition is terminating")

// served is what upstream's handler of custom resources can do.
type served interface {
	http.Handler
	finalizer.CRClientGetter
}

const (
	// instancesBytes is how much memory the instances may take together, by estimate.
	instancesBytes = 256 << 20
	// instanceBytes is what one takes whatever it serves, and versionBytes what each version of it takes: stores, and the types
	// that what is applied is merged by, with those of metadata.
	instanceBytes = 64 << 10
	versionBytes  = 64 << 10
	// timesWeight is how many times what a definition takes its schemas take where they are served: to prune, to default, to
	// validate, to merge, and for documents.
	timesWeight = 3
)

// instanceSize is how much memory an instance for a definition takes, by estimate.
func instanceSize(def *Definition) int64 {
	w := def.shared.weight
	return instanceBytes + int64(len(def.Spec.Versions))*versionBytes + timesWeight*w.Bytes + w.Compiled
}

// instances are upstream's handlers of custom resources, one for all definitions that are served alike. Each knows one
// definition, which says nothing of any logical cluster but where one of its Services converts; which one a request is for is in its context. It is made for the
// first request and ended when no logical cluster has such a definition any more, or when there are too many and nobody has
// used it for longest: anybody can define what is distinct and large.
type instances struct {
	config  Config
	objects generic.RESTOptionsGetter
	models  map[string]*spec.Schema
	isHeld  func(handler string) bool

	most int64 // bytes of memory
	make func(*Definition) (*instance, error)

	mu     sync.Mutex // guards what follows
	byHash map[string]*instance
	bytes  int64      // of those in byHash
	idle   *list.List // of those in byHash that nobody uses, the one first that nobody has used for longest
}

// instance is one handler, and what it sees of the world: its definition, until it is over.
type instance struct {
	served
	definition *apiextensionsv1.CustomResourceDefinition
	hash       string
	size       int64         // bytes of memory
	users      int           // requests under way, watches among them; guarded by instances.mu
	isIdle     *list.Element // its place among those that nobody uses, nil for others; guarded by instances.mu
	dropped    bool          // it is not in byHash any more; guarded by instances.mu
	over       atomic.Bool
	// free makes upstream's handler compare its stores with the definitions there are, and so close them. (It has a way to
	// close them, which it does not export.)
	free func()
}

// of returns the instance for a definition. Whoever gets one says when he is done with it.
func (s *instances) of(def *Definition) (_ *instance, done func(), _ error) {
	s.mu.Lock()
	i, ok := s.byHash[def.handler()]
	if !ok {
		var err error
		if i, err = s.make(def); err != nil {
			s.mu.Unlock()
			return nil, nil, fmt.Errorf("serve %s: %w", def.Name, err)
		}
		i.hash, i.size = def.handler(), instanceSize(def)
		s.byHash[i.hash] = i
		s.bytes += i.size
	}
	i.users++
	s.busy(i)
	idle := s.tooMany()
	s.mu.Unlock()
	for _, i := range idle {
		i.close()
	}
	if !ok && !s.isHeld(def.handler()) {
		// The last definition went meanwhile, when there was nothing to drop. The request is still answered.
		s.drop(def.handler())
	}
	return i, func() {
		s.mu.Lock()
		if i.users--; i.users == 0 && !i.dropped {
			i.isIdle = s.idle.PushBack(i)
		}
		s.end(i)
	}, nil
}

// busy wants the lock. The instance is none of those that nobody uses.
func (s *instances) busy(i *instance) {
	if i.isIdle != nil {
		s.idle.Remove(i.isIdle)
		i.isIdle = nil
	}
}

// objectsOf lists and deletes the objects of a definition, in the logical cluster of the context that its methods get.
func (s *instances) objectsOf(def *Definition) (_ deletable, done func(), _ error) {
	i, done, err := s.of(def)
	if err != nil {
		return nil, nil, err
	}
	store, err := i.GetCustomResourceListerCollectionDeleter(i.definition)
	if err != nil {
		done()
		return nil, nil, fmt.Errorf("serve %s: %w", def.Name, err)
	}
	objects, ok := store.(deletable)
	if !ok {
		done()
		return nil, nil, fmt.Errorf("serve %s: objects of %T cannot be deleted one by one", def.Name, store)
	}
	return objects, done, nil
}

// drop ends the instance of a hash that no definition has any more, after the last request that has it.
func (s *instances) drop(hash string) {
	s.mu.Lock()
	i := s.byHash[hash]
	if i == nil || s.isHeld(hash) {
		s.mu.Unlock()
		return
	}
	s.remove(i)
	s.end(i)
}

// remove wants the lock.
func (s *instances) remove(i *instance) {
	delete(s.byHash, i.hash)
	s.busy(i)
	s.bytes -= i.size
	i.dropped = true
}

// tooMany wants the lock. It removes instances that nobody uses, the one first that nobody has used for longest, until the
// others have few enough bytes, and returns them. Those in use stay: what the definitions of each workspace weigh is bounded.
func (s *instances) tooMany() []*instance {
	var removed []*instance
	for s.bytes > s.most && s.idle.Len() > 0 {
		i, ok := s.idle.Front().Value.(*instance)
		if !ok {
			break // nothing else is in it
		}
		s.remove(i)
		removed = append(removed, i)
	}
	return removed
}

// end wants the lock and gives it back. It ends an instance that nobody needs.
func (s *instances) end(i *instance) {
	ends := i.dropped && i.users == 0
	s.mu.Unlock()
	if ends {
		i.close()
	}
}

// close ends an instance that nobody uses, nor can any more.
func (i *instance) close() {
	i.over.Store(true)
	i.free()
}

func (s *instances) serve(def *Definition) (*instance, error) {
	i := &instance{definition: canonical(def)}
	c := s.config
	var err error
	i.served, err = apiextensionsapiserver.NewCustomResourceDefinitionHandler(
		nil, nil, // documents of discovery are not answered here
		&onlyOne{instance: i},
		http.NotFoundHandler(),
		s.objects,
		noNewOnes{c.Admission},
		nil, // nothing is established by it
		webhooks.Services(),
		c.Webhooks.Resolver(webhooks.Conversion, clusterOf(def), c.Services(lcctx.Cluster{Name: clusterOf(def)})), // of any logical cluster where none of them converts
		1,
		c.Authorizer,
		c.RequestTimeout, c.MinRequestTimeout,
		s.models,
		c.MaxRequestBodyBytes,
	)
	return i, err
}

// canonical is the definition that stands for all of one hash. That it was established long ago keeps upstream's handler
// from delaying the first objects by two seconds, for servers that do not know of the definition yet: ours read it.
func canonical(def *Definition) *apiextensionsv1.CustomResourceDefinition {
	long := metav1.NewTime(time.Unix(0, 0))
	is := func(t apiextensionsv1.CustomResourceDefinitionConditionType) condition {
		return condition{Type: t, Status: apiextensionsv1.ConditionTrue, LastTransitionTime: long}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: def.Name, UID: types.UID(def.handler())},
		Spec:       def.Spec,
		Status: apiextensionsv1.CustomResourceDefinitionStatus{
			AcceptedNames: def.Status.AcceptedNames,
			Conditions:    []condition{is(apiextensionsv1.NamesAccepted), is(apiextensionsv1.Established)},
		},
	}
}

// onlyOne is an informer and lister of one definition.
type onlyOne struct {
	cache.SharedIndexInformer // nil: nothing else of it is used
	instance                  *instance
}

var (
	_ informers.CustomResourceDefinitionInformer = &onlyOne{}
	_ listers.CustomResourceDefinitionLister     = &onlyOne{}
	_ cache.SharedIndexInformer                  = &onlyOne{}
)

func (o *onlyOne) Informer() cache.SharedIndexInformer            { return o }
func (o *onlyOne) Lister() listers.CustomResourceDefinitionLister { return o }

// AddEventHandler keeps what is to be called when a definition is deleted.
func (o *onlyOne) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	o.instance.free = func() { h.OnDelete(o.instance.definition) }
	return nil, nil
}

func (o *onlyOne) List(labels.Selector) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	if o.instance.over.Load() {
		return nil, nil
	}
	return []*apiextensionsv1.CustomResourceDefinition{o.instance.definition}, nil
}

func (o *onlyOne) Get(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	if name != o.instance.definition.Name {
		return nil, apierrors.NewNotFound(apiextensionsv1.Resource(definitions), name)
	}
	return o.instance.definition, nil
}
