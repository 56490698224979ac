package identity

import (
	"context"
	"fmt"
	"net/http"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// published are keys as they were read, for one rendering.
type published struct {
	*Keys
	public []serviceaccount.PublicKey
}

func (p published) GetPublicKeys(context.Context, string) []serviceaccount.PublicKey { return p.public }

// Metadata returns what a logical cluster says of itself as an issuer of tokens: OIDC discovery and the public keys.
func (t *Tokens) Metadata(ctx context.Context, cluster logicalcluster.Name) (serviceaccount.OpenIDMetadataProvider, error) {
	keys, err := t.keys.current(ctx)
	if err != nil {
		return nil, err
	}
	issuer := t.of(cluster)
	found, err := serviceaccount.NewOpenIDMetadataProvider(issuer, issuer+serviceaccount.JWKSPath, "", published{t.keys, t.keys.verifying(keys)})
	if err != nil {
		return nil, fmt.Errorf("describe the issuer of tokens of logical cluster %q: %w", cluster, err)
	}
	return found, nil
}

// ServeMetadata writes a document of a logical cluster's issuer: its keys, or else its OIDC configuration.
func ServeMetadata(w http.ResponseWriter, req *http.Request, metadata serviceaccount.OpenIDMetadataProvider) {
	document, maxAge := metadata.GetConfigJSON()
	contentType := "application/json"
	if req.URL.Path == serviceaccount.JWKSPath {
		document, maxAge = metadata.GetKeysetJSON()
		contentType = "application/jwk-set+json" // RFC 7517, section 8.5.1
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", maxAge))
	if _, err := w.Write(document); err != nil {
		klog.FromContext(req.Context()).V(2).Info("A client went away while it read about the issuer of tokens", "err", err)
	}
}
