package discovery

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/customresources"
)

const (
	// Bytes of compressed documents that are kept for all logical clusters together. A document is a tenth of its size
	// then: that of a group version with one definition of 300 KB 30 KB, one of OpenAPI v2, which has the built-in types
	// too, 220 KB and more.
	openAPIBytes = 32 << 20
	// openAPITags is how many ETags are kept, so that an index does not need the documents again that it lists.
	openAPITags = 8192

	// Of how much a document is made, in bytes of memory, as weigh has it: 200 definitions of 30 KB of JSON, or 1,000 small
	// ones. Making the largest takes up to 400 MB for a moment, and its compressed form is far smaller than what is kept.
	openAPIWeight = 32 << 20
	// definitionWeight is what a definition adds besides its schema: paths and what can be done there.
	definitionWeight = 32 << 10

	openAPIv2, openAPIv3 = "v2", "v3"
	indexPath            = "/openapi/v3"
)

// openAPI makes and keeps the documents of OpenAPI.
type openAPI struct {
	documents *documentCache
	tags      *tags
	turns     *makerTurns
	weight    int // the most that a document is made of
}

func newOpenAPI() *openAPI {
	return &openAPI{
		documents: newDocumentCache(openAPIBytes), tags: newTags(openAPITags),
		turns: newMakerTurns(makers, waiters), weight: openAPIWeight,
	}
}

// key of a document: its form, what it is of, and the definitions in it. It is short, however many those are.
func key(form, of string, definitions []customresources.Definition) cacheKey {
	hash := sha256.New()
	write := func(part string) { _, _ = hash.Write(append([]byte(part), 0)) } // never fails
	write(form)
	write(of)
	for _, d := range definitions {
		write(d.Hash)
	}
	return cacheKey(hash.Sum(nil))
}

// serveV3Index answers /openapi/v3: where the document of each group version is.
func (h *Handler) serveV3Index(w http.ResponseWriter, req *http.Request, s surface) bool {
	known, err := h.builtin.openAPI()
	if err != nil {
		h.fail(w, req, err)
		return true
	}
	index := handler3.OpenAPIV3Discovery{Paths: maps.Clone(known)}
	for _, v := range s {
		etag, err := h.openAPI.v3Tag(req.Context(), v)
		if apierrors.IsTooManyRequests(err) || apierrors.IsTimeout(err) {
			h.fail(w, req, err) // nobody waits any more, or should: those made so far are kept for who asks again
			return true
		}
		if err != nil {
			// The kinds beside it can be used all the same.
			klog.FromContext(req.Context()).Error(err, "Could not make an OpenAPI document", "groupVersion", v.GroupVersion)
			continue
		}
		// Without /clusters/..., as for the built-in types: clients put what they have for a server before it.
		index.Paths[v3Path(v.GroupVersion)] = handler3.OpenAPIV3DiscoveryGroupVersion{
			ServerRelativeURL: indexPath + "/" + v3Path(v.GroupVersion) + "?" + url.Values{"hash": {etag}}.Encode(),
		}
	}
	body, err := json.Marshal(index)
	if err != nil {
		h.fail(w, req, fmt.Errorf("write the index of OpenAPI documents: %w", err))
		return true
	}
	serveBytes(w, req, "application/json", etagOf(body), body)
	return true
}

func v3Path(gv schema.GroupVersion) string { return "apis/" + gv.String() }

// serveV3 answers /openapi/v3/apis/<group>/<version>.
func (h *Handler) serveV3(gv schema.GroupVersion) answerFunc {
	return func(w http.ResponseWriter, req *http.Request, s surface) bool {
		v, ok := s.version(gv)
		if !ok {
			return false
		}
		mediaType, proto, ok := negotiate(w, req, openAPIv3)
		if !ok {
			return true
		}
		found, err := h.openAPI.v3(req.Context(), v, proto)
		if err != nil {
			h.fail(w, req, err)
			return true
		}
		if asked := req.URL.Query().Get("hash"); asked != "" {
			if asked != found.etag {
				// Relative to the request's own address, in which /clusters/... may stand.
				w.Header().Set("Location", "?"+url.Values{"hash": {found.etag}}.Encode())
				w.WriteHeader(http.StatusMovedPermanently)
				return true
			}
			neverExpires(w)
		}
		found.serve(w, req, mediaType)
		return true
	}
}

// serveV2 answers /openapi/v2, with the built-in types and what definitions add in one document.
func (h *Handler) serveV2(w http.ResponseWriter, req *http.Request, s surface) bool {
	mediaType, proto, ok := negotiate(w, req, openAPIv2)
	if !ok {
		return true
	}
	known, err := h.builtin.swagger()
	if err != nil {
		h.fail(w, req, err)
		return true
	}
	found, err := h.openAPI.v2(req.Context(), known, s, proto)
	if err != nil {
		h.fail(w, req, err)
		return true
	}
	found.serve(w, req, mediaType)
	return true
}

// v3Tag returns the ETag of a version's document.
func (o *openAPI) v3Tag(ctx context.Context, v groupVersion) (string, error) {
	key := key(openAPIv3, v.String(), v.definitions)
	if etag, ok := o.tags.get(key); ok {
		return etag, nil
	}
	found, err := o.v3(ctx, v, false)
	if err != nil {
		return "", err
	}
	o.tags.add(key, found.etag)
	return found.etag, nil
}

// get returns the document of that key. Making it waits for its turn; what is made inside calls documents.get.
func (o *openAPI) get(ctx context.Context, key cacheKey, make func() (*document, error)) (*document, error) {
	if found, ok := o.documents.lookUp(key); ok {
		return found, nil
	}
	cluster, ok := lcctx.ClusterFrom(ctx)
	if !ok {
		return nil, errors.New("make an OpenAPI document: no logical cluster in the context")
	}
	done, err := o.turns.take(ctx, cluster.Name)
	if err != nil {
		return nil, err
	}
	defer done()
	// Another logical cluster may be making the same one: one of the two waits, with its turn, for as long as that takes.
	return o.documents.get(key, make)
}

// v3 returns a version's document, as JSON or protobuf.
func (o *openAPI) v3(ctx context.Context, v groupVersion, proto bool) (*document, error) {
	plainKey := key(openAPIv3, v.String(), v.definitions)
	plain := func() (*document, error) {
		merged, err := mergeV3(ctx, fitting(ctx, surface{v}, o.weight)[0])
		if err != nil {
			return nil, fmt.Errorf("make the OpenAPI document of %s: %w", v.GroupVersion, err)
		}
		body, err := json.Marshal(merged)
		if err != nil {
			return nil, fmt.Errorf("write the OpenAPI document of %s: %w", v.GroupVersion, err)
		}
		return newDocument(body, etagOf(body))
	}
	if !proto {
		return o.get(ctx, plainKey, plain)
	}
	return o.get(ctx, key(openAPIv3+"proto", v.String(), v.definitions), func() (*document, error) {
		return toProto(handler3.ToV3ProtoBinary, func() (*document, error) { return o.documents.get(plainKey, plain) })
	})
}

func mergeV3(ctx context.Context, v groupVersion) (*spec3.OpenAPI, error) {
	specs := make([]*spec3.OpenAPI, 0, len(v.definitions))
	for _, d := range v.definitions {
		one, err := builder.BuildOpenAPIV3(d.CustomResourceDefinition, v.Version, builder.Options{IncludeSelectableFields: true})
		if err != nil {
			tellOfOmission(ctx, err, d, v)
			continue
		}
		specs = append(specs, one)
	}
	return builder.MergeSpecsV3(specs...)
}

// v2 returns the document of all versions and the built-in types, as JSON or protobuf.
func (o *openAPI) v2(ctx context.Context, known *spec.Swagger, s surface, proto bool) (*document, error) {
	plainKey := v2Key(openAPIv2, s)
	plain := func() (*document, error) {
		merged, err := mergeV2(ctx, known, fitting(ctx, s, o.weight))
		if err != nil {
			return nil, fmt.Errorf("make the OpenAPI v2 document: %w", err)
		}
		body, err := merged.MarshalJSON()
		if err != nil {
			return nil, fmt.Errorf("write the OpenAPI v2 document: %w", err)
		}
		return newDocument(body, etagOf(body))
	}
	if !proto {
		return o.get(ctx, plainKey, plain)
	}
	return o.get(ctx, v2Key(openAPIv2+"proto", s), func() (*document, error) {
		return toProto(handler.ToProtoBinary, func() (*document, error) { return o.documents.get(plainKey, plain) })
	})
}

func v2Key(form string, s surface) cacheKey {
	var of []string
	var definitions []customresources.Definition
	for _, v := range s {
		of = append(of, v.String())
		definitions = append(definitions, v.definitions...)
	}
	return key(form, strings.Join(of, ","), definitions)
}

func mergeV2(ctx context.Context, known *spec.Swagger, s surface) (*spec.Swagger, error) {
	var specs []*spec.Swagger
	for _, v := range s {
		for _, d := range v.definitions {
			one, err := builder.BuildOpenAPIV2(d.CustomResourceDefinition, v.Version, builder.Options{V2: true, IncludeSelectableFields: true})
			if err != nil {
				tellOfOmission(ctx, err, d, v)
				continue
			}
			// As those of the built-in types are: equal definitions of both are one.
			one.Definitions = handler.PruneDefaults(one.Definitions)
			specs = append(specs, one)
		}
	}
	return builder.MergeSpecs(known, specs...)
}

// fitting returns what a document is made of: versions as they are, in order, without the definitions by which they would
// weigh more than limit.
func fitting(ctx context.Context, s surface, limit int) surface {
	fits := make(surface, 0, len(s))
	weight, omitted := 0, 0
	for _, v := range s {
		some := groupVersion{GroupVersion: v.GroupVersion}
		for _, d := range v.definitions {
			of := weigh(d, v.Version)
			if weight+of <= limit {
				weight += of
				some.definitions = append(some.definitions, d)
				continue
			}
			// The first speaks for all: they may be thousands.
			if omitted++; omitted == 1 {
				tellOfOmission(ctx, fmt.Errorf("it takes %d bytes, and the document %d of %d already", of, weight, limit), d, v)
			}
		}
		fits = append(fits, some)
	}
	if omitted > 0 {
		klog.FromContext(ctx).Info("An OpenAPI document is made without definitions that do not fit", "number", omitted)
	}
	return fits
}

// weigh returns how much one of the versions of a definition adds to a document: the bytes that it takes decoded, however short
// its text is, and a fixed part.
func weigh(d customresources.Definition, version string) int {
	weight := definitionWeight
	for i := range d.Spec.Versions {
		if v := &d.Spec.Versions[i]; v.Name == version {
			weight += int(customresources.WeighVersion(v).Bytes)
		}
	}
	return weight
}

// tellOfOmission logs that a document is made without a definition. The kinds beside it can be used all the same, and so
// can its own: clients know less of its fields.
func tellOfOmission(ctx context.Context, err error, d customresources.Definition, v groupVersion) {
	klog.FromContext(ctx).Error(err, "Left a definition out of an OpenAPI document", "definition", d.Name, "groupVersion", v.GroupVersion)
}

// toProto returns a document as protobuf. It keeps the ETag: Vary says that the form matters.
func toProto(convert func(json []byte) ([]byte, error), from func() (*document, error)) (*document, error) {
	plain, err := from()
	if err != nil {
		return nil, err
	}
	body, err := plain.body()
	if err != nil {
		return nil, err
	}
	proto, err := convert(body)
	if err != nil {
		return nil, fmt.Errorf("write an OpenAPI document as protobuf: %w", err)
	}
	return newDocument(slices.Clip(proto), plain.etag)
}
