package syncer

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
)

// mostTyped is how long a text may be, in bytes, that is unpacked into a Go type: there two bytes that are no object, in a list of
// objects, may take some 200, which package weight knows nothing of. It is a Lease, a Namespace, or an error.
const mostTyped = 512 << 10

// asked unpacks what was asked for, or a Status in its place, from JSON. The serializers of client-go unpack into whatever type, and
// from whatever format, the answer says it is: 8 MiB of a PodList, in answer to a question for a Lease, take gigabytes.
type asked struct{ runtime.NegotiatedSerializer }

func (a asked) SupportedMediaTypes() []runtime.SerializerInfo {
	info, _ := runtime.SerializerInfoForMediaType(a.NegotiatedSerializer.SupportedMediaTypes(), runtime.ContentTypeJSON)
	stream := *info.StreamSerializer
	stream.Serializer = unpacker{stream.Serializer}
	info.StreamSerializer = &stream
	return []runtime.SerializerInfo{info}
}

func (asked) DecoderToVersion(runtime.Decoder, runtime.GroupVersioner) runtime.Decoder {
	return unpacker{}
}

// unpacker unpacks for asked.
type unpacker struct{ runtime.Encoder }

func (unpacker) Decode(text []byte, _ *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	switch into := into.(type) {
	case nil:
		return unpackObject(text, &unstructured.Unstructured{})
	case *unstructured.Unstructured:
		return unpackObject(text, into)
	case *metav1.WatchEvent: // copies the text of its object
		return into, &schema.GroupVersionKind{}, json.Unmarshal(text, into)
	}
	var is metav1.TypeMeta
	if err := json.Unmarshal(text, &is); err != nil {
		return nil, nil, err
	}
	if isStatus(is.GroupVersionKind()) {
		into = &metav1.Status{}
	}
	return unpackTyped(text, into, is.GroupVersionKind())
}

func unpackObject(text []byte, into *unstructured.Unstructured) (runtime.Object, *schema.GroupVersionKind, error) {
	if err := json.Unmarshal(text, &into.Object); err != nil {
		return nil, nil, err
	}
	is := into.GroupVersionKind()
	switch {
	case isStatus(is):
		return unpackTyped(text, &metav1.Status{}, is)
	case is.Kind == "":
		return nil, nil, fmt.Errorf("an answer of %d bytes has no kind", len(text))
	}
	return into, &is, nil
}

func unpackTyped(text []byte, into runtime.Object, is schema.GroupVersionKind) (runtime.Object, *schema.GroupVersionKind, error) {
	if len(text) > mostTyped {
		return nil, nil, tooMuch(fmt.Sprintf("an answer is a %.64s of %d bytes, more than %d", is.Kind, len(text), mostTyped))
	}
	return into, &is, json.Unmarshal(text, into)
}

// isStatus says whether a type is that of errors. Old servers leave out its version.
func isStatus(is schema.GroupVersionKind) bool {
	return is.Kind == "Status" && is.Group == "" && (is.Version == "" || is.Version == "v1")
}
