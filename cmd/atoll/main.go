package main

import (
	"os"
	_ "time/tzdata" // for time zones of CronJobs, as in kube-apiserver: a machine or an image without zoneinfo refused every one

	"k8s.io/cli-runtime/pkg/genericiooptions"
)

func main() {
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	os.Exit(run(newRootCommand(streams), streams.ErrOut))
}
