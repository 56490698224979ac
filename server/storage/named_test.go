package storage

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage/value"
)

// telling remembers which resource it was told.
type telling struct{ got *request.RequestInfo }

func (t *telling) TransformerForResource(schema.GroupResource) value.Transformer { return t }

func (t *telling) TransformFromStorage(ctx context.Context, data []byte, _ value.Context) ([]byte, bool, error) {
	t.got, _ = request.RequestInfoFrom(ctx)
	return data, false, nil
}

func (t *telling) TransformToStorage(ctx context.Context, data []byte, _ value.Context) ([]byte, error) {
	t.got, _ = request.RequestInfoFrom(ctx)
	return data, nil
}

func TestTransformersKnowTheResource(t *testing.T) {
	own := &request.RequestInfo{APIGroup: "apps", Resource: "deployments", Name: "web", Verb: "get"}
	for name, tc := range map[string]struct {
		ctx    context.Context
		name   string
		reason string
	}{
		"its request": {request.WithRequestInfo(t.Context(), own), "web", "all that the request says is kept"},
		"another":     {request.WithRequestInfo(t.Context(), &request.RequestInfo{APIGroup: "apps", Resource: "random", Name: "web"}), "", "a client chose it"},
		"no request":  {t.Context(), "", "caches read without one"},
		"other group": {request.WithRequestInfo(t.Context(), &request.RequestInfo{Resource: "deployments", Name: "web"}), "", "it is another resource"},
	} {
		told := &telling{}
		transformer := namedTransformers{told}.TransformerForResource(schema.GroupResource{Group: "apps", Resource: "deployments"})
		check := func(what string) {
			t.Helper()
			if told.got == nil || told.got.APIGroup != "apps" || told.got.Resource != "deployments" || told.got.Name != tc.name {
				t.Errorf("%s, %s: told %+v, want deployments of apps named %q: %s", name, what, told.got, tc.name, tc.reason)
			}
			told.got = nil
		}
		if _, _, err := transformer.TransformFromStorage(tc.ctx, nil, nil); err != nil {
			t.Error(err)
		}
		check("read")
		if _, err := transformer.TransformToStorage(tc.ctx, nil, nil); err != nil {
			t.Error(err)
		}
		check("written")
	}
}
