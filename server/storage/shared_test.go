package storage

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kcp-dev/logicalcluster/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/apis/rbac"
	"k8s.io/utils/ptr"

	lc "atoll.dev/atoll/internal/logicalcluster"
)

// bootstrap shares ClusterRoles b-admin, d-view and f-edit (one of them given as the API's type) and a Role in kube-system.
func bootstrap(c *Config) {
	c.Since = func(_ context.Context, cluster logicalcluster.Name, cached bool) (metav1.Time, error) {
		switch {
		case cluster == "unreadable" || cached && cluster == "slow":
			return metav1.Time{}, errors.New("no row can be read")
		case cached && cluster == "late":
			return metav1.Time{}, nil
		}
		return sharedSince[cluster], nil
	}
	c.Shared = func(gr schema.GroupResource) []runtime.Object {
		switch gr {
		case schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}:
			return []runtime.Object{
				clusterRole("f-edit", map[string]string{"kind": "shared"}),
				clusterRole("b-admin", map[string]string{"kind": "shared"}),
				&rbacv1.ClusterRole{
					TypeMeta:   metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole"},
					ObjectMeta: metav1.ObjectMeta{Name: "d-view", Labels: map[string]string{"kind": "shared", "view": "yes"}},
					Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}},
				},
			}
		case schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "roles"}:
			return []runtime.Object{role("kube-system", "leader")}
		}
		return nil
	}
}

// sharedSince is when the logical clusters of the tests came to be.
var sharedSince = map[logicalcluster.Name]metav1.Time{
	"aa": metav1.NewTime(time.Date(2026, time.March, 1, 2, 3, 4, 0, time.UTC)),
	"bb": metav1.NewTime(time.Date(2026, time.April, 5, 6, 7, 8, 0, time.UTC)),
	// The cache does not know these yet.
	"slow": metav1.NewTime(time.Date(2026, time.May, 6, 7, 8, 9, 0, time.UTC)),
	"late": metav1.NewTime(time.Date(2026, time.June, 7, 8, 9, 10, 0, time.UTC)),
}

func getRole(t *testing.T, s *served, ctx context.Context, name string) *rbac.ClusterRole {
	t.Helper()
	got, err := s.clusterRoles.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		t.Fatalf("get %s: %v", name, err)
	}
	return got.(*rbac.ClusterRole)
}

// rows are the keys of the test's rows of clusterroles.
func rows(t *testing.T) []string {
	t.Helper()
	var keys []string
	for _, kv := range rowsBelow(t, prefixOf(t)+"/clusterroles/") {
		keys = append(keys, strings.TrimPrefix(kv, prefixOf(t)+"/clusterroles/"))
	}
	return keys
}

func updateRole(t *testing.T, s *served, ctx context.Context, name string, change func(*rbac.ClusterRole)) (*rbac.ClusterRole, error) {
	t.Helper()
	out, _, err := s.clusterRoles.Update(ctx, name, changed(change), nil, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	return out.(*rbac.ClusterRole), nil
}

func deleteRole(t *testing.T, s *served, ctx context.Context, name string, options *metav1.DeleteOptions) error {
	t.Helper()
	_, _, err := s.clusterRoles.Delete(ctx, name, rest.ValidateAllObjectFunc, options)
	return err
}

// TestAgeOfSharedObjects: since when a logical cluster is there is for people to see. Where it cannot be read nothing else is held up,
// and no row says for good what was not known.
func TestAgeOfSharedObjects(t *testing.T) {
	s := serve(t, prefixOf(t), bootstrap)
	label := func(r *rbac.ClusterRole) { r.Labels["changed"] = "yes" }
	for _, cluster := range []logicalcluster.Name{"unreadable", "slow", "late"} {
		if r := getRole(t, s, in(cluster.String()), "b-admin"); !r.CreationTimestamp.IsZero() {
			t.Errorf("in %s before it is known: creation %s", cluster, r.CreationTimestamp)
		}
		if _, err := s.clusterRoles.List(in(cluster.String()), nil); err != nil {
			t.Errorf("list in %s: %v", cluster, err)
		}
		w, err := s.clusterRoles.Watch(in(cluster.String()), &metainternalversion.ListOptions{})
		if err != nil {
			t.Errorf("watch in %s: %v", cluster, err)
		} else {
			w.Stop()
		}
		r, err := updateRole(t, s, in(cluster.String()), "b-admin", label)
		if since := sharedSince[cluster]; since.IsZero() {
			if err == nil {
				t.Errorf("in %s a row says for good that it is of %s", cluster, r.CreationTimestamp)
			}
		} else if err != nil || !r.CreationTimestamp.Equal(&since) {
			t.Errorf("change in %s: %v, %v, want it to be of %s", cluster, r, err, since)
		}
	}
}

func TestSharedObjectsAreEverywhereWithoutRows(t *testing.T) {
	s := serve(t, prefixOf(t), bootstrap)
	a, b := getRole(t, s, in("aa"), "b-admin"), getRole(t, s, in("bb"), "b-admin")
	if lc.NameFrom(a) != "aa" || lc.NameFrom(b) != "bb" {
		t.Errorf("clusters %q and %q", lc.NameFrom(a), lc.NameFrom(b))
	}
	if a.UID == b.UID || a.UID == "" || a.UID != getRole(t, s, in("aa"), "b-admin").UID {
		t.Errorf("UIDs %q and %q: want one for each cluster, the same each time", a.UID, b.UID)
	}
	if a.ResourceVersion != "1" {
		t.Errorf("resourceVersion %s", a.ResourceVersion)
	}
	// They are as old as the logical cluster, which is what kubectl shows as their age.
	if !a.CreationTimestamp.Equal(ptr.To(sharedSince["aa"])) || !b.CreationTimestamp.Equal(ptr.To(sharedSince["bb"])) {
		t.Errorf("creations %s and %s, want %v", a.CreationTimestamp, b.CreationTimestamp, sharedSince)
	}
	listed, err := s.clusterRoles.List(in("bb"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range listed.(*rbac.ClusterRoleList).Items {
		if !r.CreationTimestamp.Equal(ptr.To(sharedSince["bb"])) {
			t.Errorf("%s is listed as of %s", r.Name, r.CreationTimestamp)
		}
	}
	if early := getRole(t, s, in("cc"), "b-admin"); !early.CreationTimestamp.IsZero() {
		t.Errorf("before there is the logical cluster: creation %s", early.CreationTimestamp)
	}
	if diff := cmp.Diff([]string{"aa/b-admin", "aa/d-view", "aa/f-edit"}, names(t, s.clusterRoles, in("aa"), nil)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"aa/kube-system/leader"}, names(t, s.roles, in("aa", "kube-system"), nil)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"aa/kube-system/leader"}, names(t, s.roles, in("aa"), nil)); diff != "" {
		t.Error(diff)
	}
	if got := names(t, s.roles, in("aa", "default"), nil); len(got) != 0 {
		t.Errorf("roles in default: %v", got)
	}
	if got := rows(t); len(got) != 0 {
		t.Errorf("reading made rows: %v", got)
	}
	// The wildcard and mirrors show rows only.
	create(t, s.clusterRoles, in("aa"), clusterRole("own", nil))
	if diff := cmp.Diff([]string{"aa/own"}, names(t, s.clusterRoles, everywhere(), nil)); diff != "" {
		t.Error(diff)
	}
	mirror := within(lc.Cluster{Name: "mm", Mirror: true})
	if got := names(t, s.clusterRoles, mirror, nil); len(got) != 0 {
		t.Errorf("a mirror has %v", got)
	}
	if _, err := s.clusterRoles.Get(mirror, "b-admin", &metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get in a mirror: %v", err)
	}
	// What a reader does to a copy is not seen by the next.
	a.Rules[0].Verbs[0] = "*"
	if got := getRole(t, s, in("aa"), "b-admin").Rules[0].Verbs[0]; got != "get" {
		t.Errorf("a reader changed the shared object: %s", got)
	}
}

func TestSharedObjectLife(t *testing.T) {
	s := serve(t, prefixOf(t), bootstrap)
	original := getRole(t, s, in("aa"), "d-view")

	if _, err := s.clusterRoles.Create(in("aa"), clusterRole("d-view", nil), rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("create of a shared name: %v, want AlreadyExists", err)
	}

	// A change that changes nothing makes no row.
	if out, err := updateRole(t, s, in("aa"), "d-view", func(*rbac.ClusterRole) {}); err != nil || out.ResourceVersion != "1" {
		t.Errorf("no-op update: %v, %v", out, err)
	}
	if got := rows(t); len(got) != 0 {
		t.Errorf("a no-op update made %v", got)
	}

	// A client that saw another resourceVersion or another object is refused.
	if _, err := updateRole(t, s, in("aa"), "d-view", func(r *rbac.ClusterRole) { r.ResourceVersion = "77"; r.Labels = nil }); !apierrors.IsConflict(err) {
		t.Errorf("update with another resourceVersion: %v, want Conflict", err)
	}
	if err := deleteRole(t, s, in("aa"), "d-view", &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("other")}); !apierrors.IsConflict(err) {
		t.Errorf("delete with another UID: %v, want Conflict", err)
	}

	// The first write copies, in this cluster only. Whoever sees rows only is told of what it makes and of its deletion.
	all := startWatch(t, s.clusterRoles, everywhere(), &metainternalversion.ListOptions{})
	allSelected := startWatch(t, s.clusterRoles, everywhere(), &metainternalversion.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{"view": "yes"})})
	w := startWatch(t, s.clusterRoles, in("aa"), &metainternalversion.ListOptions{SendInitialEvents: ptr.To(true), ResourceVersionMatch: "NotOlderThan", AllowWatchBookmarks: true})
	selected := startWatch(t, s.clusterRoles, in("aa"), &metainternalversion.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{"view": "yes"})})
	ofOne := startWatch(t, s.clusterRoles, in("aa"), &metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "d-view")})
	wantEvents(t, w, "ADDED aa/b-admin", "ADDED aa/d-view", "ADDED aa/f-edit")
	if got, event := next(t, w); event.Type != watch.Bookmark {
		t.Fatalf("event %s, want the bookmark", got)
	}
	wantEvents(t, selected, "ADDED aa/d-view")
	wantEvents(t, ofOne, "ADDED aa/d-view")

	out, err := updateRole(t, s, in("aa"), "d-view", func(r *rbac.ClusterRole) { r.Rules[0].Verbs = []string{"get", "list"}; delete(r.Labels, "view") })
	if err != nil {
		t.Fatal(err)
	}
	if out.UID != original.UID || out.ResourceVersion == "1" || !out.CreationTimestamp.Equal(ptr.To(sharedSince["aa"])) {
		t.Errorf("the copy has UID %s, resourceVersion %s, creation %s", out.UID, out.ResourceVersion, out.CreationTimestamp)
	}
	if diff := cmp.Diff([]string{"aa/d-view"}, rows(t)); diff != "" {
		t.Error(diff)
	}
	wantEvents(t, w, "MODIFIED aa/d-view")
	wantEvents(t, all, "ADDED aa/d-view")
	wantEvents(t, selected, "DELETED aa/d-view") // the copy has lost the label
	wantEvents(t, ofOne, "MODIFIED aa/d-view")
	if got := len(getRole(t, s, in("bb"), "d-view").Rules[0].Verbs); got != 1 {
		t.Errorf("bb has %d verbs", got)
	}
	if diff := cmp.Diff([]string{"aa/b-admin", "aa/d-view", "aa/f-edit"}, names(t, s.clusterRoles, in("aa"), nil)); diff != "" {
		t.Error(diff)
	}
	byLabel := &metainternalversion.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{"view": "yes"})}
	if got := names(t, s.clusterRoles, in("aa"), byLabel); len(got) != 0 {
		t.Errorf("a row that does not match lets the shared object through: %v", got)
	}
	byName := &metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "b-admin")}
	if diff := cmp.Diff([]string{"aa/b-admin"}, names(t, s.clusterRoles, in("aa"), byName)); diff != "" {
		t.Error(diff)
	}

	// The next change writes the row, deleting it brings the shared object back, at a later resourceVersion.
	if _, err := updateRole(t, s, in("aa"), "d-view", func(r *rbac.ClusterRole) { r.Rules[0].Verbs = []string{"list"} }); err != nil {
		t.Fatal(err)
	}
	wantEvents(t, w, "MODIFIED aa/d-view")
	wantEvents(t, ofOne, "MODIFIED aa/d-view")
	wantEvents(t, all, "MODIFIED aa/d-view")
	if err := deleteRole(t, s, in("aa"), "d-view", &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	got, event := next(t, w)
	if got != "MODIFIED aa/d-view" || len(event.Object.(*rbac.ClusterRole).Rules[0].Verbs) != 1 || event.Object.(*rbac.ClusterRole).Labels["view"] != "yes" {
		t.Errorf("reset shows as %s %v", got, event.Object)
	}
	if rv := event.Object.(*rbac.ClusterRole).ResourceVersion; rv <= out.ResourceVersion {
		t.Errorf("the stream's position went back to %s", rv)
	}
	wantEvents(t, selected, "ADDED aa/d-view")
	wantEvents(t, ofOne, "MODIFIED aa/d-view")
	wantEvents(t, all, "DELETED aa/d-view")
	atReset := event.Object.(*rbac.ClusterRole).ResourceVersion
	again := original.DeepCopy()
	again.ResourceVersion = atReset
	if diff := cmp.Diff(again, getRole(t, s, in("aa"), "d-view")); diff != "" {
		t.Errorf("after reset: %s", diff)
	}
	listed, err := s.clusterRoles.List(in("aa"), byLabel)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]rbac.ClusterRole{*again}, listed.(*rbac.ClusterRoleList).Items); diff != "" {
		t.Errorf("after reset its label selects %s", diff)
	}
	if diff := cmp.Diff([]string{"aa/b-admin", "aa/d-view", "aa/f-edit"}, names(t, s.clusterRoles, in("aa"), nil)); diff != "" {
		t.Errorf("after reset: %s", diff)
	}
	// It is as if there were no row.
	if out, err := updateRole(t, s, in("aa"), "d-view", func(r *rbac.ClusterRole) { r.ResourceVersion = atReset }); err != nil || out.ResourceVersion != atReset {
		t.Errorf("a no-op update after the reset: %v, %v", out, err)
	}
	if err := deleteRole(t, s, in("aa"), "d-view", &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("other")}); !apierrors.IsConflict(err) {
		t.Errorf("delete with another UID after the reset: %v, want Conflict", err)
	}
	// Without a row there is nothing to delete, and that is no failure.
	for _, name := range []string{"d-view", "b-admin"} {
		if err := deleteRole(t, s, in("aa"), name, &metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete of a shared object: %v", err)
		}
	}
	if got := getRole(t, s, in("aa"), "d-view").ResourceVersion; got != atReset {
		t.Errorf("to delete nothing made resourceVersion %s of %s", got, atReset)
	}
	rowsOnly := within(lc.Cluster{Name: "aa", Mirror: true})
	for _, ctx := range []context.Context{everywhere(), rowsOnly} {
		for _, rv := range []string{"", "0"} {
			if got := names(t, s.clusterRoles, ctx, &metainternalversion.ListOptions{ResourceVersion: rv}); len(got) != 0 {
				t.Errorf("who sees rows only is shown %v", got)
			}
		}
	}
	for _, rv := range []string{"", "0"} {
		if got, err := s.clusterRoles.Get(rowsOnly, "d-view", &metav1.GetOptions{ResourceVersion: rv}); !apierrors.IsNotFound(err) {
			t.Errorf("who sees rows only gets %v, %v", got, err)
		}
	}

	mine := startWatch(t, s.clusterRoles, in("aa"), &metainternalversion.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{"mine": "yes"})})
	// Who has heard of the reset may change it, which makes a row as the first time, and reset it once more.
	out, err = updateRole(t, s, in("aa"), "d-view", func(r *rbac.ClusterRole) {
		r.ResourceVersion, r.Rules[0].Verbs, r.Labels["mine"] = atReset, []string{"watch"}, "yes"
	})
	if err != nil || out.UID != original.UID || !out.CreationTimestamp.Equal(&original.CreationTimestamp) {
		t.Fatalf("an update after the reset: %v, %v", out, err)
	}
	if diff := cmp.Diff(out, getRole(t, s, in("aa"), "d-view")); diff != "" {
		t.Errorf("after it there is %s", diff)
	}
	wantEvents(t, w, "MODIFIED aa/d-view")
	wantEvents(t, all, "ADDED aa/d-view")
	wantEvents(t, allSelected, "ADDED aa/d-view")
	wantEvents(t, mine, "ADDED aa/d-view")
	if err := deleteRole(t, s, in("aa"), "d-view", metav1.NewRVDeletionPrecondition(out.ResourceVersion)); err != nil {
		t.Fatal(err)
	}
	wantEvents(t, w, "MODIFIED aa/d-view")
	wantEvents(t, all, "DELETED aa/d-view")
	wantEvents(t, allSelected, "DELETED aa/d-view")
	if got, event := next(t, mine); got != "DELETED aa/d-view" || event.Object.(metav1.Object).GetUID() != original.UID {
		t.Errorf("who selects what was changed is told %s %v", got, event.Object)
	}

	// Objects that are not shared are as ever.
	create(t, s.clusterRoles, in("aa"), clusterRole("own", nil))
	wantEvents(t, w, "ADDED aa/own")
	if err := deleteRole(t, s, in("aa"), "own", &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wantEvents(t, w, "DELETED aa/own")
}

// Who deletes a shared object is not told a UID, or he would wait until another has its name.
func TestDeletionOfASharedObjectNamesNoUID(t *testing.T) {
	s := serve(t, prefixOf(t), bootstrap)
	create(t, s.clusterRoles, in("aa"), clusterRole("own", nil))
	if _, err := updateRole(t, s, in("aa"), "d-view", func(r *rbac.ClusterRole) { r.Rules = nil }); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		reason, name string
		uid          bool
	}{
		{"its row is deleted", "d-view", false},
		{"it has no row any more", "d-view", false},
		{"it never had one", "b-admin", false},
		{"no shared object", "own", true},
	} {
		before := getRole(t, s, in("aa"), tc.name)
		out, gone, err := s.clusterRoles.Delete(in("aa"), tc.name, rest.ValidateAllObjectFunc, metav1.NewPreconditionDeleteOptions(string(before.UID)))
		if err != nil || !gone {
			t.Fatalf("%s: gone %v, error %v", tc.reason, gone, err)
		}
		if got := out.(*metav1.Status).Details.UID; (got != "") != tc.uid || tc.uid && got != before.UID {
			t.Errorf("%s: the answer names UID %q, before there was %q", tc.reason, got, before.UID)
		}
	}
}

// What a deletion requires is required of what is there at that moment, row or not.
func TestDeletionOfASharedObjectIsConditional(t *testing.T) {
	s := serve(t, prefixOf(t), bootstrap)
	reset(t, s, in("aa"), "b-admin")
	if _, err := updateRole(t, s, in("aa"), "d-view", func(r *rbac.ClusterRole) { r.Rules = nil }); err != nil {
		t.Fatal(err)
	}
	for reason, name := range map[string]string{"a row": "d-view", "reset": "b-admin", "never changed": "f-edit"} {
		before := getRole(t, s, in("aa"), name)
		remove := func(required *storage.Preconditions, valid storage.ValidateObjectFunc) error {
			return s.clusterRoles.Storage.Storage.Delete(in("aa"), "/clusterroles/"+name, &rbac.ClusterRole{}, required, valid, nil, storage.DeleteOptions{})
		}
		if err := remove(storage.NewUIDPreconditions("other"), storage.ValidateAllObjectFunc); !storage.IsInvalidObj(err) {
			t.Errorf("%s: of another UID: %v", reason, err)
		}
		refused := errors.New("refused")
		if err := remove(storage.NewUIDPreconditions(string(before.UID)), func(_ context.Context, obj runtime.Object) error {
			if diff := cmp.Diff(before, obj); diff != "" {
				t.Errorf("%s: what is judged differs from what there is: %s", reason, diff)
			}
			return refused
		}); !errors.Is(err, refused) {
			t.Errorf("%s: refused by what validates: %v", reason, err)
		}
		if diff := cmp.Diff(before, getRole(t, s, in("aa"), name)); diff != "" {
			t.Errorf("%s: after that: %s", reason, diff)
		}
	}
}

func TestSharedListsInPages(t *testing.T) {
	s := serve(t, prefixOf(t), bootstrap)
	for _, name := range []string{"a", "c", "e", "g"} {
		create(t, s.clusterRoles, in("aa"), clusterRole(name, nil))
	}
	if _, err := updateRole(t, s, in("aa"), "d-view", func(r *rbac.ClusterRole) { r.Rules[0].Verbs = []string{"list"} }); err != nil {
		t.Fatal(err)
	}
	all := []string{"aa/a", "aa/b-admin", "aa/c", "aa/d-view", "aa/e", "aa/f-edit", "aa/g"}
	for limit := int64(1); limit <= 8; limit++ {
		t.Run(fmt.Sprint("limit ", limit), func(t *testing.T) {
			var got []string
			opts := &metainternalversion.ListOptions{Limit: limit}
			for {
				some, token := page(t, s.clusterRoles, in("aa"), opts)
				if int64(len(some)) > limit {
					t.Fatalf("page of %d", len(some))
				}
				got = append(got, some...)
				if token == "" {
					break
				}
				if decoded, err := base64.RawURLEncoding.DecodeString(token); err != nil || strings.Contains(string(decoded), "aa/") {
					t.Errorf("token %s names the cluster (%v)", decoded, err)
				}
				// What comes in between is not in the later pages: they are of the first one's position.
				name := fmt.Sprintf("h-%d-%d", limit, len(got))
				create(t, s.clusterRoles, in("aa"), clusterRole(name, nil))
				defer deleteRole(t, s, in("aa"), name, &metav1.DeleteOptions{})
				opts = &metainternalversion.ListOptions{Limit: limit, Continue: token}
			}
			if diff := cmp.Diff(all, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	list, err := s.clusterRoles.List(in("aa"), &metainternalversion.ListOptions{Limit: 3})
	if err != nil {
		t.Fatal(err)
	}
	if n := list.(*rbac.ClusterRoleList).RemainingItemCount; n == nil || *n != 4 {
		t.Errorf("remaining %v, want 4", n)
	}
	byLabel := &metainternalversion.ListOptions{Limit: 2, LabelSelector: labels.SelectorFromSet(labels.Set{"kind": "shared"})}
	some, token := page(t, s.clusterRoles, in("aa"), byLabel)
	byLabel.Continue = token
	rest, last := page(t, s.clusterRoles, in("aa"), byLabel)
	if diff := cmp.Diff([]string{"aa/b-admin", "aa/d-view", "aa/f-edit"}, append(some, rest...)); diff != "" || last != "" {
		t.Errorf("%s, token %q", diff, last)
	}
	foreign, _ := page(t, s.clusterRoles, in("bb"), &metainternalversion.ListOptions{Continue: token})
	if slices.ContainsFunc(foreign, func(id string) bool { return !strings.HasPrefix(id, "bb/") }) {
		t.Errorf("aa's token shows %v in bb", foreign)
	}
	forged := base64.RawURLEncoding.EncodeToString([]byte(`{"v":"meta.k8s.io/v1","rv":-1,"start":"../aa/a"}`))
	if _, err := s.clusterRoles.List(in("bb"), &metainternalversion.ListOptions{Continue: forged}); !apierrors.IsBadRequest(err) {
		t.Errorf("forged token: %v, want BadRequest", err)
	}
}

func TestSharedObjectsAreCheckedOnce(t *testing.T) {
	for reason, objects := range map[string][]runtime.Object{
		"twice":          {clusterRole("a", nil), clusterRole("a", nil)},
		"no type":        {&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "a"}}},
		"no name":        {clusterRole("", nil)},
		"another's type": {&rbacv1.Role{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "Role"}, ObjectMeta: metav1.ObjectMeta{Name: "a"}}},
	} {
		b := serve(t, prefixOf(t)+strings.ReplaceAll(reason, " ", ""), nil)
		gr := schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}
		config, err := b.factory.NewConfig(gr, nil)
		if err != nil {
			t.Fatal(err)
		}
		r, _ := b.Resource(gr)
		keyFunc := func(obj runtime.Object) (string, error) {
			return b.clusterRoles.KeyFunc(context.Background(), obj.(*rbac.ClusterRole).Name)
		}
		if _, err := newSharedObjects(config, r.Prefix, keyFunc, r.New, r.NewList, storage.DefaultClusterScopedAttr, b.since, objects); err == nil {
			t.Errorf("%s: accepted", reason)
		}
	}
}
