package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"atoll.dev/atoll/client"
)

// listFormats are the forms in which lists are written, beside a table.
var listFormats = []string{"wide", "json", "yaml", "name"}

// outputFlag is -o of a list.
func outputFlag(cmd *cobra.Command, output *string) {
	last := len(listFormats) - 1
	cmd.Flags().StringVarP(output, "output", "o", "", strings.Join(listFormats[:last], ", ")+" or "+listFormats[last]+".")
	completeFlag(cmd, "output", cobra.FixedCompletions(listFormats, cobra.ShellCompDirectiveNoFileComp))
}

// checkOutput returns an error unless format is empty (a table) or one of listFormats.
func checkOutput(format string) error {
	if format == "" || slices.Contains(listFormats, format) {
		return nil
	}
	return fmt.Errorf("--output %q: want %s, or nothing for a table", format, strings.Join(listFormats, ", "))
}

// printList writes a list of API objects as json, yaml or names.
func printList(out io.Writer, format string, list runtime.Object) error {
	setKind := func(o runtime.Object) error {
		gvk, err := apiutil.GVKForObject(o, client.Scheme)
		if err == nil {
			o.GetObjectKind().SetGroupVersionKind(gvk) // a typed client leaves it out
		}
		return err
	}
	if err := meta.EachListItem(list, setKind); err != nil {
		return err
	}
	switch format {
	case "json", "yaml":
		if err := setKind(list); err != nil {
			return err
		}
		var p printers.ResourcePrinter = &printers.JSONPrinter{}
		if format == "yaml" {
			p = &printers.YAMLPrinter{}
		}
		return p.PrintObj(list, out)
	case "name":
		p := &printers.NamePrinter{}
		return meta.EachListItem(list, func(o runtime.Object) error { return p.PrintObj(o, out) })
	}
	return fmt.Errorf("no printer for %q", format)
}

// printTable writes rows as kubectl does: upper-case header, columns three spaces apart.
func printTable(out io.Writer, header []string, rows [][]string) error {
	w := printers.GetNewTabWriter(out)
	for _, row := range append([][]string{header}, rows...) {
		if _, err := fmt.Fprintln(w, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return w.Flush()
}

func age(t metav1.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t.Time))
}

// orNone returns what is shown for s in a table.
func orNone(s string) string {
	if s == "" {
		return "<none>"
	}
	return s
}
