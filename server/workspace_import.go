package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/apis/core"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/workspacefile"
	"atoll.dev/atoll/server/storage"
)

const (
	// ImportPath makes of the body of a POST, which is an export, a new workspace at the path that WorkspaceParameter names,
	// for administrators of the server. It answers when the workspace holds everything and is about to become Ready.
	ImportPath = "/atoll/import"

	// importParallel is how many rows are written at a time: etcd syncs them to disk together.
	importParallel = 32
	// bornWithin is how long an import waits for the logical cluster of its workspace.
	bornWithin = time.Minute
	// undoWithin is how long an import that fails tries to delete its workspace.
	undoWithin = 10 * time.Second
)

// Stages of an import, in their order. Within, what is named as an owner comes before what names it, so that the garbage
// collector never finds an object without its owner.
const (
	stageNamespaces = 0
	stageObjects    = 1
	// What makes pods comes when everything is there that these need, and is placed then as if it were new.
	stageWorkloads = 1_000_000
	// Nobody but administrators of the server can enter before this.
	stageBindings = 2_000_000
)

// serveImport is all or nothing: before the workspace is made, the whole file is here and every row is known to be
// readable; and while rows come in, nobody has a role in it, and what fails then deletes it again.
func (s *Server) serveImport(w http.ResponseWriter, req *http.Request) {
	if s.serverWide(w, req, ImportPath, http.MethodPost) {
		return
	}
	body := newImpatientReader(w, req)
	ctx, done := s.untilStop(req.Context(), body.end)
	defer done()
	i, err := s.receive(ctx, req, body)
	if err != nil {
		s.answer(w, req, err)
		return
	}
	defer i.file.Close() // it was only read
	if err := i.run(ctx); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		klog.FromContext(ctx).Error(err, "An import did not come to its end", "workspace", i.path.String())
		s.answer(w, req, withStatus(err))
		return
	}
	klog.FromContext(ctx).Info("Imported a workspace", "workspace", i.path.String(), "from", i.file.Path, "rows", len(i.items))
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = fmt.Fprintf(w, "%d\n", len(i.items)) // who does not hear it looks for himself
}

// withStatus is an error with the status of the one that it wraps, and all of its words.
func withStatus(err error) error {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return apierrors.NewInternalError(err)
	}
	answer := status.Status()
	answer.Message = err.Error()
	return &apierrors.StatusError{ErrStatus: answer}
}

// workspaceImport is one import.
type workspaceImport struct {
	server       *Server
	path, parent logicalcluster.Path
	holder       logicalcluster.Name
	name, kind   string          // kind is its type, "" for the one that the parent gives
	requests     *client.Clients // as who asked
	file         *workspacefile.File
	items        []item

	mu        sync.Mutex // guards what follows
	workspace *tenancyv1alpha1.Workspace
}

// item is a row of the file.
type item struct {
	at     int64
	stage  int
	uid    types.UID
	owners []types.UID
}

// receive takes in the file and checks all of it. Nothing is written but a file that has no name any more.
func (s *Server) receive(ctx context.Context, req *http.Request, body *impatientReader) (_ *workspaceImport, err error) {
	i := &workspaceImport{server: s}
	if i.path, i.parent, i.name, err = namedWorkspace(req); err != nil {
		return nil, err
	}
	if i.holder, err = s.holder(ctx, i.parent); err != nil {
		return nil, err
	}
	config := rest.CopyConfig(s.LoopbackConfig())
	if who, ok := request.UserFrom(ctx); ok { // becomes the owner
		config.Impersonate = rest.ImpersonationConfig{UserName: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: who.GetExtra()}
	}
	if i.requests, err = client.New(config); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if found, err := s.Read(ctx, i.holder, "", i.name, "", &tenancyv1alpha1.Workspace{}); err != nil || found {
		if err == nil {
			err = conflict("workspace %q is there already: an import makes a new one and overwrites none", i.path)
		}
		return nil, err
	}
	// What is known before the upload is refused before it.
	query := req.URL.Query()
	if i.kind = query.Get(TypeParameter); query.Has(TypeParameter) {
		if err := i.requests.Objects.Create(client.In(ctx, i.holder), i.wanted(), ctrlclient.DryRunAll); err != nil {
			return nil, err
		}
	}
	spool, err := newSpool(s.options.RootDirectory)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if err = spool.expect(req.ContentLength); err == nil {
		_, err = io.Copy(spool, body)
	}
	body.lift() // the connection may serve other requests
	if err != nil {
		err = fmt.Errorf("the export did not arrive: %w", err)
	} else if i.file, err = workspacefile.New(spool.file, "the file"); err == nil {
		if !query.Has(TypeParameter) {
			i.kind = i.file.Type
		}
		err = i.check(ctx)
	}
	if err != nil {
		_ = spool.file.Close() // nobody reads it any more
		return nil, badRequest(err)
	}
	return i, nil
}

// badRequest is an error with the status of the one that it wraps, if any, else one of the request.
func badRequest(err error) error {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return withStatus(err)
	}
	return apierrors.NewBadRequest(err.Error())
}

// check reads everything as if it were imported, and sorts it.
func (i *workspaceImport) check(ctx context.Context) error {
	theirs, err := version.ParseGeneric(i.file.Kubernetes)
	if err != nil {
		return fmt.Errorf("the file does not say of which version of Kubernetes its objects are: %w", err)
	}
	if ours := version.MustParseGeneric(kubernetesVersion()); ours.LessThan(theirs) {
		return fmt.Errorf("the file holds objects of Kubernetes %s, and this server serves %s: import it into a server as new as the one that wrote it", theirs, ours)
	}
	trial := lcctx.NewName() // where the rows would be, were this in earnest
	if err := i.file.Rows(func(at int64, row workspacefile.Row) error {
		if row.Prefix == podsPrefix && !row.Custom { // earlier versions exported them
			if passes, err := isOfTheMoment(row.Value); passes || err != nil {
				return err
			}
		}
		ready, err := i.ready(ctx, trial, row)
		if err != nil {
			return err
		}
		found := item{at: at, stage: stageOf(ready.Resource), uid: ready.Meta.UID}
		for _, o := range ready.Meta.OwnerReferences {
			found.owners = append(found.owners, o.UID)
		}
		i.items = append(i.items, found)
		return nil
	}); err != nil {
		return err
	}
	ownersFirst(i.items)
	return nil
}

func stageOf(resource schema.GroupResource) int {
	switch {
	case resource == schema.GroupResource{Resource: "namespaces"}:
		return stageNamespaces
	case slices.Contains([]string{"apps", "batch"}, resource.Group), resource.Group == "" && slices.Contains([]string{"pods", "services", "replicationcontrollers"}, resource.Resource):
		return stageWorkloads
	case resource.Group == "rbac.authorization.k8s.io" && strings.HasSuffix(resource.Resource, "bindings"):
		return stageBindings
	}
	return stageObjects
}

// ownersFirst sorts rows by stage, after it has put each in a later one than its owners.
func ownersFirst(items []item) {
	byUID := map[types.UID]int{}
	for n, it := range items {
		if it.uid != "" {
			byUID[it.uid] = n
		}
	}
	done := make([]bool, len(items))
	var place func(n int) int
	place = func(n int) int {
		if done[n] {
			return items[n].stage // of a circle: somewhere
		}
		done[n] = true
		for _, owner := range items[n].owners {
			if o, ok := byUID[owner]; ok && o != n {
				items[n].stage = max(items[n].stage, place(o)+1)
			}
		}
		return items[n].stage
	}
	for n := range items {
		place(n)
	}
	slices.SortStableFunc(items, func(a, b item) int { return a.stage - b.stage })
}

// ready makes a row of the file one of a logical cluster.
func (i *workspaceImport) ready(ctx context.Context, cluster logicalcluster.Name, row workspacefile.Row) (*storage.Ready, error) {
	plain := storage.PlainRow{Prefix: row.Prefix, Key: row.Key, Custom: row.Custom, Value: row.Value}
	ready, err := i.server.backend.Ready(ctx, cluster, plain, exportedLocks, withoutTraces)
	if err != nil {
		return nil, err
	}
	plain.Resource = ready.Resource
	switch wanted, err := exported(plain); {
	case err != nil:
		return nil, err
	case !wanted:
		return nil, fmt.Errorf("import %s %q: this cannot be imported", ready.Resource, row.Key)
	}
	return ready, nil
}

// withoutTraces takes off an object what its old installation wrote of physical clusters.
func withoutTraces(resource schema.GroupResource, obj runtime.Object) error {
	object, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	if pod, ok := obj.(*core.Pod); ok {
		asNew(pod)
	}
	domain, _, _ := strings.Cut(workloadv1alpha1.SyncerFinalizer, "/")
	ours := func(name string) bool { return strings.HasPrefix(name, domain+"/") }
	object.SetFinalizers(slices.DeleteFunc(object.GetFinalizers(), ours))
	for _, names := range []map[string]string{object.GetAnnotations(), object.GetLabels()} {
		for name := range names {
			if ours(name) {
				delete(names, name)
			}
		}
	}
	// What ran there is not what runs here; but what is done once, was done. Volumes stay where they are, and a claim gets another one.
	if kind, ok := kinds.ByResource(resource); ok && kind.HasStatus && kind.Goes != kinds.Bound && (kind.Begun == nil || kind.Goes == kinds.WhereMounted) {
		reflect.ValueOf(obj).Elem().FieldByName("Status").SetZero()
	}
	if claim, ok := obj.(*core.PersistentVolumeClaim); ok {
		claim.Spec.VolumeName = ""
	}
	return nil
}

// asNew makes a pod one that was just made, which is bound anew if it was bound. One that has ended has, wherever it is.
func asNew(pod *core.Pod) {
	if kinds.IsBound(pod) {
		pod.Spec.NodeName = ""
	}
	if pod.Status.Phase != core.PodSucceeded && pod.Status.Phase != core.PodFailed {
		pod.Status = core.PodStatus{Phase: core.PodPending, QOSClass: pod.Status.QOSClass}
	}
}

// wanted is the Workspace to make.
func (i *workspaceImport) wanted() *tenancyv1alpha1.Workspace {
	return &tenancyv1alpha1.Workspace{
		ObjectMeta: metav1.ObjectMeta{
			Name: i.name, Annotations: map[string]string{tenancyv1alpha1.ImportingAnnotation: time.Now().UTC().Format(time.RFC3339)},
		},
		Spec: tenancyv1alpha1.WorkspaceSpec{Type: TypeReference(i.kind)},
	}
}

// run makes the workspace and fills it. If it fails, the workspace is deleted.
func (i *workspaceImport) run(ctx context.Context) error {
	i.workspace = i.wanted()
	if err := i.requests.Objects.Create(client.In(ctx, i.holder), i.workspace); err != nil {
		return fmt.Errorf("make workspace %q: %w", i.path, err)
	}
	uid := i.workspace.UID
	err := i.fill(ctx)
	if err == nil {
		return nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWithin)
	defer cancel()
	left := i.requests.Objects.Delete(client.In(undo, i.holder), i.workspace, ctrlclient.Preconditions{UID: &uid})
	if ctrlclient.IgnoreNotFound(left) != nil {
		return fmt.Errorf("%w; and the workspace, which never became ready, is still there: delete it: %w", err, left)
	}
	return fmt.Errorf("%w; the workspace is being deleted again", err)
}

func (i *workspaceImport) fill(ctx context.Context) error {
	cluster := logicalcluster.Name(i.workspace.Spec.Cluster)
	// From here on controllers see what is written there. Those that delete wait for the end: of what is being deleted the rest may not be there yet.
	if err := wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, bornWithin, true, func(context.Context) (bool, error) {
		_, known := i.server.directory.Known(cluster)
		return known, nil
	}); err != nil {
		return fmt.Errorf("wait for logical cluster %q: %w", cluster, err)
	}
	if err := i.look(ctx); err != nil {
		return err
	}
	for begin := 0; begin < len(i.items); {
		end := begin
		for end < len(i.items) && i.items[end].stage == i.items[begin].stage {
			end++
		}
		group, within := errgroup.WithContext(ctx)
		group.SetLimit(importParallel)
		for _, it := range i.items[begin:end] {
			group.Go(func() error { return i.write(within, cluster, it) })
		}
		if err := group.Wait(); err != nil {
			return err
		}
		begin = end
	}
	return i.finish(ctx)
}

// write writes one row, as long as the Workspace is there and waits for it.
func (i *workspaceImport) write(ctx context.Context, cluster logicalcluster.Name, it item) error {
	row, err := i.file.At(it.at)
	if err != nil {
		return err
	}
	ready, err := i.ready(ctx, cluster, row)
	if err != nil {
		return err
	}
	for {
		while := i.current()
		written, err := i.server.backend.WriteReady(ctx, ready, storage.Row{Resource: workspaceResource, Cluster: i.holder, Object: while})
		if written || err != nil {
			return err
		}
		if err := i.look(ctx); err != nil {
			return err
		}
	}
}

func (i *workspaceImport) current() *tenancyv1alpha1.Workspace {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.workspace
}

// look reads the Workspace; an error if it does not wait for this import any more.
func (i *workspaceImport) look(ctx context.Context) error {
	now := &tenancyv1alpha1.Workspace{}
	found, err := i.server.Read(ctx, i.holder, "", i.name, "", now)
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	const importing = tenancyv1alpha1.ImportingAnnotation
	if !found || now.UID != i.workspace.UID || now.DeletionTimestamp != nil || now.Annotations[importing] != i.workspace.Annotations[importing] {
		return fmt.Errorf("workspace %q was deleted or changed by somebody while it was filled", i.path)
	}
	i.workspace = now.DeepCopy()
	return nil
}

// finish lets the workspace become Ready.
func (i *workspaceImport) finish(ctx context.Context) error {
	before := i.current()
	after := before.DeepCopy()
	delete(after.Annotations, tenancyv1alpha1.ImportingAnnotation)
	if err := i.requests.Objects.Patch(client.In(ctx, i.holder), after, ctrlclient.MergeFrom(before)); err != nil {
		return fmt.Errorf("let workspace %q become ready: %w", i.path, err)
	}
	return nil
}

// importing says whether an import fills a logical cluster. One that is not known yet is read.
func (s *Server) importing(ctx context.Context, name logicalcluster.Name) (bool, error) {
	if _, known := s.directory.Known(name); known {
		return s.directory.Annotation(name, tenancyv1alpha1.ImportingAnnotation) != "" && !s.directory.Terminating(name), nil
	}
	cluster := &corev1alpha1.LogicalCluster{}
	found, err := s.Read(ctx, name, "", corev1alpha1.LogicalClusterName, "", cluster)
	return found && client.IsImporting(cluster), err
}
