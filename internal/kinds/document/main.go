// Command document writes the tables of docs/kinds.md from the table of kinds.
package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"atoll.dev/atoll/internal/document"
	"atoll.dev/atoll/internal/kinds"
)

var section = document.Section{Begin: "<!-- kinds: begin (make generate writes these tables) -->", End: "<!-- kinds: end -->"}

// where says in words what a Goes is.
var where = map[kinds.Goes]string{
	kinds.Divided:         "divided over the clusters of its Placement",
	kinds.Copied:          "whole, to every cluster of its Placement",
	kinds.Single:          "whole, to one cluster of its Placement at a time",
	kinds.Bound:           "to one cluster of its Placement, for good",
	kinds.WithPlacement:   "whole, to every cluster of its Placement, and leaves after the workloads of its namespace",
	kinds.WithNamespace:   "whole, to every cluster of any Placement of its namespace, before what makes pods there, and leaves after the workloads",
	kinds.WhereReferenced: "where something refers to it",
	kinds.WhereMounted:    "whole, to the one cluster where the first that mounts it goes, and stays there",
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("name the document; got %q", args)
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	for _, k := range kinds.All {
		if where[k.Goes] == "" {
			return fmt.Errorf("nothing says in words where a kind goes that is %s, such as %s", k.Goes, k.GVK.Kind)
		}
	}
	written, err := section.Replace(string(text), tables())
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return os.WriteFile(args[0], []byte(written), 0o644)
}

func tables() string {
	var b strings.Builder
	b.WriteString("\n| kind | goes | what of it goes down | what comes up | what does not go |\n|---|---|---|---|---|\n")
	for _, k := range kinds.All {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", k.GVK.Kind, where[k.Goes], k.Doc.Down, k.Doc.Up, k.Doc.Not)
	}
	b.WriteString("\nThese are kept, and who creates one is warned: they neither go down nor are carried out in the workspace.\n\n")
	for _, resource := range slices.SortedFunc(slices.Values(kinds.Kept), compare) {
		fmt.Fprintf(&b, "- `%s`\n", resource)
	}
	b.WriteString("\nThese have their effect in the workspace, and not below:\n\n")
	for _, resource := range slices.SortedFunc(maps.Keys(kinds.CarriedOutHere), compare) {
		fmt.Fprintf(&b, "- `%s` %s\n", resource, kinds.CarriedOutHere[resource])
	}
	b.WriteString("\n")
	return b.String()
}

func compare(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) }
