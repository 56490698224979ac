package attendance

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
)

// Attendant is the name of an attendant.
type Attendant = corev1alpha1.LogicalClusterAttendant

// Attendance is a time at which attendants have a part in a workspace. Its names are kcp's.
type Attendance struct {
	// Verb is what it takes, on a WorkspaceType, to be an attendant of workspaces of that type.
	Verb string
	// Path, with the name of an attendant, is below which it finds the workspaces that wait for it.
	Path string
	// Kind is that of the address in the status of a WorkspaceType.
	Kind tenancyv1alpha1.VirtualWorkspaceType
	// Phase is that of LogicalClusters that wait, and LabelPrefix begins the labels by which they are found.
	Phase       corev1alpha1.LogicalClusterPhase
	LabelPrefix string
	// Annotation of a Workspace notes its attendants.
	Annotation string
	// Field is the name of Born and Left.
	Field string

	// Of says whether a type asks for attendants.
	Of func(*tenancyv1alpha1.WorkspaceTypeSpec) bool
	// Born are the attendants that a logical cluster had at birth, and Left those that are not done.
	Born func(*corev1alpha1.LogicalClusterSpec) *[]Attendant
	Left func(*corev1alpha1.LogicalClusterStatus) *[]Attendant
}

var (
	// Initialization is before a workspace can be used.
	Initialization = &Attendance{
		Verb: tenancyv1alpha1.InitializeVerb, Path: tenancyv1alpha1.InitializingPath, Kind: tenancyv1alpha1.VirtualWorkspaceInitializing,
		Phase: corev1alpha1.LogicalClusterPhaseInitializing, LabelPrefix: tenancyv1alpha1.InitializerLabelPrefix,
		Annotation: tenancyv1alpha1.InitializersAnnotation, Field: "initializers",
		Of:   func(t *tenancyv1alpha1.WorkspaceTypeSpec) bool { return t.Initializer },
		Born: func(c *corev1alpha1.LogicalClusterSpec) *[]Attendant { return &c.Initializers },
		Left: func(c *corev1alpha1.LogicalClusterStatus) *[]Attendant { return &c.Initializers },
	}
	// Termination is before the content of a workspace goes that is deleted.
	Termination = &Attendance{
		Verb: tenancyv1alpha1.TerminateVerb, Path: tenancyv1alpha1.TerminatingPath, Kind: tenancyv1alpha1.VirtualWorkspaceTerminating,
		Phase: corev1alpha1.LogicalClusterPhaseTerminating, LabelPrefix: tenancyv1alpha1.TerminatorLabelPrefix,
		Annotation: tenancyv1alpha1.TerminatorsAnnotation, Field: "terminators",
		Of:   func(t *tenancyv1alpha1.WorkspaceTypeSpec) bool { return t.Terminator },
		Born: func(c *corev1alpha1.LogicalClusterSpec) *[]Attendant { return &c.Terminators },
		Left: func(c *corev1alpha1.LogicalClusterStatus) *[]Attendant { return &c.Terminators },
	}
	// All are both.
	All = []*Attendance{Initialization, Termination}
)

// Name is that of the attendant of a type which a logical cluster holds.
func Name(holder, typeName string) Attendant { return Attendant(holder + ":" + typeName) }

// TypeOf returns the logical cluster that holds the type of an attendant, and the type's name; false if it names none.
func TypeOf(name Attendant) (holder, typeName string, ok bool) {
	i := strings.LastIndexByte(string(name), ':')
	if i <= 0 || i == len(name)-1 {
		return "", "", false
	}
	return string(name[:i]), string(name[i+1:]), true
}

// Label is the label of LogicalClusters that wait for an attendant: a hash, of which the key has as much as fits.
func (a *Attendance) Label(name Attendant) (key, value string) {
	hash := fmt.Sprintf("%x", sha256.Sum224([]byte(name)))
	return a.LabelPrefix + hash[:validation.LabelValueMaxLength-len(a.LabelPrefix)], hash
}

// WaitsFor are the attendants that a logical cluster waits for now.
func (a *Attendance) WaitsFor(c *corev1alpha1.LogicalCluster) []Attendant {
	if c.Spec.Use == corev1alpha1.LogicalClusterUseMirror || c.Status.Phase != a.Phase {
		return nil
	}
	return *a.Left(&c.Status)
}

// Changed says whether attendants are done between two states of a logical cluster.
func Changed(before, now *corev1alpha1.LogicalCluster) bool {
	return slices.ContainsFunc(All, func(a *Attendance) bool { return len(*a.Left(&before.Status)) != len(*a.Left(&now.Status)) })
}

// Initialized says whether a logical cluster was ever ready: not if it was deleted before its initializers were done.
func Initialized(c *corev1alpha1.LogicalCluster) bool { return len(c.Status.Initializers) == 0 }

type asKey struct{}

// As is as whom a request comes.
type As struct {
	*Attendance
	Name Attendant
}

// With returns a context for requests of an attendant.
func With(ctx context.Context, as As) context.Context { return context.WithValue(ctx, asKey{}, as) }

// From returns the attendant by whose path a request came, and whether it did by one.
func From(ctx context.Context) (As, bool) {
	as, ok := ctx.Value(asKey{}).(As)
	return as, ok
}
