package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
)

func TestWorkspaceCommands(t *testing.T) {
	f := newFakeAtoll(t)
	for _, step := range []struct {
		reason  string
		command newCommand
		args    string
		out     string // a part of stdout
		fault   string // a part of the error
		at      string // where the kubeconfig then points; empty: not looked at
	}{
		{"nothing yet", newWorkspaceListCommand, "-o name", "", "", ""},
		{"create leaves the kubeconfig alone", newWorkspaceCreateCommand, "shop", "use shop", "", "root"},
		{"twice is an error with the way in", newWorkspaceCreateCommand, "shop", "", "workspace use shop", ""},
		{"unless it may be there", newWorkspaceCreateCommand, "shop --ignore-existing --enter", "root:shop is ready and current", "", "root:shop"},
		{"a name is relative", newWorkspaceCreateCommand, "team --enter", "root:shop:team", "", "root:shop:team"},
		{"..", newWorkspaceUseCommand, "..", "root:shop", "", "root:shop"},
		{"-", newWorkspaceUseCommand, "-", "root:shop:team", "", "root:shop:team"},
		{"- and back", newWorkspaceUseCommand, "-", "root:shop.", "", "root:shop"},
		{"a path is not", newWorkspaceUseCommand, "root", "root.", "", "root"},
		{"one that is not there", newWorkspaceUseCommand, "shp", "", `no workspace "root:shp"`, "root"},
		{"a path of another system", newWorkspaceUseCommand, "root/shop", "", `separated by colons: "root:shop"`, "root"},
		{"a name that can be none", newWorkspaceCreateCommand, "Shop", "", `"Shop" must be lower-case`, ""},
		{"the top has no holder", newWorkspaceCreateCommand, "root", "", "no workspace above", ""},
		{"nowhere below root", newWorkspaceCreateCommand, "system:foo", "", `"system:foo" is not below root, where all workspaces are: give a path such as root:shop`, ""},
		{"and stays", newWorkspaceDeleteCommand, "root", "", `"root" is the top of the tree`, ""},
		{"list", newWorkspaceListCommand, "", "shop   Ready", "", ""},
		{"list wide", newWorkspaceListCommand, "-o wide", "OWNER", "", ""},
		{"of a type", newWorkspaceCreateCommand, "typed --type root:org:team", "typed is ready", "", ""},
		{"of a type by its name", newWorkspaceCreateCommand, "named --type team", "named is ready", "", ""},
		{"list types", newWorkspaceListCommand, "-o wide", "root:org:team", "", ""},
		{"no type of these any more", newWorkspaceDeleteCommand, "typed", "typed is deleted", "", ""},
		{"nor of these", newWorkspaceDeleteCommand, "named", "named is deleted", "", ""},
		{"list names", newWorkspaceListCommand, "root:shop -o name", "workspace.tenancy.kcp.io/team\n", "", ""},
		{"list as json", newWorkspaceListCommand, "-o json", `"kind": "WorkspaceList"`, "", ""},
		{"list as nonsense", newWorkspaceListCommand, "-o xml", "", `--output "xml"`, ""},
		{"tree", newWorkspaceTreeCommand, "", "root\n└── shop\n    └── team\n", "", ""},
		{"current", newWorkspaceCurrentCommand, "--short", "root\n", "", ""},
		{"delete what is not there", newWorkspaceDeleteCommand, "shp", "", `no workspace "shp" in "root"`, ""},
		{"in", newWorkspaceUseCommand, "shop:team", "root:shop:team.", "", "root:shop:team"},
		{"out", newWorkspaceUseCommand, "root", "root.", "", "root"},
		{"delete", newWorkspaceDeleteCommand, "root:shop:team", "root:shop:team is deleted", "", ""},
		{"it is gone", newWorkspaceListCommand, "root:shop -o name", "", "", ""},
		{"- to a deleted one", newWorkspaceUseCommand, "-", "", `"root" stays the current one: there is no workspace "root:shop:team"`, "root"},
	} {
		out, _, err := f.call(t, step.command, strings.Fields(step.args)...)
		switch {
		case step.fault == "" && err != nil:
			t.Fatalf("%s: %v", step.reason, err)
		case step.fault != "" && (err == nil || !strings.Contains(err.Error(), step.fault)):
			t.Errorf("%s: error %v, want one with %q", step.reason, err, step.fault)
		case !strings.Contains(out, step.out) || step.out == "" && out != "":
			t.Errorf("%s: printed %q, want %q", step.reason, out, step.out)
		case step.at != "" && f.server(t) != "https://atoll.test/clusters/"+step.at:
			t.Errorf("%s: the kubeconfig points to %s, want %s", step.reason, f.server(t), step.at)
		}
	}
}

// The home workspace is where the server says; a shell that was not kept from it names the home directory.
func TestUseHome(t *testing.T) {
	t.Setenv("HOME", "/home/ann")
	for _, args := range [][]string{{}, {"~"}, {"/home/ann"}} {
		f := newFakeAtoll(t, "users")
		if _, _, err := f.call(t, newWorkspaceUseCommand, args...); err == nil || !strings.Contains(err.Error(), "knows no home workspaces") {
			t.Errorf("use %q without homes: %v", args, err)
		}
		f.put(t, "root:users", &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "h1"}})
		f.put(t, "root", &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "~"}, Spec: tenancyv1alpha1.WorkspaceSpec{URL: "https://atoll.test/clusters/root:users:h1"}})
		out, _, err := f.call(t, newWorkspaceUseCommand, args...)
		if err != nil || out != "Current workspace is root:users:h1.\n" || f.server(t) != "https://atoll.test/clusters/root:users:h1" {
			t.Errorf("use %q: %q, %v; the kubeconfig points to %s", args, out, err, f.server(t))
		}
	}
}

func TestDeletingTheCurrentWorkspaceSaysHowToLeave(t *testing.T) {
	f := newFakeAtoll(t, "shop")
	if _, _, err := f.call(t, newWorkspaceUseCommand, "shop"); err != nil {
		t.Fatal(err)
	}
	out, _, err := f.call(t, newWorkspaceDeleteCommand, "root:shop")
	if err != nil || !strings.Contains(out, "workspace use root") {
		t.Errorf("printed %q, %v", out, err)
	}
}

func TestListSaysWhatAWorkspaceWaitsFor(t *testing.T) {
	f := newFakeAtoll(t, "shop")
	ctx := client.In(t.Context(), "root")
	w := &tenancyv1alpha1.Workspace{}
	if err := f.objects().Get(ctx, ctrlclient.ObjectKey{Name: "shop"}, w); err != nil {
		t.Fatal(err)
	}
	w.Finalizers = []string{tenancyv1alpha1.WorkspaceFinalizer}
	w.Status.Phase = corev1alpha1.LogicalClusterPhaseTerminating
	w.Status.Conditions = []metav1.Condition{{
		Type: tenancyv1alpha1.WorkspaceContentDeleted, Status: metav1.ConditionFalse, Reason: "ContentRemains",
		Message: "Waiting for physical clusters to remove what runs there: east",
	}}
	if err := f.objects().Update(ctx, w); err != nil {
		t.Fatal(err)
	}
	_, errOut, err := f.call(t, newWorkspaceDeleteCommand, "shop", "--timeout", "100ms")
	if err == nil || !strings.Contains(err.Error(), "runs there: east") || !strings.Contains(errOut, "Deleting workspace root:shop: Waiting for physical clusters to remove what runs there: east\n") {
		t.Errorf("delete: printed %q, error %v; want both to name east", errOut, err)
	}
	for _, args := range [][]string{{"shop"}, {"shop", "--ignore-existing", "--enter"}} {
		if _, _, err := f.call(t, newWorkspaceCreateCommand, args...); err == nil || !strings.Contains(err.Error(), "still being deleted") {
			t.Errorf("create %q: error %v, want one that it is still being deleted", args, err)
		}
	}
	out, _, err := f.call(t, newWorkspaceListCommand)
	if err != nil || !strings.Contains(out, "Terminating") || !strings.Contains(out, "runs there: east") {
		t.Errorf("list: printed %q, %v; want Terminating and what it waits for", out, err)
	}
}

func TestCreateSaysWhichInitializersAWorkspaceWaitsFor(t *testing.T) {
	f := newFakeAtoll(t, "shop")
	ctx := client.In(t.Context(), "root")
	w := &tenancyv1alpha1.Workspace{}
	if err := f.objects().Get(ctx, ctrlclient.ObjectKey{Name: "shop"}, w); err != nil {
		t.Fatal(err)
	}
	w.Status.Phase = corev1alpha1.LogicalClusterPhaseInitializing
	w.Status.Conditions = []metav1.Condition{{
		Type: tenancyv1alpha1.WorkspaceInitialized, Status: metav1.ConditionFalse, Reason: "InitializerExists", Message: "Initializers still exist: [root:team]",
	}}
	if err := f.objects().Update(ctx, w); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.call(t, newWorkspaceCreateCommand, "shop", "--ignore-existing", "--timeout", "100ms"); err == nil || !strings.Contains(err.Error(), "Initializing: Initializers still exist: [root:team]") {
		t.Errorf("create: error %v, want one that names root:team", err)
	}
	if out, _, err := f.call(t, newWorkspaceListCommand); err != nil || !strings.Contains(out, "[root:team]") {
		t.Errorf("list: printed %q, %v; want it to name root:team", out, err)
	}
}

// A type that is gone, or not allowed where the workspace would be, is refused before anybody looks whether there is such a
// workspace; who may not make any is, too. For who only needs it to be there it is, unless it is another one than he asks for.
func TestCreateIgnoresWhatExistsWhateverRefusesIt(t *testing.T) {
	f := newFakeAtoll(t)
	for _, args := range []string{"plain", "typed --type root:org:team", "old --type team"} {
		if _, _, err := f.call(t, newWorkspaceCreateCommand, strings.Fields(args)...); err != nil {
			t.Fatal(err)
		}
	}
	for _, refused := range []bool{false, true} {
		f.refuse = nil
		if refused {
			f.refuse = func(logicalcluster.Name, ctrlclient.Object) error {
				return apierrors.NewForbidden(schema.GroupResource{Group: tenancyv1alpha1.GroupVersion.Group, Resource: "workspaces"}, "", errors.New("no such type"))
			}
		}
		for _, test := range []struct{ reason, args, fault string }{
			{"it is there", "plain --ignore-existing", ""},
			{"of a type that is gone", "typed --ignore-existing", ""},
			{"which is asked for", "typed --ignore-existing --type root:org:team", ""},
			{"or by its name", "typed --ignore-existing --type team", ""},
			{"of a type without a path, as of before", "old --ignore-existing --type root:org:team", ""},
			{"of another type", "typed --ignore-existing --type root:team", `"root:typed" is there already, and is of type root:org:team, not root:team`},
			{"of none that is known", "plain --ignore-existing --type team", `"root:plain" is there already, and is of type`},
			{"it may not be there", "typed", `"root:typed" is there already: enter it with`},
			{"another type may not be there, either", "typed --type root:team", `and is of type root:org:team, not root:team`},
		} {
			out, _, err := f.call(t, newWorkspaceCreateCommand, strings.Fields(test.args)...)
			switch {
			case test.fault == "" && (err != nil || !strings.Contains(out, "is ready")):
				t.Errorf("%s (create refused: %t): %q, %v; want it ready", test.reason, refused, out, err)
			case test.fault != "" && (err == nil || !strings.Contains(err.Error(), test.fault)):
				t.Errorf("%s (create refused: %t): %v; want an error with %q", test.reason, refused, err, test.fault)
			}
		}
	}
	if _, _, err := f.call(t, newWorkspaceCreateCommand, "new", "--ignore-existing"); err == nil || !strings.Contains(err.Error(), "no such type") {
		t.Errorf("create what is not there and may not be: %v; want the server's words", err)
	}
}

// Who is a stranger above his own workspace, as its ServiceAccounts are, still sees what is in it, and what he does not see.
func TestStrangersAboveSeeTheirOwn(t *testing.T) {
	f := newFakeAtoll(t, "shop")
	if _, _, err := f.call(t, newWorkspaceUseCommand, "shop"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.call(t, newWorkspaceCreateCommand, "team"); err != nil {
		t.Fatal(err)
	}
	f.put(t, "root:shop", &workloadv1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "east"}})
	f.closed = map[logicalcluster.Name]bool{"root": true, "*": true}
	out, _, err := f.call(t, newWorkspaceTreeCommand)
	if want := "root\n├── (you may not list what is in here)\n└── shop\n    └── team\n"; err != nil || out != want {
		t.Errorf("tree: %q, %v; want %q", out, err, want)
	}
	if _, _, err := f.call(t, newWorkspaceTreeCommand, "root"); err == nil {
		t.Error("the tree of root, which is asked for and may not be seen, is no error")
	}
	out, errOut, err := f.call(t, newClusterListCommand)
	if err != nil || !strings.Contains(out, "east") || !strings.Contains(errOut, "may not see the clusters registered in root") {
		t.Errorf("clusters: %q, %q, %v", out, errOut, err)
	}
	none := newFakeAtoll(t, "shop")
	if _, _, err := none.call(t, newWorkspaceUseCommand, "shop"); err != nil {
		t.Fatal(err)
	}
	none.closed = f.closed
	if out, errOut, err := none.call(t, newClusterListCommand); err != nil || out != "" || !strings.Contains(errOut, "There are no others") || strings.Contains(errOut, "No clusters") {
		t.Errorf("none that may be seen: %q, %q, %v", out, errOut, err)
	}
	if out, _, err = f.call(t, newClusterStatusCommand, "east"); err != nil || !strings.Contains(out, "you may not see") {
		t.Errorf("status: %q, %v", out, err)
	}
}
