// Command demo does Atoll's main job before your eyes: it starts an Atoll and two physical clusters, applies an ordinary
// Deployment to a workspace, spreads it over both clusters, moves it to one, and looks into its pods in both from the workspace. "make demo" builds and
// runs it.
//
// Every step shows the command that a person could type, and runs it with bin/atoll. What a step must lead to is
// checked on the physical clusters themselves; a step that does not get there within a generous bound fails the demo.
// How long things take is printed and never asserted.
//
// Everything it writes is below one temporary directory, on free ports. However it ends, it leaves no process behind,
// and no directory unless it failed; with --keep it leaves everything running and says how to go on and how to stop.
//
// Pods are simulated. What kubectl exec asks for in them runs on this machine (physical's --exec-on-host), which the demo says.
//
// Read story.go first.
package main
