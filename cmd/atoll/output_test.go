package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/cli"
)

// TestStatusAsAnObject: a script reads of a cluster what the list of clusters gives it, as kubectl writes objects.
func TestStatusAsAnObject(t *testing.T) {
	written := metav1.ManagedFieldsEntry{Manager: "atoll", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: workloadv1alpha1.GroupVersion.String(),
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1("{}")}
	east := &workloadv1alpha1.SyncTarget{
		ObjectMeta: metav1.ObjectMeta{Name: "east", Labels: map[string]string{"region": "eu"}, ManagedFields: []metav1.ManagedFieldsEntry{written}},
		Status:     workloadv1alpha1.SyncTargetStatus{Version: "v1.36.3", Conditions: []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Ready"}}},
	}
	hub := cli.New(cli.Address{Path: cli.Root}, fake.NewClientBuilder().WithScheme(client.Scheme).WithObjects(east).WithReturnManagedFields().Build(), nil)
	for format, start := range map[string]string{"json": "{\n    \"", "yaml": "apiVersion: " + workloadv1alpha1.GroupVersion.String() + "\nkind: SyncTarget\n"} {
		streams, _, out, _ := genericiooptions.NewTestIOStreams()
		cmd := newClusterStatusCommand(func() (*cli.Hub, error) { return hub, nil }, streams)
		cmd.SetArgs([]string{"east", "-o", format})
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(out.String(), start) {
			t.Errorf("%s begins otherwise than with %q:\n%s", format, start, out)
		}
		got := &workloadv1alpha1.SyncTarget{}
		if err := yaml.UnmarshalStrict(out.Bytes(), got); err != nil {
			t.Fatal(err)
		}
		want := east.DeepCopy()
		want.TypeMeta = metav1.TypeMeta{Kind: "SyncTarget", APIVersion: workloadv1alpha1.GroupVersion.String()}
		want.ManagedFields, want.ResourceVersion = nil, "999" // that of the fake
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", format, diff)
		}
	}
}

func TestVersionAsAnObject(t *testing.T) {
	for _, format := range []string{"json", "yaml"} {
		streams, _, out, _ := genericiooptions.NewTestIOStreams()
		cmd := newVersionCommand(streams)
		cmd.SetArgs([]string{"--output", format})
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		var got map[string]string
		if err := yaml.UnmarshalStrict(out.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if json := strings.HasPrefix(out.String(), "{\n    \""); json != (format == "json") {
			t.Errorf("%s:\n%s", format, out)
		}
		for _, key := range []string{"atollVersion", "kubernetesVersion", "goVersion", "platform"} {
			if got[key] == "" {
				t.Errorf("%s has no %s:\n%s", format, key, out)
			}
		}
	}
}

// TestUnknownFormats are refused before anybody is asked.
func TestUnknownFormats(t *testing.T) {
	asked := errors.New("asked")
	open := func() (*cli.Hub, error) { return nil, asked }
	streams, _, _, _ := genericiooptions.NewTestIOStreams()
	status, version, list, explain := newClusterStatusCommand(open, streams), newVersionCommand(streams), newClusterListCommand(open, streams), explainCommand(open, streams)
	for _, cmd := range []*cobra.Command{status, version, list, explain} {
		cmd.SilenceUsage, cmd.SilenceErrors = true, true // as below the root command
	}
	status.SetArgs([]string{"east", "-o", "wide"})
	version.SetArgs([]string{"-o", "name"})
	list.SetArgs([]string{"-o", "xml"})
	explain.SetArgs([]string{"deploy/web", "-o", "name"})
	for got, want := range map[error]string{
		status.ExecuteContext(t.Context()):  `--output "wide": want json, yaml, or nothing for text`,
		version.ExecuteContext(t.Context()): `--output "name": want json, yaml, or nothing for text`,
		explain.ExecuteContext(t.Context()): `--output "name": want json, yaml, or nothing for text`,
		list.ExecuteContext(t.Context()):    `--output "xml": want wide, json, yaml, name, or nothing for text`,
	} {
		if got == nil || got.Error() != want {
			t.Errorf("error %v, want %s", got, want)
		}
	}
}
