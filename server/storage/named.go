package storage

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage/value"
)

// namedTransformers tell upstream's transformers which resource they work on. They take that from the request, for their metric and their
// log, but what is read to serve it, such as the Secret that its token is bound to, is seldom what it is for, and that is what clients
// like to call it.
type namedTransformers struct{ value.ResourceTransformers }

func (n namedTransformers) TransformerForResource(gr schema.GroupResource) value.Transformer {
	return &namedTransformer{
		inner: n.ResourceTransformers.TransformerForResource(gr),
		about: &request.RequestInfo{APIGroup: gr.Group, Resource: gr.Resource},
	}
}

type namedTransformer struct {
	inner value.Transformer
	about *request.RequestInfo
}

func (t *namedTransformer) TransformFromStorage(ctx context.Context, data []byte, key value.Context) ([]byte, bool, error) {
	return t.inner.TransformFromStorage(t.context(ctx), data, key)
}

func (t *namedTransformer) TransformToStorage(ctx context.Context, data []byte, key value.Context) ([]byte, error) {
	return t.inner.TransformToStorage(t.context(ctx), data, key)
}

// context is ctx if its request is for the resource, and else one that says what is read or written.
func (t *namedTransformer) context(ctx context.Context) context.Context {
	if info, ok := request.RequestInfoFrom(ctx); ok && info.APIGroup == t.about.APIGroup && info.Resource == t.about.Resource {
		return ctx
	}
	return request.WithRequestInfo(ctx, t.about)
}
