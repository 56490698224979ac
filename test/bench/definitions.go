package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"atoll.dev/atoll/client"
)

const (
	definitionMemory = "memory per workspace of a definition that others have"
	definitionUse    = "from POST of a definition that others have to use, p50"

	// definedIn is how many workspaces get the definition, and definedFields how many fields, with a sentence each, it has.
	definedIn     = 1000
	definedFields = 100
)

var definitions = Scenario{
	Name: "definitions",
	Rows: []Row{
		{Name: definitionMemory, Unit: "KB", Goal: atMost(16), How: howForgotten + howMemory + "(with the same CustomResourceDefinition of 100 fields, and an object of it, in 1,000 workspaces - with it in one) / 999"},
		{Name: definitionUse, Unit: "ms", Goal: atMost(50), How: "a POST of the CustomResourceDefinition, its Established by a watch, and the 201 of the first object of it, in one workspace after the other"},
	},
	Run: runDefinitions,
}

var (
	definitionsGVR = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	widgetsGVR     = schema.GroupVersionResource{Group: "bench.example", Version: "v1", Resource: "widgets"}
)

func runDefinitions(ctx context.Context, env *Env) error {
	a := env.StartAtoll()
	clients := a.Clients()
	watched, stop := context.WithCancel(ctx)
	defer stop()
	workspaces, err := NewWorkspaces(watched, env, clients)
	if err != nil {
		return err
	}
	clusters, _, _, err := workspaces.CreateMany(ctx, 0, env.N(definedIn, 3))
	if err != nil {
		return err
	}
	stop()
	holds := func() (Memory, error) {
		if !env.Asked(definitionMemory) {
			return Memory{}, nil
		}
		if err := forgotten(ctx, env, a); err != nil {
			return Memory{}, err
		}
		return memory(ctx, env, a)
	}
	define := func(clusters []logicalcluster.Name) ([]float64, error) {
		ms, _, err := Load(ctx, 1, len(clusters), func(ctx context.Context, i int) error {
			if err := define(ctx, clients, clusters[i]); err != nil {
				return fmt.Errorf("define widgets in logical cluster %q: %w", clusters[i], err)
			}
			return nil
		})
		return ms, err
	}
	first, err := define(clusters[:1])
	if err != nil {
		return err
	}
	one, err := holds()
	if err != nil {
		return err
	}
	env.Progress("one of %d workspaces has the definition: %s", len(clusters), one)
	next, err := define(clusters[1:])
	if err != nil {
		return err
	}
	all, err := holds()
	if err != nil {
		return err
	}
	kb := func(one, all float64) float64 { return (all - one) * 1000 / float64(len(clusters)-1) }
	err = env.Report(definitionMemory, kb(one.Total(), all.Total()), fmt.Sprintf("RssAnon %s, RssFile %s; in all %s",
		quantity(kb(one.Anon, all.Anon), "KB"), quantity(kb(one.File, all.File), "KB"), all), nil)
	if err != nil {
		return err
	}
	return env.Report(definitionUse, Median(next), fmt.Sprintf("p99 %s, maximum %s; %s in the first workspace", quantity(Percentile(next, 99), "ms"),
		quantity(slices.Max(next), "ms"), quantity(first[0], "ms")), map[string][]float64{"ms of each workspace": next})
}

// define makes the definition in a logical cluster, waits until it is served, and makes an object of it.
func define(ctx context.Context, clients *client.Clients, cluster logicalcluster.Name) error {
	ctx = client.In(ctx, cluster)
	made, err := clients.Dynamic.Resource(definitionsGVR).Create(ctx, widgetDefinition(), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	events, err := clients.Dynamic.Resource(definitionsGVR).Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + made.GetName(), ResourceVersion: made.GetResourceVersion(),
	})
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	defer events.Stop()
	if err := established(ctx, events); err != nil {
		return err
	}
	_, err = clients.Dynamic.Resource(widgetsGVR).Namespace("default").Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": widgetsGVR.GroupVersion().String(), "kind": "Widget", "metadata": map[string]any{"name": "one"}, "spec": map[string]any{"field1": "value"},
	}}, metav1.CreateOptions{})
	return err
}

// established waits until a definition is served.
func established(ctx context.Context, events watch.Interface) error {
	for event := range events.ResultChan() {
		definition, ok := event.Object.(*unstructured.Unstructured)
		if !ok || event.Type == watch.Error {
			return fmt.Errorf("the watch says %s: %v", event.Type, event.Object)
		}
		conditions, _, err := unstructured.NestedSlice(definition.Object, "status", "conditions")
		if err != nil {
			return err
		}
		for _, c := range conditions {
			if is, ok := c.(map[string]any); ok && is["type"] == "Established" && is["status"] == "True" {
				return nil
			}
		}
	}
	return fmt.Errorf("the watch ended before the definition was established: %w", context.Cause(ctx))
}

// widgetDefinition has as many fields as those that people write.
func widgetDefinition() *unstructured.Unstructured {
	fields := map[string]any{}
	for i := range definedFields {
		fields[fmt.Sprint("field", i)] = map[string]any{
			"type": "string", "maxLength": int64(100), "description": fmt.Sprintf("Field %d says what the widget is to be like, as far as somebody wants to say so.", i),
		}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "widgets.bench.example"},
		"spec": map[string]any{
			"group": widgetsGVR.Group, "scope": "Namespaced",
			"names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
			"versions": []any{map[string]any{
				"name": widgetsGVR.Version, "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
					"spec": map[string]any{"type": "object", "properties": fields},
				}}},
			}},
		},
	}}
}
