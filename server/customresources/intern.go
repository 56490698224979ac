package customresources

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"weak"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// sharedSpec is the spec of all definitions that have an equal one, and what was found out about it.
type sharedSpec struct {
	hash   [sha256.Size]byte
	spec   apiextensionsv1.CustomResourceDefinitionSpec
	weight Weight

	look          sync.Once
	nonStructural *apiextensionsv1.CustomResourceDefinitionCondition // nil if it is structural
}

// specs has one object in memory for all definitions with an equal spec, as long as anybody holds it. Decoded, a
// definition is megabytes, and each workspace of an installation may have the same ones.
type specs struct {
	mu     sync.Mutex // guards byHash
	byHash map[[sha256.Size]byte]weak.Pointer[sharedSpec]
}

// define makes a Definition of what storage holds.
func (s *specs) define(stored *apiextensions.CustomResourceDefinition) (*Definition, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_apiextensions_CustomResourceDefinition_To_v1_CustomResourceDefinition(stored, crd, nil); err != nil {
		return nil, fmt.Errorf("convert CustomResourceDefinition %q to %s: %w", stored.Name, apiextensionsv1.SchemeGroupVersion, err)
	}
	shared, err := s.share(&crd.Spec, &stored.Spec)
	if err != nil {
		return nil, fmt.Errorf("hash the spec of CustomResourceDefinition %q: %w", crd.Name, err)
	}
	crd.Spec = shared.spec
	crd.ManagedFields = nil
	if _, ok := crd.Annotations[corev1.LastAppliedConfigAnnotation]; ok {
		kept := map[string]string{}
		for k, v := range crd.Annotations {
			if k != corev1.LastAppliedConfigAnnotation {
				kept[k] = v
			}
		}
		crd.Annotations = kept
	}
	hash, err := hashOf(shared, &crd.Status.AcceptedNames)
	if err != nil {
		return nil, fmt.Errorf("hash the names of CustomResourceDefinition %q: %w", crd.Name, err)
	}
	def := &Definition{CustomResourceDefinition: crd, Hash: hash, shared: shared}
	def.weigh()
	return def, nil
}

// withStatus is def with another status.
func (d *Definition) withStatus(status apiextensionsv1.CustomResourceDefinitionStatus) (*Definition, error) {
	hash, err := hashOf(d.shared, &status.AcceptedNames)
	if err != nil {
		return nil, fmt.Errorf("hash the names of CustomResourceDefinition %q: %w", d.Name, err)
	}
	crd := *d.CustomResourceDefinition
	crd.Status = status
	def := &Definition{CustomResourceDefinition: &crd, Hash: hash, shared: d.shared}
	def.weigh()
	return def, nil
}

// hashOf is of what decides how a definition is served. The name of a definition is in its spec: <plural>.<group>.
func hashOf(shared *sharedSpec, accepted *apiextensionsv1.CustomResourceDefinitionNames) (string, error) {
	names, err := json.Marshal(accepted)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append(shared.hash[:], names...))
	return hex.EncodeToString(sum[:]), nil
}

// share returns the spec that is in memory for all that are equal; stored is the same as storage has it.
func (s *specs) share(spec *apiextensionsv1.CustomResourceDefinitionSpec, stored *apiextensions.CustomResourceDefinitionSpec) (*sharedSpec, error) {
	data, err := spec.Marshal() // protobuf, of which equal specs have equal bytes, takes a fraction of the time of JSON
	if err != nil {
		return nil, err
	}
	hash := sha256.Sum256(data)
	if known := s.known(hash); known != nil {
		return known, nil
	}
	shared := &sharedSpec{hash: hash, spec: *spec, weight: weighSpec(stored)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.byHash[hash].Value(); known != nil {
		return known, nil
	}
	if s.byHash == nil {
		s.byHash = map[[sha256.Size]byte]weak.Pointer[sharedSpec]{}
	}
	s.byHash[hash] = weak.Make(shared)
	runtime.AddCleanup(shared, s.forget, hash)
	return shared, nil
}

func (s *specs) known(hash [sha256.Size]byte) *sharedSpec {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byHash[hash].Value()
}

func (s *specs) forget(hash [sha256.Size]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byHash[hash].Value() == nil { // nobody has made it anew since
		delete(s.byHash, hash)
	}
}

// handler names what serves a definition: one handler all of one hash, but where a webhook converts. Its Service is one of the
// definition's own logical cluster, and so is the memory that its answers may take.
func (d *Definition) handler() string {
	if c := d.Spec.Conversion; c != nil && c.Strategy == apiextensionsv1.WebhookConverter {
		return d.Hash + "@" + clusterOf(d).String()
	}
	return d.Hash
}

func clusterOf(def metav1.Object) logicalcluster.Name { return lcctx.NameFrom(def) }

// versionOf is the resourceVersion as a number, and 0 for what storage has not written.
func versionOf(obj metav1.Object) uint64 {
	v, err := strconv.ParseUint(obj.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0
	}
	return v
}
