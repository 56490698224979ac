package syncer

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/internal/kinds"
)

// Pods talk to the API of their workspace by one Secret for each ServiceAccount of a namespace, as what goes down says (internal/kinds,
// docs/design/0014-api-access.md). The Syncer asks for the tokens in its mirror, where the server issues those that leaves name, and keeps them
// fresh: kubelets bring a changed Secret into pods that run.

var (
	secretsGVR         = corev1.SchemeGroupVersion.WithResource("secrets")
	serviceAccountsGVR = corev1.SchemeGroupVersion.WithResource("serviceaccounts")
)

const (
	// tokenWorkers is how many Secrets with tokens are worked on at once.
	tokenWorkers = 2
	// tokensTogether is how long more leaves of an account are waited for, before its tokens are looked after for all of them.
	tokensTogether = time.Second
	// deniedAgain is when a token that was denied is asked for again. It may be that there is no such account yet.
	deniedAgain = time.Minute
	// tokenLasts is how long a token has to be good for, at least, to be one that a pod can start with.
	tokenLasts = time.Minute
)

// API is where pods in a physical cluster reach the API of their workspaces: a token says which that is.
type API struct {
	Host, Port string
	// CA, in PEM, is what its certificate is verified by; empty if that is for the system to know.
	CA []byte
}

// APIAt returns where pods reach a server that others reach by an address, and nil if they do not: it means another machine to each who uses it,
// or has a path before that of the workspace, which clients in pods know nothing of.
func APIAt(address string, ca []byte) *API {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" {
		return nil
	}
	if path := strings.Trim(u.Path, "/"); path != "" && !strings.HasPrefix(path, "clusters/") {
		return nil
	}
	host := u.Hostname()
	if ip := net.ParseIP(host); ip != nil && (ip.IsLoopback() || ip.IsUnspecified() || ip.IsLinkLocalUnicast()) {
		return nil
	}
	if name := strings.ToLower(strings.TrimSuffix(host, ".")); name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return nil
	}
	return &API{Host: host, Port: cmp.Or(u.Port(), "443"), CA: ca}
}

// tokens serialises the work on each Secret with tokens, so that nothing is asked for twice, and knows the time by which they are good.
type tokens struct {
	locks [64]sync.Mutex

	mu sync.Mutex // guards both
	// hubs is the hub's time when ours was ours, as of the last token that was issued: clocks differ, and ours may step.
	hubs, ours time.Time
	// refused has, by its key, why the physical cluster did not take a Secret: what nobody takes is not asked for each time.
	refused *utilcache.LRUExpireCache
}

const (
	// mostRefused Secrets are remembered, for refusedAgain each.
	mostRefused  = 4096
	refusedAgain = 10 * time.Minute
)

// now is the hub's time when ours is that; not known before a token was issued to this process.
func (t *tokens) now(ours time.Time) (hubs time.Time, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hubs.IsZero() {
		return ours, false
	}
	return t.hubs.Add(ours.Sub(t.ours)), true
}

func (t *tokens) issued(token string, ours time.Time) {
	if life, ok := lifeOf(token); ok {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.hubs, t.ours = life.from, ours
	}
}

func (t *tokens) of(k key) *sync.Mutex {
	h := fnv.New32a()
	h.Write([]byte(k.cacheKey()))
	return &t.locks[h.Sum32()%64]
}

// tokensSoon asks for a look at the tokens that a change concerns.
func (s *Syncer) tokensSoon(gvr schema.GroupVersionResource, old, now *unstructured.Unstructured) {
	if account := concerned(gvr, old, now); account != "" {
		s.tokenQueue.AddAfter(key{secretsGVR, newest(old, now).GetNamespace(), account}, tokensTogether)
	}
}

// concerned is the account whose tokens have to be looked at, empty if none: for a leaf that is new, or rendered anew, an account that was made
// anew, and a Secret with tokens that lost some below.
func concerned(gvr schema.GroupVersionResource, old, now *unstructured.Unstructured) string {
	switch kind, _ := kinds.ByResource(gvr.GroupResource()); {
	case gvr == secretsGVR:
		if lostTokens(old, now) {
			return newest(old, now).GetAnnotations()[workloadv1alpha1.ServiceAccountAnnotation]
		}
	case now == nil:
	case gvr == serviceAccountsGVR:
		if old == nil || rootUID(old) != rootUID(now) {
			return now.GetName()
		}
	case !kind.MakesPods() || kinds.APIAccessOf(now) == kinds.NoAPIAccess:
	case old == nil || old.GetAnnotations()[workloadv1alpha1.RenderedAnnotation] != now.GetAnnotations()[workloadv1alpha1.RenderedAnnotation]:
		return accountIn(now)
	}
	return ""
}

// lostTokens says that a Secret has not what it had, which nobody does by renewing it.
func lostTokens(old, now *unstructured.Unstructured) bool {
	if old == nil || now == nil {
		return now == nil
	}
	is := dataOf(now)
	for name, was := range dataOf(old) {
		if kinds.IsTokenKey(name) {
			if _, ok := lifeOf(is[name]); ok {
				continue
			}
		}
		if is[name] != was {
			return true
		}
	}
	return false
}

// accountIn is the ServiceAccount of what makes pods, or is one.
func accountIn(o *unstructured.Unstructured) string {
	path := []string{"spec", "template", "spec", "serviceAccountName"}
	if o.GetKind() == "Pod" {
		path = []string{"spec", "serviceAccountName"}
	}
	name, _, _ := unstructured.NestedString(o.Object, path...)
	return cmp.Or(name, kinds.DefaultAccount)
}

// reconcileTokens keeps the tokens of an account fresh; its key has the account's name.
func (s *Syncer) reconcileTokens(ctx context.Context, k key) (again time.Duration, err error) {
	again, err = s.keepTokens(ctx, k.namespace, k.name)
	switch {
	case errors.Is(err, errUnchecked), errors.Is(err, errNoNamespaceYet):
		return beatEvery, nil
	case err != nil && s.refusalIn(k.namespace, err) != nil:
		klog.FromContext(ctx).V(2).Info("Tokens of a ServiceAccount are not kept fresh", "namespace", k.namespace, "account", k.name, "err", err)
		return deniedAgain, nil // whatever is made of a leaf with it says so
	}
	return again, err
}

// ensureTokens has the tokens that a leaf's pods want below before they are: a container that started without has other variables. It goes on
// without what was denied, by the hub or the physical cluster.
func (s *Syncer) ensureTokens(ctx context.Context, gvr schema.GroupVersionResource, leaf *unstructured.Unstructured) error {
	kind, _ := kinds.ByResource(gvr.GroupResource())
	wanted, err := s.wantedBy(kind, leaf)
	if err != nil || len(wanted) == 0 || s.config.API == nil {
		return err
	}
	namespace, account := leaf.GetNamespace(), wanted[0].Account
	now, _ := s.tokens.now(s.config.Clock.Now())
	have := get(s.physical.informers[secretsGVR], key{secretsGVR, namespace, kinds.TokenSecret(account)})
	good := goodTokens(have, s.since(namespace, account), now)
	if !slices.ContainsFunc(wanted, func(t kinds.Token) bool {
		name, _ := kinds.TokenKeyOf(t.Audience)
		return good[name] == ""
	}) {
		return nil
	}
	_, err = s.keepTokens(ctx, namespace, account)
	var hubs *mirrorError
	if err == nil || errors.As(err, &hubs) {
		return err
	}
	if r := s.refusalIn(namespace, err); r != nil && r.reason != refusedUnreachable {
		klog.FromContext(ctx).Error(r, "Pods get no tokens, and are made without: see to it that the physical cluster takes the Secret", "namespace", namespace, "secret", kinds.TokenSecret(account))
		return nil
	}
	return err
}

// since is what the tokens of an account have to be of, as far as that is known here.
func (s *Syncer) since(namespace, account string) tokenOf {
	var of tokenOf
	if leaf := get(s.mirror.informers[serviceAccountsGVR], key{serviceAccountsGVR, namespace, account}); leaf != nil {
		of.account = rootUID(leaf)
	}
	s.eachOf(namespace, account, func(_ kinds.Kind, leaf *unstructured.Unstructured) {
		if at := leaf.GetCreationTimestamp().Time; of.from.IsZero() || at.Before(of.from) {
			of.from = at
		}
	})
	return of
}

// rootUID is the UID of what a leaf is of.
func rootUID(leaf *unstructured.Unstructured) string {
	return leaf.GetLabels()[workloadv1alpha1.RootUIDLabel]
}

// tokenOf says what a token has to be of, to be one that pods can start with.
type tokenOf struct {
	// account is the UID of the ServiceAccount; empty if it is not known, as of default.
	account string
	// from is when the first was made of what wants it: what was issued before may be of an account that was made anew since.
	from time.Time
}

func (of tokenOf) is(life tokenLife) bool {
	return (of.account == "" || of.account == life.account) && !life.from.Before(of.from.Truncate(time.Second))
}

// wantedBy are the tokens that one leaf wants now.
func (s *Syncer) wantedBy(kind kinds.Kind, leaf *unstructured.Unstructured) ([]kinds.Token, error) {
	if !kind.MakesPods() || kinds.APIAccessOf(leaf) == kinds.NoAPIAccess {
		return nil, nil
	}
	typed := kind.New()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(leaf.Object, typed); err != nil {
		return nil, fmt.Errorf("read leaf %s %s/%s: %w", kind.GVR.Resource, leaf.GetNamespace(), leaf.GetName(), err)
	}
	return kind.WantedTokens(typed, s.config.Clock.Now()), nil
}

// wantedTokens are those of an account that leaves of a namespace want now, each once. What cannot be read wants none.
func (s *Syncer) wantedTokens(namespace, account string) (wanted []kinds.Token) {
	s.eachOf(namespace, account, func(kind kinds.Kind, leaf *unstructured.Unstructured) {
		of, err := s.wantedBy(kind, leaf)
		if err != nil {
			klog.V(2).InfoS("Tokens are not known that pods want", "err", err)
		}
		wanted = append(wanted, of...)
	})
	slices.SortFunc(wanted, func(a, b kinds.Token) int { return cmp.Compare(a.Audience, b.Audience) })
	return slices.Compact(wanted)
}

// eachOf calls a function with each leaf of a namespace whose pods are of an account, and may want its tokens.
func (s *Syncer) eachOf(namespace, account string, do func(kind kinds.Kind, leaf *unstructured.Unstructured)) {
	for _, kind := range kinds.All {
		leaves := s.mirror.informers[kind.GVR]
		if !kind.HasLeaves() {
			leaves = s.shownPods
		}
		if !kind.MakesPods() || leaves == nil {
			continue
		}
		found, _ := leaves.ByIndex(cache.NamespaceIndex, namespace) // fails only for an index that does not exist
		for _, o := range found {
			leaf := o.(*unstructured.Unstructured)
			if accountIn(leaf) == account && kinds.APIAccessOf(leaf) != kinds.NoAPIAccess {
				do(kind, leaf)
			}
		}
	}
}

// keepTokens has the Secret of an account below with all tokens that are wanted, asks for those that are missing or past their half, and says
// when it is to be called again. What is not wanted any more stays for as long as it is good: who does not see what wants it takes nothing away.
func (s *Syncer) keepTokens(ctx context.Context, namespace, account string) (again time.Duration, err error) {
	parent := get(s.mirror.informers[namespacesGVR], key{resource: namespacesGVR, name: namespace})
	if s.config.API == nil || parent == nil {
		return 0, nil
	}
	switch wait, err := s.mayShow(ctx); {
	case err != nil:
		return 0, err
	case wait > 0:
		return 0, errUnchecked
	case !s.physical.informers[secretsGVR].HasSynced():
		if err := s.unlisted(secretsGVR); err != nil {
			return 0, err
		}
		return 0, errUnchecked
	}
	wanted := s.wantedTokens(namespace, account)
	if len(wanted) == 0 {
		return 0, nil
	}
	k := key{secretsGVR, namespace, kinds.TokenSecret(account)}
	lock := s.tokens.of(k)
	lock.Lock()
	defer lock.Unlock()
	have, err := s.notBefore(ctx, k, get(s.physical.informers[secretsGVR], k))
	if err == nil {
		have, err = s.tokensIn(ctx, k, have, parent.GetLabels()[workloadv1alpha1.WorkspaceLabel])
	}
	if err != nil {
		return 0, err
	}
	of, there := s.since(namespace, account), dataOf(have)
	issued := map[string]string{}
	var failed error
	again = time.Hour
	for _, t := range wanted {
		name, ok := kinds.TokenKeyOf(t.Audience)
		if !ok {
			continue // nothing is rendered so
		}
		now, known := s.tokens.now(s.config.Clock.Now())
		if due := dueAt(k, name, there[name], of); known && now.Before(due) {
			again = min(again, due.Sub(now))
			continue
		}
		token, err := s.askToken(ctx, namespace, t)
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			klog.FromContext(ctx).V(2).Info("A token was denied", "namespace", namespace, "account", account, "audience", t.Audience, "err", err)
			again = min(again, deniedAgain)
			continue
		}
		if err != nil { // the others are not asked for now, and what was issued is kept
			failed = &mirrorError{fmt.Errorf("ask for a token of ServiceAccount %s/%s: %w", namespace, account, err)}
			break
		}
		ours := s.config.Clock.Now()
		s.tokens.issued(token, ours)
		now, _ = s.tokens.now(ours)
		issued[name] = token
		again = min(again, max(dueAt(k, name, token, of).Sub(now), tokenLasts))
	}
	now, _ := s.tokens.now(s.config.Clock.Now())
	good := goodTokens(have, tokenOf{}, now)
	maps.Copy(good, issued)
	if failed != nil {
		again = 0
	}
	if len(good) == 0 {
		return again, failed // a client without a token is better off where nobody sent it
	}
	want := s.tokenSecret(k, parent, account, good)
	if have != nil && apiequality.Semantic.DeepEqual(have.Object["data"], want.Object["data"]) && upToDate(want, have) {
		return again, failed
	}
	s.writes.add(k, "")
	applied, err := s.apply(ctx, k, have, want)
	if err != nil {
		if r := s.refusalIn(namespace, err); r != nil && r.reason != refusedUnreachable {
			s.tokens.refused.Add(k, r, refusedAgain)
		}
		return 0, err
	}
	s.writes.add(k, applied.GetResourceVersion())
	klog.FromContext(ctx).V(2).Info("Wrote tokens", "namespace", namespace, "account", account, "tokens", len(good), "again", again.Round(time.Second))
	return again, failed
}

// tokensIn is the Secret with tokens that there is in a namespace below, nil if none, and says why none may be written there, before any is asked
// for in vain. What is there is renewed whatever else is wrong with its namespace, as what runs there runs on.
func (s *Syncer) tokensIn(ctx context.Context, k key, seen *unstructured.Unstructured, workspace string) (*unstructured.Unstructured, error) {
	ns := get(s.physical.informers[namespacesGVR], key{resource: namespacesGVR, name: k.namespace})
	if seen != nil && ns != nil && ns.GetLabels()[workloadv1alpha1.WorkspaceLabel] == workspace {
		return seen, nil
	}
	switch wait, err := s.namespaceReady(k.namespace, workspace); {
	case err != nil:
		return nil, err
	case wait:
		return nil, errNoNamespaceYet
	}
	if why, ok := s.tokens.refused.Get(k); ok {
		return nil, why.(*refusal)
	}
	there, err := s.physical.dynamic.Resource(k.resource).Namespace(k.namespace).Get(ctx, k.name, metav1.GetOptions{})
	switch {
	case gone(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", k, err)
	case !owned(there, types.UID(s.config.UID)): // informers see no others
		return nil, nameConflict("%s exists and %s", k, ownerOf(there))
	}
	return there, nil
}

// askToken has the hub issue a token.
func (s *Syncer) askToken(ctx context.Context, namespace string, t kinds.Token) (string, error) {
	request := &authenticationv1.TokenRequest{
		TypeMeta:   metav1.TypeMeta{APIVersion: authenticationv1.SchemeGroupVersion.String(), Kind: "TokenRequest"},
		ObjectMeta: metav1.ObjectMeta{Name: t.Account},
		Spec:       authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(kinds.TokenSeconds))},
	}
	if t.Audience != "" {
		request.Spec.Audiences = []string{t.Audience}
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(request)
	if err != nil {
		return "", err
	}
	accounts := s.mirror.dynamic.Resource(serviceAccountsGVR).Namespace(namespace)
	issued, err := accounts.Create(ctx, &unstructured.Unstructured{Object: content}, metav1.CreateOptions{FieldManager: workloadv1alpha1.FieldManager}, "token")
	if err != nil {
		return "", err
	}
	token, _, err := unstructured.NestedString(issued.Object, "status", "token")
	if err == nil && token == "" {
		err = errors.New("the answer has none")
	}
	return token, err
}

// tokenSecret is the Secret of an account: what its pods talk to the API of their workspace with.
func (s *Syncer) tokenSecret(k key, parent *unstructured.Unstructured, account string, tokens map[string]string) *unstructured.Unstructured {
	content := map[string]string{
		kinds.TokenHostKey:      s.config.API.Host,
		kinds.TokenPortKey:      s.config.API.Port,
		kinds.TokenNamespaceKey: strings.TrimPrefix(parent.GetAnnotations()[workloadv1alpha1.RootAnnotation], "/"),
	}
	if ca := s.config.API.CA; len(ca) > 0 {
		content[kinds.TokenCAKey] = string(ca)
	}
	maps.Copy(content, tokens)
	data := map[string]any{}
	for name, value := range content {
		data[name] = base64.StdEncoding.EncodeToString([]byte(value))
	}
	secret := &unstructured.Unstructured{Object: map[string]any{"data": data, "type": string(corev1.SecretTypeOpaque)}}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	secret.SetNamespace(k.namespace)
	secret.SetName(k.name)
	secret.SetLabels(map[string]string{
		workloadv1alpha1.SyncTargetLabel: s.config.UID,
		workloadv1alpha1.WorkspaceLabel:  parent.GetLabels()[workloadv1alpha1.WorkspaceLabel],
	})
	secret.SetAnnotations(map[string]string{workloadv1alpha1.ServiceAccountAnnotation: account})
	return secret
}

// dataOf is what a Secret has, decoded; none of nil.
func dataOf(secret *unstructured.Unstructured) map[string]string {
	content := map[string]string{}
	if secret == nil {
		return content
	}
	data, _, _ := unstructured.NestedMap(secret.Object, "data")
	for name, value := range data {
		text, _ := value.(string)
		if raw, err := base64.StdEncoding.DecodeString(text); err == nil {
			content[name] = string(raw)
		}
	}
	return content
}

// goodTokens are those of a Secret, by their keys, that pods can start with, when the hub's time is now.
func goodTokens(secret *unstructured.Unstructured, of tokenOf, now time.Time) map[string]string {
	good := map[string]string{}
	for name, token := range dataOf(secret) {
		if life, ok := lifeOf(token); ok && kinds.IsTokenKey(name) && of.is(life) && now.Add(tokenLasts).Before(life.until) {
			good[name] = token
		}
	}
	return good
}

// dueAt is when a token is asked for anew, by the hub's time: at half of its life, or somewhat sooner, so that not all are at once. One that cannot
// be read, or is of another account, is due.
func dueAt(k key, name, token string, of tokenOf) time.Time {
	life, ok := lifeOf(token)
	if !ok || !of.is(life) {
		return time.Time{}
	}
	h := fnv.New32a()
	h.Write([]byte(k.cacheKey() + " " + name))
	lasts := life.until.Sub(life.from)
	return life.from.Add(lasts/2 - lasts/10*time.Duration(h.Sum32()%1000)/1000)
}

// tokenLife is what a token says of itself: from when until when it is good, by the hub's time, and the UID of its ServiceAccount.
type tokenLife struct {
	from, until time.Time
	account     string
}

// lifeOf reads a token, whoever signed it.
func lifeOf(token string) (tokenLife, bool) {
	parsed, err := jwt.ParseSigned(token)
	if err != nil {
		return tokenLife{}, false
	}
	var claims jwt.Claims
	var private struct {
		Kubernetes struct {
			ServiceAccount struct {
				UID string `json:"uid"`
			} `json:"serviceaccount"`
		} `json:"kubernetes.io"`
	}
	if err := parsed.UnsafeClaimsWithoutVerification(&claims, &private); err != nil || claims.IssuedAt == nil || claims.Expiry == nil {
		return tokenLife{}, false
	}
	return tokenLife{claims.IssuedAt.Time(), claims.Expiry.Time(), private.Kubernetes.ServiceAccount.UID}, true
}
