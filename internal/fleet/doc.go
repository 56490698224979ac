// Package fleet is the one rule of which physical clusters a workspace may use: the SyncTargets of the workspace and of those
// above it, save what is dedicated to another and what a nearer one of the same name hides, within the allow of every
// PlacementPolicy from the workspace upward.
//
// It is pure: placement decides by it, the splitter asks it before it makes something beside what stays in a cluster, and the server
// shows what it says as the Nodes of a workspace.
package fleet
