package discovery

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
)

// document is an answer that is kept, compressed.
type document struct {
	gzipped []byte
	etag    string
}

// newDocument compresses body; etag has no quotes.
func newDocument(body []byte, etag string) (*document, error) {
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	if _, err := w.Write(body); err != nil {
		return nil, fmt.Errorf("compress a document: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("compress a document: %w", err)
	}
	return &document{gzipped: bytes.Clone(compressed.Bytes()), etag: etag}, nil
}

func etagOf(body []byte) string { return fmt.Sprintf("%X", sha512.Sum512(body)) }

// body returns the document as it was before it was compressed.
func (d *document) body() ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(d.gzipped))
	if err != nil {
		return nil, fmt.Errorf("decompress a document: %w", err)
	}
	body, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("decompress a document: %w", err)
	}
	return body, nil
}

// serve answers with the document, compressed where the client takes that, or that it has not changed.
func (d *document) serve(w http.ResponseWriter, req *http.Request, mediaType string) {
	w.Header().Add("Vary", "Accept-Encoding")
	body := d.gzipped
	if takesGzip(req.Header.Get("Accept-Encoding")) {
		w.Header().Set("Content-Encoding", "gzip")
	} else {
		var err error
		if body, err = d.body(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	serveBytes(w, req, mediaType, d.etag, body)
}

// takesGzip says whether gzip is one of the encodings that a client accepts, without any condition.
func takesGzip(acceptEncoding string) bool {
	for encoding := range strings.SplitSeq(acceptEncoding, ",") {
		if strings.TrimSpace(encoding) == "gzip" {
			return true
		}
	}
	return false
}

// serveBytes answers with body, or that it has not changed. There is no time of change to tell: the same document may have
// been made for another logical cluster, before this one had what it is of.
func serveBytes(w http.ResponseWriter, req *http.Request, mediaType, etag string, body []byte) {
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Etag", strconv.Quote(etag))
	http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(body))
}

// neverExpires tells caches that the address means this document for ever.
func neverExpires(w http.ResponseWriter) {
	w.Header().Set("Cache-Control", "public, immutable")
	w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
}

// negotiate returns the media type for a document of OpenAPI, and whether that is protobuf; or it answers that there is
// none, and returns false.
func negotiate(w http.ResponseWriter, req *http.Request, version string) (mediaType string, proto, ok bool) {
	const json = "json"
	protobuf, deprecated := fmt.Sprintf("com.github.proto-openapi.spec.%s.v1.0+protobuf", version), fmt.Sprintf("com.github.proto-openapi.spec.%s@v1.0+protobuf", version)
	offered := []runtime.SerializerInfo{
		{MediaTypeType: "application", MediaTypeSubType: json},
		{MediaTypeType: "application", MediaTypeSubType: protobuf},
		{MediaTypeType: "application", MediaTypeSubType: deprecated},
	}
	w.Header().Add("Vary", "Accept")
	chosen, ok := negotiation.NegotiateMediaTypeOptions(req.Header.Get("Accept"), offered, negotiation.DefaultEndpointRestrictions)
	if !ok {
		w.WriteHeader(http.StatusNotAcceptable)
		return "", false, false
	}
	if chosen.Accepted.MediaTypeSubType == json {
		return "application/json", false, true
	}
	return "application/" + protobuf, true, true
}
