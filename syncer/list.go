package syncer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// openFunc asks for a list, and returns the answer as it comes.
type openFunc = func(context.Context, metav1.ListOptions) (io.ReadCloser, error)

// opener returns what asks for the objects of a resource, in one namespace or, if that is "", in all, as accept says.
func (sd side) opener(gvr schema.GroupVersionResource, namespace, accept string) openFunc {
	path := []string{"apis", gvr.Group, gvr.Version}
	if gvr.Group == "" {
		path = []string{"api", gvr.Version}
	}
	if namespace != "" {
		path = append(path, "namespaces", namespace)
	}
	path = append(path, gvr.Resource)
	return func(ctx context.Context, o metav1.ListOptions) (io.ReadCloser, error) {
		return sd.kube.paths.Get().AbsPath(path...).SetHeader("Accept", accept).
			SpecificallyVersionedParams(&o, scheme.ParameterCodec, corev1.SchemeGroupVersion).Stream(ctx)
	}
}

// listHead is what a list says of itself.
type listHead struct {
	metav1.TypeMeta
	metav1.ListMeta
}

// readList asks for a list, and calls item with the JSON of each in that field of it, which is overwritten after that. What there is
// of the list at any time is one object, of no more than mostOfAnswer: whoever decodes all first, as client-go does, has no say
// in what becomes of it, 130 times its length of a list of empty objects.
func readList(ctx context.Context, o metav1.ListOptions, open openFunc, field string, item func(text []byte) error) (*listHead, error) {
	m := &meter{}
	body, err := open(reading(ctx, m), o)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	var text json.RawMessage
	head, d, complete := &listHead{}, json.NewDecoder(body), false
	err = walk(d, '{', func() error {
		name, err := d.Token()
		if err != nil {
			return err
		}
		switch name {
		case "apiVersion":
			return d.Decode(&head.APIVersion)
		case "kind":
			return d.Decode(&head.Kind)
		case "metadata":
			return d.Decode(&head.ListMeta)
		case field:
			if complete {
				return fmt.Errorf("it has %s twice", field)
			}
			complete = true
			return walk(d, '[', func() error {
				if err := m.anew(); err != nil {
					return err
				}
				if err := d.Decode(&text); err != nil {
					return err
				}
				return item(text)
			})
		}
		return d.Decode(&text) // nobody asks for anything else
	})
	if err == nil && !complete {
		err = fmt.Errorf("it has no %s", field)
	}
	if err == nil {
		if _, err = d.Token(); err == nil {
			err = errors.New("it does not end")
		} else if errors.Is(err, io.EOF) {
			return head, nil
		}
	}
	return nil, fmt.Errorf("read the list: %w", err)
}

// walk reads an object or a list of JSON, as opening says, and calls each where something in it begins. An empty list may be null.
func walk(d *json.Decoder, opening json.Delim, each func() error) error {
	switch t, err := d.Token(); {
	case err != nil:
		return notTheEnd(err)
	case t == nil && opening == '[':
		return nil
	case t != opening:
		return fmt.Errorf("it has something else where a %q should be", rune(opening))
	}
	for d.More() {
		if err := each(); err != nil {
			return notTheEnd(err)
		}
	}
	_, err := d.Token() // fails unless it closes what it should
	return notTheEnd(err)
}

// notTheEnd returns what an error is where the text should go on.
func notTheEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
