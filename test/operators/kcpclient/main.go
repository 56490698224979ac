package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
)

// kinds are those of kcp that a server of Atoll serves, too.
var kinds = map[string]func() any{
	"Workspace":      func() any { return &tenancyv1alpha1.Workspace{} },
	"WorkspaceType":  func() any { return &tenancyv1alpha1.WorkspaceType{} },
	"LogicalCluster": func() any { return &corev1alpha1.LogicalCluster{} },
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "kcpclient:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "version":
		build, _ := debug.ReadBuildInfo()
		i := slices.IndexFunc(build.Deps, func(m *debug.Module) bool { return m.Path == "github.com/kcp-dev/sdk" })
		if i < 0 {
			return errors.New("it was built without github.com/kcp-dev/sdk")
		}
		fmt.Println(build.Deps[i].Path, build.Deps[i].Version)
		return nil
	case len(args) == 1 && args[0] == "fields":
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			fields(kind, reflect.TypeOf(kinds[kind]()), os.Stdout)
		}
		return nil
	case len(args) == 1 && args[0] == "decode":
		return decode(os.Stdin, os.Stdout)
	case len(args) == 3 && args[0] == "use":
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		return use(ctx, args[1], args[2])
	}
	return errors.New("usage: kcpclient version | fields | decode | use KUBECONFIG NAME")
}

// fields writes the fields below a type, but for metadata, which is Kubernetes'.
func fields(path string, t reflect.Type, w io.Writer) {
	switch {
	case t.Kind() == reflect.Pointer:
		fields(path, t.Elem(), w)
		return
	case reflect.PointerTo(t).Implements(reflect.TypeFor[json.Marshaler]()), t.Kind() != reflect.Struct && t.Kind() != reflect.Slice:
		fmt.Fprintln(w, path, t.Kind())
		return
	case t.Kind() == reflect.Slice:
		fmt.Fprintln(w, path, t.Kind())
		fields(path+"[]", t.Elem(), w)
		return
	}
	fmt.Fprintln(w, path, t.Kind())
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "metadata" {
			fields(path+"."+name, f.Type, w)
		}
	}
}

// decode reads objects until there are no more.
func decode(in io.Reader, out io.Writer) error {
	for objects := json.NewDecoder(in); ; {
		var raw json.RawMessage
		if err := objects.Decode(&raw); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read an object: %w", err)
		}
		var kind metav1.TypeMeta
		if err := json.Unmarshal(raw, &kind); err != nil {
			return fmt.Errorf("read the kind of an object: %w", err)
		}
		made, ok := kinds[kind.Kind]
		if !ok {
			return fmt.Errorf("an object is of the kind %q", kind.Kind)
		}
		object := made()
		faults, err := kjson.UnmarshalStrict(raw, object)
		if err != nil {
			return fmt.Errorf("read a %s: %w", kind.Kind, err)
		}
		answer := struct {
			Faults []string `json:"faults"`
			Object any      `json:"object"`
		}{[]string{}, object}
		for _, fault := range faults {
			answer.Faults = append(answer.Faults, fault.Error())
		}
		if err := json.NewEncoder(out).Encode(answer); err != nil {
			return err
		}
	}
}
