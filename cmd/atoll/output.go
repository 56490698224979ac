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

// Forms in which a command writes beside the one for people: a table, or text.
var (
	listFormats   = []string{"wide", "json", "yaml", "name"}
	objectFormats = []string{"json", "yaml"}
)

// outputFlag is -o of a command that writes in these formats.
func outputFlag(cmd *cobra.Command, output *string, formats []string) {
	last := len(formats) - 1
	cmd.Flags().StringVarP(output, "output", "o", "", strings.Join(formats[:last], ", ")+" or "+formats[last]+".")
	completeFlag(cmd, "output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

// checkOutput returns an error unless format is empty (for people) or one of formats.
func checkOutput(format string, formats []string) error {
	if format == "" || slices.Contains(formats, format) {
		return nil
	}
	return fmt.Errorf("--output %q: want %s, or nothing for text", format, strings.Join(formats, ", "))
}

// setKind has an object say what it is: a typed client leaves that out.
func setKind(o runtime.Object) error {
	gvk, err := apiutil.GVKForObject(o, client.Scheme)
	if err == nil {
		o.GetObjectKind().SetGroupVersionKind(gvk)
	}
	return err
}

// printList writes a list of API objects as json, yaml or names.
func printList(out io.Writer, format string, list runtime.Object) error {
	if err := meta.EachListItem(list, setKind); err != nil {
		return err
	}
	if format == "name" {
		p := &printers.NamePrinter{}
		return meta.EachListItem(list, func(o runtime.Object) error { return p.PrintObj(o, out) })
	}
	return printObject(out, format, list)
}

// printObject writes an API object as json or yaml, and as kubectl does without who wrote which field.
func printObject(out io.Writer, format string, object runtime.Object) error {
	if err := setKind(object); err != nil {
		return err
	}
	var p printers.ResourcePrinter
	switch format {
	case "json":
		p = &printers.JSONPrinter{}
	case "yaml":
		p = &printers.YAMLPrinter{}
	default:
		return fmt.Errorf("no printer for %q", format)
	}
	return (&printers.OmitManagedFieldsPrinter{Delegate: p}).PrintObj(object, out)
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
