// Package attendance knows when others than its owner have a part in the life of a workspace: initializers before it can be
// used, and terminators before its content goes. Both are attendants. They are named after the types of the workspace that ask
// for them, are listed in its LogicalCluster, and remove themselves there when they are done.
//
// It decides from objects that it is given, and neither reads nor writes any. What always holds: all that is done for attendants
// is the same for both attendances, but for what an Attendance says.
package attendance
