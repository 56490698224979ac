package main

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/conversion"
)

const group = "print.example"

// Poster is version v1, which is stored.
type Poster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              PosterSpec   `json:"spec,omitempty"`
	Status            PosterStatus `json:"status,omitempty"`
}

// PosterSpec is what is printed; width and height are in centimetres.
type PosterSpec struct {
	Text   string `json:"text,omitempty"`
	Width  int    `json:"width"`
	Height int    `json:"height"`
}

// PosterStatus says who printed what.
type PosterStatus struct {
	Generation int64              `json:"generation,omitempty"` // that was printed last
	PrintedBy  string             `json:"printedBy,omitempty"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PosterList is a list of Posters.
type PosterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Poster `json:"items"`
}

// OldPoster is version v1beta1, with the size in one field: "30x40".
type OldPoster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              OldPosterSpec `json:"spec,omitempty"`
	Status            PosterStatus  `json:"status,omitempty"`
}

// OldPosterSpec is what was printed once.
type OldPosterSpec struct {
	Text string `json:"text,omitempty"`
	Size string `json:"size"`
}

// Hub makes v1 the version through which others are converted.
func (p *Poster) Hub() {}

// ConvertTo makes a v1 of a v1beta1.
func (o *OldPoster) ConvertTo(hub conversion.Hub) error {
	p := hub.(*Poster)
	p.ObjectMeta, p.Status, p.Spec.Text = o.ObjectMeta, o.Status, o.Spec.Text
	if _, err := fmt.Sscanf(o.Spec.Size, "%dx%d", &p.Spec.Width, &p.Spec.Height); err != nil {
		return fmt.Errorf("convert spec.size %q of %s/%s: %w", o.Spec.Size, o.Namespace, o.Name, err)
	}
	return nil
}

// ConvertFrom makes a v1beta1 of a v1.
func (o *OldPoster) ConvertFrom(hub conversion.Hub) error {
	p := hub.(*Poster)
	o.ObjectMeta, o.Status, o.Spec.Text = p.ObjectMeta, p.Status, p.Spec.Text
	o.Spec.Size = fmt.Sprintf("%dx%d", p.Spec.Width, p.Spec.Height)
	return nil
}

func (p *Poster) DeepCopyObject() runtime.Object {
	c := *p
	p.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.Status = p.Status.copied()
	return &c
}

func (o *OldPoster) DeepCopyObject() runtime.Object {
	c := *o
	o.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.Status = o.Status.copied()
	return &c
}

func (l *PosterList) DeepCopyObject() runtime.Object {
	c := *l
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	c.Items = make([]Poster, len(l.Items))
	for i := range l.Items {
		c.Items[i] = *l.Items[i].DeepCopyObject().(*Poster)
	}
	return &c
}

func (s PosterStatus) copied() PosterStatus {
	s.Conditions = append([]metav1.Condition(nil), s.Conditions...)
	return s
}

func addToScheme(scheme *runtime.Scheme) {
	v1 := schema.GroupVersion{Group: group, Version: "v1"}
	old := schema.GroupVersion{Group: group, Version: "v1beta1"}
	scheme.AddKnownTypes(v1, &Poster{}, &PosterList{})
	scheme.AddKnownTypeWithName(old.WithKind("Poster"), &OldPoster{})
	metav1.AddToGroupVersion(scheme, v1)
	metav1.AddToGroupVersion(scheme, old)
}
