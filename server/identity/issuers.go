package identity

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// clustersPath is between the server's URL and the name of the logical cluster in an issuer.
const clustersPath = "/clusters/"

// Issuers say which logical cluster issued a token, by the token's issuer, and for which audiences it does.
type Issuers struct {
	// bases are URLs of the server without a path. The first is in new tokens, the others are accepted.
	bases []string
	// audiences of the whole installation; none means that each workspace's issuer is its only audience.
	audiences []string
}

// NewIssuers returns the issuers of a server at those URLs.
func NewIssuers(bases, audiences []string) (Issuers, error) {
	i := Issuers{audiences: audiences}
	for _, base := range bases {
		base = strings.TrimSuffix(base, "/")
		if u, err := url.Parse(base); err != nil || u.Scheme != "https" || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
			return Issuers{}, fmt.Errorf("%q is no URL of this server: want https://<host>[:<port>], to which /clusters/<workspace> is added", base)
		}
		i.bases = append(i.bases, base)
	}
	if len(i.bases) == 0 {
		return Issuers{}, fmt.Errorf("an issuer of tokens needs a URL")
	}
	return i, nil
}

// with returns issuers that accept more URLs.
func (i Issuers) with(bases []string) Issuers {
	i.bases = slices.Clone(i.bases)
	for _, base := range bases {
		if !slices.Contains(i.bases, base) {
			i.bases = append(i.bases, base)
		}
	}
	return i
}

// of is the issuer in new tokens of a logical cluster.
func (i Issuers) of(cluster logicalcluster.Name) string {
	return i.bases[0] + clustersPath + cluster.String()
}

// all are the issuers that mean a logical cluster.
func (i Issuers) all(cluster logicalcluster.Name) []string {
	issuers := make([]string, len(i.bases))
	for n, base := range i.bases {
		issuers[n] = base + clustersPath + cluster.String()
	}
	return issuers
}

// cluster is the logical cluster that an issuer means, and false for an issuer that is not of this server.
func (i Issuers) cluster(issuer string) (logicalcluster.Name, bool) {
	for _, base := range i.bases {
		name, ok := strings.CutPrefix(issuer, base+clustersPath)
		if ok && lcctx.ValidateName(name) == nil {
			return logicalcluster.Name(name), true
		}
	}
	return "", false
}

// Default is what a token of a logical cluster is for if its request does not say.
func (i Issuers) Default(cluster logicalcluster.Name) authenticator.Audiences {
	if len(i.audiences) > 0 {
		return i.audiences
	}
	return authenticator.Audiences{i.of(cluster)}
}

// Audiences are what a token must be for, at least one of them, to be taken by the API in a logical cluster.
func (i Issuers) Audiences(cluster logicalcluster.Name) authenticator.Audiences {
	return slices.Concat(i.audiences, i.all(cluster))
}

// claimed is the logical cluster that a token claims to be from, and false if it claims to be from elsewhere than this
// server. Nothing of it is verified: it says only whose business the token is.
func (i Issuers) claimed(token string) (logicalcluster.Name, bool) {
	var claims struct {
		Issuer string `json:"iss"`
	}
	if !unverified(token, &claims) {
		return "", false
	}
	return i.cluster(claims.Issuer)
}

// unverified reads what a token claims.
func unverified(token string, claims any) bool {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	return err == nil && json.Unmarshal(payload, claims) == nil
}
