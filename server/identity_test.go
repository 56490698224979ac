package server

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/utils/ptr"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
)

// The namespace and ServiceAccount that shop and bank both have.
const (
	team  = "team"
	robot = "robot"
	// robotUser is its name, in either.
	robotUser = "system:serviceaccount:team:robot"
)

// makeRobot makes the namespace and the ServiceAccount in a workspace, and returns a token.
func (r *running) makeRobot(t *testing.T, cluster logicalcluster.Name) string {
	t.Helper()
	kube := r.in(t, cluster)
	if _, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: team}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.CoreV1().ServiceAccounts(team).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: robot}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return r.token(t, cluster, authenticationv1.TokenRequestSpec{})
}

func (r *running) token(t *testing.T, cluster logicalcluster.Name, spec authenticationv1.TokenRequestSpec) string {
	t.Helper()
	made, err := r.in(t, cluster).CoreV1().ServiceAccounts(team).CreateToken(t.Context(), robot, &authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made.Status.Token
}

// whoAmI returns as whom a request to a path ("" or /clusters/<name>) is taken, or else the code of the refusal.
func (r *running) whoAmI(t *testing.T, path, token string) string {
	t.Helper()
	got := r.ask(t, asked{method: http.MethodPost, path: path + "/apis/authentication.k8s.io/v1/selfsubjectreviews", token: token,
		body: `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`})
	if got.code != http.StatusCreated {
		return fmt.Sprint(got.code)
	}
	var review authenticationv1.SelfSubjectReview
	if err := json.Unmarshal([]byte(got.body), &review); err != nil {
		t.Fatal(err)
	}
	return review.Status.UserInfo.Username
}

// payload returns the claims of a token.
func payload(t *testing.T, token string) map[string]any {
	t.Helper()
	data, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err != nil {
		t.Fatal(err)
	}
	claims := map[string]any{}
	if err := json.Unmarshal(data, &claims); err != nil {
		t.Fatal(err)
	}
	return claims
}

// forge returns a token with one claim changed, under the signature that it had.
func forge(t *testing.T, token, claim string, value any) string {
	t.Helper()
	claims := payload(t, token)
	claims[claim] = value
	data, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(token, ".")
	return parts[0] + "." + base64.RawURLEncoding.EncodeToString(data) + "." + parts[2]
}

// ended returns a genuine token of the ServiceAccount in shop that ended an hour ago.
func (r *running) ended(t *testing.T) string {
	t.Helper()
	return r.tokenFor(t, -time.Hour)
}

// tokenFor returns a genuine token of the ServiceAccount in shop that ends then: people may ask for no less than ten minutes.
func (r *running) tokenFor(t *testing.T, lifetime time.Duration) string {
	t.Helper()
	account, err := r.in(t, shop).CoreV1().ServiceAccounts(team).Get(t.Context(), robot, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claims, private, err := serviceaccount.Claims(core.ServiceAccount{ObjectMeta: account.ObjectMeta}, nil, nil, nil, int64(lifetime.Seconds()), 0, r.tokens.Default(shop))
	if err != nil {
		t.Fatal(err)
	}
	token, err := r.tokens.GenerateToken(lcctx.WithCluster(t.Context(), lcctx.Cluster{Name: shop}), claims, private)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// A token is its ServiceAccount in the workspace that issued it, also without a path, and nobody anywhere else, though the
// other workspace has a ServiceAccount of the same namespace and name.
func TestP5_TokensAreOfOneWorkspace(t *testing.T) {
	r := startServer(t, withTokens(t))
	other := startServer(t, func(o *Options) { o.ServiceAccountIssuers = []string{r.URL()} }) // says that it is r
	inShop, inBank, elsewhere := r.makeRobot(t, shop), r.makeRobot(t, bank), other.makeRobot(t, shop)
	r.makeAdmin(t, shop, "alice")
	r.makeAdmin(t, bank, "alice")
	issuer := func(cluster logicalcluster.Name) string { return r.URL() + clustersPrefix + cluster.String() }

	// The places, in the order of the columns below.
	places := []string{"/clusters/shopname", "/clusters/root:shop", "/clusters/bankname", "", "/clusters/*", "/clusters/eastname", "/clusters/absentname", "/clusters/root:absent"}
	const no = "401"
	for what, test := range map[string]struct {
		token string
		want  []string
	}{
		"of shop":                 {inShop, []string{robotUser, robotUser, no, robotUser, no, no, no, no}},
		"of bank":                 {inBank, []string{no, no, robotUser, robotUser, no, no, no, no}},
		"of another installation": {elsewhere, []string{no, no, no, no, no, no, no, no}},
		"of shop, claiming bank":  {forge(t, inShop, "iss", issuer(bank)), []string{no, no, no, no, no, no, no, no}},
		"of bank, claiming shop":  {forge(t, inBank, "iss", issuer(shop)), []string{no, no, no, no, no, no, no, no}},
		"of shop, of nobody's":    {forge(t, inShop, "iss", "https://example.com"), []string{no, no, no, no, no, no, no, no}},
		"of shop, another's name": {forge(t, inShop, "sub", "system:serviceaccount:kube-system:default"), []string{no, no, no, no, no, no, no, no}},
		"of shop, for longer":     {forge(t, inShop, "exp", time.Now().Add(24*time.Hour).Unix()), []string{no, no, no, no, no, no, no, no}},
		"of shop, ended":          {r.ended(t), []string{no, no, no, no, no, no, no, no}},
		"of shop, for another audience": {r.token(t, shop, authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}}),
			[]string{no, no, no, no, no, no, no, no}},
		"of shop, for bank's audience": {r.token(t, shop, authenticationv1.TokenRequestSpec{Audiences: []string{issuer(bank)}}),
			[]string{no, no, no, no, no, no, no, no}},
		"of shop, for two audiences": {r.token(t, shop, authenticationv1.TokenRequestSpec{Audiences: []string{"vault", issuer(shop)}}),
			[]string{robotUser, robotUser, no, robotUser, no, no, no, no}},
		// People are the same everywhere, where they are somebody.
		"alice":  {alice, []string{"alice", "alice", "alice", "403", "403", "403", "403", "403"}},
		"bob":    {bob, []string{"403", "403", "403", "403", "403", "403", "403", "403"}},
		"no one": {"", []string{"403", "403", "403", "403", "403", "403", "403", "403"}},
	} {
		var got []string
		for _, place := range places {
			got = append(got, r.whoAmI(t, place, test.token))
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("token %s, in %q (-want +got):\n%s", what, places, diff)
		}
	}

	claims := payload(t, inShop)
	if claims["iss"] != issuer(shop) || !cmp.Equal(claims["aud"], []any{issuer(shop)}) || claims["sub"] != robotUser {
		t.Errorf("the claims of a token of shop are %v", claims)
	}
}

// What a ServiceAccount may do is what the roles of its workspace say, and the server's address and the token are all
// that its client needs.
func TestServiceAccountsAtHome(t *testing.T) {
	r := startServer(t, withTokens(t))
	inShop := r.makeRobot(t, shop)
	r.makeRobot(t, bank)
	kube := r.in(t, shop)
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "read"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"configmaps"}}}}
	if _, err := kube.RbacV1().Roles(team).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "read"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "read"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:serviceaccounts:team"}},
	}
	if _, err := kube.RbacV1().RoleBindings(team).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, cluster := range []logicalcluster.Name{shop, bank} {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "of-" + cluster.String()}}
		if _, err := r.in(t, cluster).CoreV1().ConfigMaps(team).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	inCluster := &rest.Config{Host: r.URL(), BearerToken: inShop, TLSClientConfig: rest.TLSClientConfig{CAData: r.CACertificate()}}
	client, err := kubernetes.NewForConfig(inCluster)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, time.Minute, "the robot of shop lists its ConfigMaps", func() (string, bool) {
		list, err := client.CoreV1().ConfigMaps(team).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error(), false
		}
		var names []string
		for _, cm := range list.Items {
			names = append(names, cm.Name)
		}
		return fmt.Sprint(names), slices.Equal(names, []string{"of-shopname"})
	})
	if _, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("it lists another namespace: %v, want forbidden", err)
	}
	if _, err := client.Discovery().ServerVersion(); err != nil {
		t.Errorf("it asks for the version: %v", err)
	}
	if _, _, err := client.Discovery().ServerGroupsAndResources(); err != nil {
		t.Errorf("it discovers: %v", err)
	}
	if got := r.ask(t, asked{path: "/metrics", token: inShop}); got.code != http.StatusForbidden {
		t.Errorf("it reads metrics of the whole server: %d", got.code)
	}

	// Access reviews answer by the roles of the workspace in which they are asked.
	for cluster, want := range map[logicalcluster.Name]bool{shop: true, bank: false} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: robotUser, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:team", user.AllAuthenticated},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: "configmaps", Namespace: team},
		}}
		got, err := r.in(t, cluster).AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil || got.Status.Allowed != want {
			t.Errorf("in %s the robot may list ConfigMaps: %v, %v; want %v", cluster, got.Status, err, want)
		}
	}
	// Whoever may impersonate in shop is its robot there, and nobody in bank.
	for path, want := range map[string]int{"/clusters/shopname": http.StatusOK, "/clusters/bankname": http.StatusForbidden} {
		got := r.ask(t, asked{path: path + "/api/v1/namespaces/team/configmaps", token: root,
			header: map[string]string{"Impersonate-User": robotUser, "Impersonate-Group": "system:serviceaccounts:team"}})
		if got.code != want {
			t.Errorf("as its robot in %s: %d %s, want %d", path, got.code, got.body, want)
		}
	}
}

// A Node that a policy has withdrawn is there for the tokens that are bound to it, and for no new one.
func TestTokensOutliveThePolicyOfTheirNode(t *testing.T) {
	r := startServer(t, nil)
	r.makeRobot(t, shop)
	g := r.ground(t)
	g.target(t, shop, "n", nil)
	spec := authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: "n"}}
	token := r.token(t, shop, spec)
	g.allow(t, shop, "narrow", "other")
	if shown := g.nodes(t, shop, metav1.ListOptions{}); len(shown) > 0 {
		t.Fatalf("shop is shown %v, want the Node withdrawn", shown)
	}
	if got := r.whoAmI(t, "/clusters/shopname", token); got != robotUser {
		t.Errorf("the token is %s", got)
	}
	if _, err := r.in(t, shop).CoreV1().ServiceAccounts(team).CreateToken(t.Context(), robot, &authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a new one: %v, want the Node not found", err)
	}
}

// A token ends with what it is bound to, at the next request.
func TestTokensEndWithWhatTheyAreBoundTo(t *testing.T) {
	r := startServer(t, nil)
	plain := r.makeRobot(t, shop)
	r.makeRobot(t, bank)
	kube := r.in(t, shop)
	now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
	bound := func(kind, name string) string {
		return r.token(t, shop, authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: kind, Name: name}})
	}
	pod := func() string {
		t.Helper()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{ServiceAccountName: robot, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		if _, err := kube.CoreV1().Pods(team).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		return bound("Pod", "p")
	}
	secret := func() string {
		t.Helper()
		if _, err := kube.CoreV1().Secrets(team).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		return bound("Secret", "s")
	}
	g := r.ground(t)
	g.cluster(t, shop, "root:shop", "")
	var shown *workloadv1alpha1.SyncTarget
	node := func() string {
		t.Helper()
		shown = g.target(t, shop, "n", nil)
		return bound("Node", "n")
	}
	for _, test := range []struct {
		what   string
		make   func() string
		delete func() error
	}{
		{"Pod", pod, func() error { return kube.CoreV1().Pods(team).Delete(t.Context(), "p", now) }},
		{"Secret", secret, func() error { return kube.CoreV1().Secrets(team).Delete(t.Context(), "s", now) }},
		{"Node", node, func() error { return g.objects.Delete(client.In(t.Context(), shop), shown) }},
		{"ServiceAccount", func() string { return plain }, func() error { return kube.CoreV1().ServiceAccounts(team).Delete(t.Context(), robot, now) }},
	} {
		token := test.make()
		for range 3 {
			if got := r.whoAmI(t, "/clusters/shopname", token); got != robotUser {
				t.Errorf("%s: the token is %s before the deletion", test.what, got)
			}
		}
		if err := test.delete(); err != nil {
			t.Fatal(err)
		}
		for _, place := range []string{"/clusters/shopname", ""} {
			if got := r.whoAmI(t, place, token); got != "401" {
				t.Errorf("%s: the token is %s in %q after the deletion", test.what, got, place)
			}
		}
		if test.what == "ServiceAccount" {
			break
		}
		again := test.make() // another object of the same name
		if got := r.whoAmI(t, "/clusters/shopname", token); got != "401" {
			t.Errorf("%s: the token is %s after another of its name was made", test.what, got)
		}
		if got := r.whoAmI(t, "/clusters/shopname", again); got != robotUser {
			t.Errorf("%s: the token of the new one is %s", test.what, got)
		}
	}

	// With the workspace everything goes.
	inBank := r.token(t, bank, authenticationv1.TokenRequestSpec{})
	if got := r.whoAmI(t, "", inBank); got != robotUser {
		t.Errorf("the token of bank is %s before the deletion", got)
	}
	if err := r.DeleteCluster(t.Context(), bank); err != nil {
		t.Fatal(err)
	}
	for _, place := range []string{"/clusters/bankname", ""} {
		if got := r.whoAmI(t, place, inBank); got != "401" {
			t.Errorf("the token of bank is %s in %q after the deletion", got, place)
		}
	}
}

// readsFail is an etcd that answers no read of rows that begin so.
type readsFail struct {
	clientv3.KV
	of atomic.Pointer[string] // nil: it answers all
}

func (f *readsFail) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if of := f.of.Load(); of != nil && strings.HasPrefix(key, *of) {
		return nil, rpctypes.ErrTooManyRequests
	}
	return f.KV.Get(ctx, key, opts...)
}

// While etcd does not answer, a ServiceAccount is who it is by what the server's watch caches have. Whom they do not have is told
// to try again, and not that its token is good no longer; nor is a syncer whose bootstrap token cannot be looked for.
func TestTokensWhileEtcdDoesNotAnswer(t *testing.T) {
	etcd := startEtcd(t)
	reads := &readsFail{KV: etcd.KV}
	etcd.KV = reads
	r := serveOn(t, etcd, unsure{}, nil)
	r.makeRobot(t, shop)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{ServiceAccountName: robot, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if _, err := r.in(t, shop).CoreV1().Pods(team).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	g := r.ground(t)
	g.cluster(t, shop, "root:shop", "")
	g.target(t, shop, "n", nil)
	bound := func(kind, name string) string {
		return r.token(t, shop, authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: kind, Name: name}})
	}
	absent := issue(t, r.tokens, shop, "absent") // the watch caches do not say that it is gone, but nothing
	for _, test := range []struct {
		of, place, token, want string
	}{
		{"/registry/serviceaccounts/", "/clusters/shopname", r.token(t, shop, authenticationv1.TokenRequestSpec{}), robotUser},
		{"/registry/serviceaccounts/", "", r.token(t, shop, authenticationv1.TokenRequestSpec{}), robotUser},
		{"/registry/pods/", "/clusters/shopname", bound("Pod", "p"), robotUser},
		{"/registry/workload.kcp.io/synctargets/", "/clusters/shopname", bound("Node", "n"), robotUser},
		{"/registry/serviceaccounts/", "/clusters/shopname", absent, "503"},
		{"/registry/serviceaccounts/", "", absent, "503"},
		{"/registry/none/", "/clusters/shopname", absent, "401"},
		{"/registry/none/", "/clusters/eastname", "abcdef.0123456789abcdef", "503"},
	} {
		reads.of.Store(&test.of)
		if got := r.whoAmI(t, test.place, test.token); got != test.want {
			t.Errorf("while %s cannot be read, in %q: %s, want %s", test.of, test.place, got, test.want)
		}
		if test.want == "503" { // without the header, clients do not try again
			got := r.ask(t, asked{path: test.place + "/api/v1/namespaces", token: test.token})
			if after := got.retryAfter; got.code != http.StatusServiceUnavailable || after != "1" {
				t.Errorf("while %s cannot be read, in %q: %d, to be tried again after %q; want 503 and 1 second", test.of, test.place, got.code, after)
			}
		}
		reads.of.Store(nil)
	}
}

// A TokenReview does not say that a token is not valid while etcd does not answer: who asked would tell that to its client.
func TestTokenReviewsWhileEtcdDoesNotAnswer(t *testing.T) {
	etcd := startEtcd(t)
	reads := &readsFail{KV: etcd.KV}
	etcd.KV = reads
	r := serveOn(t, etcd, few{}, nil)
	r.makeRobot(t, shop)
	there, absent := r.token(t, shop, authenticationv1.TokenRequestSpec{}), issue(t, r.tokens, shop, "absent")
	review := func(token string) (*authenticationv1.TokenReview, error) {
		of := &authenticationv1.TokenReview{}
		err := r.in(t, shop).AuthenticationV1().RESTClient().Post().Resource("tokenreviews").MaxRetries(0).
			Body(&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}).Do(t.Context()).Into(of)
		return of, err
	}
	away := "/registry/serviceaccounts/"
	reads.of.Store(&away)
	if got, err := review(there); err != nil || !got.Status.Authenticated {
		t.Errorf("of one that the watch cache has: %+v, %v", got.Status, err)
	}
	got, err := review(absent)
	if after, again := apierrors.SuggestsClientDelay(err); !apierrors.IsServiceUnavailable(err) || !again || after != 1 {
		t.Errorf("of one that the watch cache has not: %+v, %v; want 503, to be asked again after a second", got.Status, err)
	}
	reads.of.Store(nil)
	if got, err := review(absent); err != nil || got.Status.Authenticated {
		t.Errorf("of one that is not there, as etcd says: %+v, %v", got.Status, err)
	}
}

// unsure cannot say whether a bootstrap token is good.
type unsure struct{ few }

func (unsure) Token(context.Context, logicalcluster.Name, string) (string, bool, error) {
	return "", false, errors.New("etcdserver: too many requests")
}

// Lifetimes are bounded as in kube-apiserver.
func TestTokenLifetimes(t *testing.T) {
	r := startServer(t, func(o *Options) { o.ServiceAccountMaxTokenExpiration = 2 * time.Hour })
	r.makeRobot(t, shop)
	for asks, want := range map[time.Duration]time.Duration{0: time.Hour, 10 * time.Minute: 10 * time.Minute, 2 * time.Hour: 2 * time.Hour, 1000 * time.Hour: 2 * time.Hour} {
		spec := authenticationv1.TokenRequestSpec{}
		if asks > 0 {
			spec.ExpirationSeconds = ptr.To(int64(asks.Seconds()))
		}
		claims := payload(t, r.token(t, shop, spec))
		if got := claims["exp"].(float64) - claims["iat"].(float64); got != want.Seconds() {
			t.Errorf("asked for %s a token is valid for %v s, want %s", asks, got, want)
		}
	}
	_, err := r.in(t, shop).CoreV1().ServiceAccounts(team).CreateToken(t.Context(), robot, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](599)},
	}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("a token for less than 10 minutes: %v, want invalid", err)
	}
}

// A TokenReview in a workspace knows that workspace's tokens and people, and nothing of the server's own parts.
func TestTokenReviews(t *testing.T) {
	r := startServer(t, withTokens(t))
	inShop, inBank := r.makeRobot(t, shop), r.makeRobot(t, bank)
	vault := r.token(t, shop, authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}})
	issuer := r.URL() + "/clusters/shopname"
	for what, test := range map[string]struct {
		token string
		asks  []string
		who   string // empty for nobody
		is    []string
	}{
		"of shop":                               {inShop, nil, robotUser, []string{issuer}},
		"of shop, for the API":                  {inShop, []string{issuer, "x"}, robotUser, []string{issuer}},
		"of shop, for the API, asked for vault": {inShop, []string{"vault"}, "", nil},
		"of shop, for vault":                    {vault, nil, "", nil},
		"of shop, for vault, asked for vault":   {vault, []string{"vault"}, robotUser, []string{"vault"}},
		"of bank":                               {inBank, nil, "", nil},
		"of bank, asked for its audience":       {inBank, []string{r.URL() + "/clusters/bankname"}, "", nil},
		"ended":                                 {r.ended(t), nil, "", nil},
		"alice":                                 {alice, nil, "alice", []string{issuer}},
		"alice, for the API":                    {alice, []string{issuer}, "alice", []string{issuer}},
		"alice, for vault":                      {alice, []string{"vault"}, "", nil},
		"made up":                               {"madeup", nil, "", nil},
		"who claims to be the server":           {"fakeserver", nil, "", nil},
		"the server":                            {r.LoopbackConfig().BearerToken, nil, "", nil},
		"a syncer":                              {r.MirrorConfig(east).BearerToken, nil, "", nil},
	} {
		got, err := r.in(t, shop).AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: test.token, Audiences: test.asks},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if got.Status.Authenticated != (test.who != "") || got.Status.User.Username != test.who || !slices.Equal(got.Status.Audiences, test.is) {
			t.Errorf("%s: %+v, want %q for %q", what, got.Status, test.who, test.is)
		}
		if strings.Contains(got.Status.Error, "bank") {
			t.Errorf("%s: the error tells of another workspace: %s", what, got.Status.Error)
		}
	}
}

// Each workspace describes itself as an issuer, to those whom its roles name.
func TestIssuerDiscovery(t *testing.T) {
	r := startServer(t, withTokens(t))
	inShop := r.makeRobot(t, shop)
	configuration, keys := serviceaccount.OpenIDConfigPath, serviceaccount.JWKSPath
	issuer := r.URL() + "/clusters/shopname"

	got := r.ask(t, asked{path: "/clusters/root:shop" + configuration, token: inShop})
	var described map[string]any
	if err := json.Unmarshal([]byte(got.body), &described); err != nil || got.code != http.StatusOK {
		t.Fatalf("the configuration: %d %s", got.code, got.body)
	}
	if described["issuer"] != issuer || described["jwks_uri"] != issuer+keys || payload(t, inShop)["iss"] != issuer {
		t.Errorf("the configuration is %v", described)
	}
	got = r.ask(t, asked{path: "/clusters/shopname" + keys, token: inShop})
	var set struct{ Keys []map[string]string }
	if err := json.Unmarshal([]byte(got.body), &set); err != nil || got.code != http.StatusOK || len(set.Keys) != 1 || set.Keys[0]["kid"] == "" || set.Keys[0]["d"] != "" {
		t.Errorf("the keys: %d %s", got.code, got.body)
	}

	places := []struct{ place, token, want string }{
		{"/clusters/shopname", inShop, "200"},
		{"", inShop, "200"},
		{"/clusters/bankname", inShop, "401"},
		{"/clusters/shopname", root, "200"},
		{"/clusters/shopname", bob, "403"},
		{"/clusters/shopname", "", "403"},
		{"/clusters/absentname", "", "403"},
		{"", root, "404"},
		{"", "", "403"},
		{"/clusters/*", root, "404"},
		{"/clusters/*", "", "403"},
	}
	for _, test := range places {
		for _, path := range []string{configuration, keys} {
			if got := r.ask(t, asked{path: test.place + path, token: test.token}); fmt.Sprint(got.code) != test.want {
				t.Errorf("%s%s with the token %.10q: %d %s, want %s", test.place, path, test.token, got.code, got.body, test.want)
			}
		}
	}
	if exists, absent := r.ask(t, asked{path: "/clusters/shopname" + keys}), r.ask(t, asked{path: "/clusters/absentname" + keys}); exists != absent {
		t.Errorf("a stranger can tell a workspace that exists, %v, from one that does not, %v", exists, absent)
	}
	if got := r.ask(t, asked{method: http.MethodPost, path: "/clusters/shopname" + keys, token: root}); got.code != http.StatusMethodNotAllowed {
		t.Errorf("writing keys: %d %s", got.code, got.body)
	}

	// A workspace may open it to everybody, as for a cloud that is to trust its tokens; that opens nothing else.
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "issuer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:service-account-issuer-discovery"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: user.AllUnauthenticated}},
	}
	if _, err := r.in(t, shop).RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, time.Minute, "everybody reads the keys of shop", func() (string, bool) {
		got := r.ask(t, asked{path: "/clusters/shopname" + keys})
		return got.body, got.code == http.StatusOK
	})
	for _, path := range []string{"/clusters/bankname" + keys, "/clusters/shopname/version", "/clusters/shopname/healthz"} {
		if got := r.ask(t, asked{path: path}); got.code != http.StatusForbidden {
			t.Errorf("a stranger asks for %s: %d, want 403", path, got.code)
		}
	}
}

// age moves the stored keys into the past.
func age(t *testing.T, r *running, by time.Duration) {
	t.Helper()
	row, err := r.backend.ReadInstallation(t.Context(), "serviceaccount-keys")
	if err != nil {
		t.Fatal(err)
	}
	var stored struct {
		Version int `json:"version"`
		Keys    []struct {
			Private       []byte    `json:"private"`
			SignsFrom     time.Time `json:"signsFrom"`
			SignsUntil    time.Time `json:"signsUntil"`
			VerifiesUntil time.Time `json:"verifiesUntil"`
			Bases         []string  `json:"bases"`
		} `json:"keys"`
	}
	if err := json.Unmarshal(row.Value, &stored); err != nil || len(stored.Keys) == 0 {
		t.Fatalf("the stored keys: %v", err)
	}
	for i := range stored.Keys {
		k := &stored.Keys[i]
		k.SignsFrom, k.SignsUntil, k.VerifiesUntil = k.SignsFrom.Add(-by), k.SignsUntil.Add(-by), k.VerifiesUntil.Add(-by)
	}
	data, err := json.Marshal(stored)
	if err != nil {
		t.Fatal(err)
	}
	if written, err := r.backend.WriteInstallation(t.Context(), "serviceaccount-keys", data, row.Revision); err != nil || !written {
		t.Fatalf("write the keys: %v, %v", written, err)
	}
}

// Two servers on one etcd take each other's tokens, and so does one that is started again; a key that was replaced
// verifies until its tokens have ended.
func TestKeysOfSeveralServers(t *testing.T) {
	etcd := startEtcd(t)
	named := func(o *Options) {
		o.ServiceAccountIssuers = []string{"https://atoll.example.com", "https://old.example.com"}
	}
	a, b := serveOn(t, etcd, few{}, named), serveOn(t, etcd, few{}, named)
	kid := func(token string) string {
		header, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[0])
		if err != nil {
			t.Fatal(err)
		}
		var h struct{ Kid string }
		if err := json.Unmarshal(header, &h); err != nil {
			t.Fatal(err)
		}
		return h.Kid
	}
	check := func(token string, want string, by ...*running) {
		t.Helper()
		for i, r := range by {
			for _, place := range []string{"/clusters/shopname", ""} {
				if got := r.whoAmI(t, place, token); got != want {
					t.Errorf("server %d, in %q: %s, want %s", i, place, got, want)
				}
			}
		}
	}
	first := a.makeRobot(t, shop)
	second := b.token(t, shop, authenticationv1.TokenRequestSpec{})
	check(first, robotUser, a, b)
	check(second, robotUser, a, b)
	if kid(first) != kid(second) {
		t.Errorf("two servers sign with two keys")
	}
	if iss := payload(t, first)["iss"]; iss != "https://atoll.example.com/clusters/shopname" {
		t.Errorf("the issuer is %v", iss)
	}
	// A server that was known by another name before takes what it issued then.
	renamed := serveOn(t, etcd, few{}, func(o *Options) {
		o.ServiceAccountIssuers = []string{"https://new.example.com", "https://atoll.example.com"}
	})
	check(first, robotUser, renamed)

	age(t, a, 35*24*time.Hour) // it does not sign any more
	c := serveOn(t, etcd, few{}, named)
	third := c.token(t, shop, authenticationv1.TokenRequestSpec{})
	if kid(third) == kid(first) {
		t.Error("a key signs for more than its time")
	}
	check(first, robotUser, a, b, c)
	check(third, robotUser, a, b, c) // the others have not read the row since
	var set struct{ Keys []map[string]string }
	if err := json.Unmarshal([]byte(c.ask(t, asked{path: serviceaccount.JWKSPath, token: third}).body), &set); err != nil || len(set.Keys) != 2 {
		t.Errorf("published are %v, %v; want both keys", set.Keys, err)
	}

	age(t, c, 40*24*time.Hour) // no token of the first can be valid
	d := serveOn(t, etcd, few{}, named)
	check(first, "401", d)
	check(third, robotUser, d)
}

// A token goes on when the server comes back at another address, by default and by flag; for a server that has not read
// since what the other's address is; and in TokenReviews.
func TestTokensOutliveTheServersAddress(t *testing.T) {
	etcd := startEtcd(t)
	first := serveOn(t, etcd, few{}, nil)
	token := first.makeRobot(t, shop)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	second := serveOn(t, etcd, few{}, nil)
	third := serveOn(t, etcd, few{}, func(o *Options) { o.ServiceAccountIssuers = []string{"https://atoll.example.com"} })
	if first.URL() == second.URL() {
		t.Fatalf("both are at %s", first.URL())
	}
	ofThird := third.token(t, shop, authenticationv1.TokenRequestSpec{})
	waitFor(t, time.Minute, "the second reads the third's address because of its token, a second after it read the last", func() (string, bool) {
		got := second.whoAmI(t, "/clusters/shopname", ofThird)
		return got, got == robotUser
	})
	for name, r := range map[string]*running{"at another port": second, "by another name": third} {
		for what, token := range map[string]string{"of before": token, "of the third": ofThird} {
			for _, place := range []string{"/clusters/shopname", ""} {
				if got := r.whoAmI(t, place, token); got != robotUser {
					t.Errorf("the token %s, %s, in %q: %s, want %s", what, name, place, got, robotUser)
				}
			}
			if got := r.whoAmI(t, "/clusters/bankname", token); got != "401" {
				t.Errorf("the token %s, %s, in another workspace: %s", what, name, got)
			}
			review, err := r.in(t, shop).AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
			if err != nil || review.Status.User.Username != robotUser {
				t.Errorf("the token %s, %s, reviewed: %+v, %v", what, name, review.Status, err)
			}
		}
	}
}

// No request reads the keys, whoever sends it.
func TestKeysAreNoObjects(t *testing.T) {
	r := startServer(t, withTokens(t))
	row, err := r.backend.ReadInstallation(t.Context(), "serviceaccount-keys")
	if err != nil || len(row.Value) == 0 {
		t.Fatalf("the keys are not stored: %v", err)
	}
	for _, path := range []string{"/clusters/*/api/v1/secrets", "/clusters/system:admin/api/v1/secrets", "/clusters/*/api/v1/configmaps"} {
		got := r.ask(t, asked{path: path, token: root})
		if got.code != http.StatusOK || strings.Contains(got.body, "EC PRIVATE KEY") || strings.Contains(got.body, base64.StdEncoding.EncodeToString(row.Value)[:40]) {
			t.Errorf("%s: %d %s", path, got.code, got.body)
		}
	}
}

// Names of ServiceAccounts come from tokens of workspaces alone: a list of tokens says who is somebody everywhere.
func TestNobodyElseIsAServiceAccount(t *testing.T) {
	r := startServer(t, func(o *Options) {
		withTokens(t)(o)
		mustWrite(t, o.TokenAuthFile, `fakerobot,system:serviceaccount:team:robot,1
fakegroup,carol,2,"system:serviceaccounts"
fakeowner,system:kcp:serviceaccount:root:team:robot,4
alicetoken,alice,3
`)
	})
	for token, want := range map[string]string{"fakerobot": "401", "fakegroup": "401", "fakeowner": "401", alice: "alice"} {
		if got := r.whoAmI(t, "/clusters/root", token); got != want {
			t.Errorf("%s is %s, want %s", token, got, want)
		}
	}
}
