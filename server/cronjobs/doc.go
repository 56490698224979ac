// Package cronjobs makes the Jobs of CronJobs, in all workspaces at once, as kube-controller-manager's cronjob-controller does
// for one cluster.
//
// It hears of every CronJob and every Job by two watches that keep nothing, and holds in one queue the names of CronJobs and when
// each is due; one is looked at once an hour at least. An idle one costs a name there, and no goroutine or timer. Looking is to
// read the CronJob and, from their store, the Jobs of its namespace (jobs.go); decide, which is pure, says what follows: Jobs
// to make and to delete, status, Events, next time. Of a workspace two looks go on at once, and those that are to come wait
// four times as long as one has read.
//
// What always holds:
//
//   - No run is made twice. A Job is named after its CronJob and the minute of the run, so that the server refuses a second
//     one, and carries the time of the run. One that is not in the status (somebody stopped between two writes) is found by
//     both and counted as that run. Nothing is deleted before the status that counts it is written. Only a Job that somebody
//     else deletes in between is made again.
//   - What another made is never adopted: a Job counts that this CronJob controls by UID. One made by hand (kubectl create job
//     --from) keeps its place in the history, as in Kubernetes, and no run waits for it.
//   - Mirrors are left alone, and workspaces that go.
//   - Where somebody else's Job has the name of a run there is none, as in Kubernetes; and an Event, once. So a run that was
//     too late for its deadline is told, of which Kubernetes says nothing. If that Job goes before the next run and something has
//     the CronJob looked at then, as an event of a Job of it, the run is made, late, as by Kubernetes' next look.
//
// Nothing runs while the server is away. When it is back the latest run that was missed is made, unless
// spec.startingDeadlineSeconds have passed since it was due; of several missed it is the last only. Schedules are in UTC where
// neither spec.timeZone nor the schedule names a zone, whatever the zone of the server.
//
// The server starts it: New, then Run. When etcd is away everything is tried again. Read decide.go first.
package cronjobs
