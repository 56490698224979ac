package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubeversion "k8s.io/component-base/version"
	"sigs.k8s.io/yaml"
)

// atollVersion is set by the Makefile: git describe of what was built.
var atollVersion = "unknown"

// versions is what "atoll version" says to a program.
type versions struct {
	Atoll      string `json:"atollVersion"`
	Kubernetes string `json:"kubernetesVersion"`
	Go         string `json:"goVersion"`
	Platform   string `json:"platform"`
}

func newVersionCommand(streams genericiooptions.IOStreams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program and of the Kubernetes API it serves",
		Example: `  atoll version
  atoll version -o json`,
		Args: exactArgs(0),
		RunE: func(*cobra.Command, []string) error {
			if err := checkOutput(output, objectFormats); err != nil {
				return err
			}
			v := versions{atollVersion, kubeversion.Get().GitVersion, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return v.print(streams.Out, output)
		},
	}
	outputFlag(cmd, &output, objectFormats)
	return cmd
}

func (v versions) print(out io.Writer, format string) error {
	var text []byte
	var err error
	switch format {
	case "json":
		text, err = json.MarshalIndent(v, "", "    ")
		text = append(text, '\n')
	case "yaml":
		text, err = yaml.Marshal(v)
	default:
		text = fmt.Appendf(nil, "Atoll       %s\nKubernetes  %s\nGo          %s %s\n", v.Atoll, v.Kubernetes, v.Go, v.Platform)
	}
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}
