package kinds

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// History is how the revisions of a workload's template are kept in its workspace: as ReplicaSets of a Deployment, as
// ControllerRevisions of everything else.
type History struct {
	// Limit is how many are kept beside the present one.
	Limit int32
	// HashLabel is the label of a revision with the hash that its name ends in.
	HashLabel string
	// Runs is the name of the revision that the status says runs still; empty if it says none. It is kept beyond the limit.
	Runs string
	// Collisions is where the status of the workload counts the names that were somebody else's; what it points to is nil for none.
	Collisions **int32
}

var deploymentKind = appsv1.SchemeGroupVersion.WithKind("Deployment").GroupKind()

// IsRevision says that an object is a ReplicaSet of a Deployment, by its controller: a record of one of its templates, which goes nowhere.
func IsRevision(set metav1.Object) bool {
	owner := metav1.GetControllerOfNoCopy(set)
	return owner != nil && schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind() == deploymentKind
}

// DigestAnnotation stands, in memory only, for the content of a revision (WithoutContent).
const DigestAnnotation = "workload.atoll.dev/digest"

func deploymentHistory(root ctrlclient.Object) History {
	d := root.(*appsv1.Deployment)
	return History{ptr.Deref(d.Spec.RevisionHistoryLimit, 10), appsv1.DefaultDeploymentUniqueLabelKey, "", &d.Status.CollisionCount}
}

func daemonSetHistory(root ctrlclient.Object) History {
	d := root.(*appsv1.DaemonSet)
	return History{ptr.Deref(d.Spec.RevisionHistoryLimit, 10), appsv1.DefaultDaemonSetUniqueLabelKey, "", &d.Status.CollisionCount}
}

func statefulSetHistory(root ctrlclient.Object) History {
	s := root.(*appsv1.StatefulSet)
	return History{ptr.Deref(s.Spec.RevisionHistoryLimit, 10), appsv1.StatefulSetRevisionLabel, s.Status.CurrentRevision, &s.Status.CollisionCount}
}

// TemplateDigest tells templates apart. It is never stored, since another version may have other defaults: both sides of a
// comparison are of one.
func TemplateDigest(template *corev1.PodTemplateSpec) string {
	t := *template
	t.Labels = maps.Clone(t.Labels)
	delete(t.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	if len(t.Labels) == 0 {
		t.Labels = nil
	}
	return digest(must(json.Marshal(t)))
}

// TemplatePatch is the data of a ControllerRevision: the strategic merge patch that gives a workload this template, in the form in
// which kubectl compares it.
func TemplatePatch(template *corev1.PodTemplateSpec) []byte {
	var fields map[string]any
	if err := json.Unmarshal(must(json.Marshal(template)), &fields); err != nil {
		panic(fmt.Sprintf("a template is no object: %v", err))
	}
	fields["$patch"] = "replace"
	return must(json.Marshal(map[string]any{"spec": map[string]any{"template": fields}}))
}

// PatchDigest tells the data of ControllerRevisions apart.
func PatchDigest(patch []byte) string { return digest(patch) }

// RevisionHash is what the name of a revision ends in, in letters that make no words.
func RevisionHash(digest string, collisions *int32) string {
	h := fnv.New32a()
	fmt.Fprint(h, digest)
	if n := ptr.Deref(collisions, 0); n > 0 { // a StatefulSet's status says 0 when its cluster has reported, and nothing before
		fmt.Fprint(h, " ", n)
	}
	return rand.SafeEncodeString(fmt.Sprint(h.Sum32()))
}

// RevisionName ends in the hash, whatever is left for the workload's name.
func RevisionName(workload, hash string) string {
	room := validation.DNS1123SubdomainMaxLength - 1 - len(hash)
	return strings.TrimRight(workload[:min(len(workload), room)], ".-") + "-" + hash
}

// WithoutContent makes of a ReplicaSet or a ControllerRevision what informers hold of it: the digest of its content in the place of
// that, and no selector. What is so already stays so.
func WithoutContent(revision ctrlclient.Object) {
	var sum string
	switch r := revision.(type) {
	case *appsv1.ReplicaSet:
		if len(r.Spec.Template.Spec.Containers) == 0 {
			return
		}
		sum = TemplateDigest(&r.Spec.Template)
		r.Spec.Template, r.Spec.Selector = corev1.PodTemplateSpec{}, nil
	case *appsv1.ControllerRevision:
		if len(r.Data.Raw) == 0 {
			return
		}
		sum = PatchDigest(r.Data.Raw)
		r.Data = runtime.RawExtension{}
	}
	annotations := maps.Clone(revision.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[DigestAnnotation] = sum
	revision.SetAnnotations(annotations)
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:16])
}

// must is for what is made of types that can always be written.
func must(raw []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return raw
}
