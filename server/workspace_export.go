package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/kubernetes/scheme"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/klog/v2"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	placementv1alpha1 "atoll.dev/atoll/apis/placement/v1alpha1"
	tenancyv1alpha1 "atoll.dev/atoll/apis/tenancy/v1alpha1"
	workloadv1alpha1 "atoll.dev/atoll/apis/workload/v1alpha1"
	"atoll.dev/atoll/client"
	"atoll.dev/atoll/internal/kinds"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/internal/workspacefile"
	"atoll.dev/atoll/server/endpoints"
	"atoll.dev/atoll/server/storage"
)

const (
	// ExportPath answers a GET with an export of the workspace that the parameter WorkspaceParameter names by its path, for
	// administrators of the server. As of a backup, BackupErrorTrailer says why one is not whole.
	ExportPath = "/atoll/export"
	// WorkspaceParameter of ExportPath and ImportPath.
	WorkspaceParameter = "workspace"
	// TypeParameter of ImportPath is the type of the new workspace, as root:org:team, or empty for the one that the workspace
	// above gives to new ones. Without the parameter it is of the type that was exported.
	TypeParameter = "type"
)

var (
	workspaceResource  = schema.GroupResource{Group: tenancyv1alpha1.GroupVersion.Group, Resource: "workspaces"}
	syncTargetResource = schema.GroupResource{Group: workloadv1alpha1.GroupVersion.Group, Resource: "synctargets"}
)

// notExported is what is of the installation or of the moment: decisions of placement and elections are made anew, events are
// of what happened there, certificates are of its authority, and nodes show its physical clusters: rows are of an earlier version.
var notExported = sets.New(
	logicalClusters,
	schema.GroupResource{Group: placementv1alpha1.GroupVersion.Group, Resource: "placements"},
	schema.GroupResource{Resource: "nodes"},
	schema.GroupResource{Resource: "events"},
	schema.GroupResource{Group: "events.k8s.io", Resource: "events"},
	schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"},
	schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"},
)

// rootCAConfigMap is in every namespace, with the authority of the installation.
const rootCAConfigMap = "kube-root-ca.crt"

// exportedLocks are the kinds of locks that go with the objects that hold them.
var exportedLocks = []string{"nodeports"}

// exported says whether a row is part of an export; an error if there can be no export with it.
func exported(row storage.PlainRow) (bool, error) {
	switch {
	case row.Resource == workspaceResource || row.Resource == syncTargetResource:
		return false, fmt.Errorf("it holds %s %q", row.Resource.Resource, row.Key)
	case notExported.Has(row.Resource):
		return false, nil
	case row.Prefix == podsPrefix:
		passes, err := isOfTheMoment(row.Value)
		return !passes, err
	case row.Resource == discoveryv1.Resource("endpointslices"):
		made, err := isMadeOfPods(row.Value)
		return !made, err
	case row.Resource == corev1.Resource("endpoints"):
		made, err := areMadeOfPods(row.Value)
		return !made, err
	}
	return row.Resource != schema.GroupResource{Resource: "configmaps"} || !strings.HasSuffix(row.Key, "/"+rootCAConfigMap), nil
}

// podsPrefix is where pods are stored.
const podsPrefix = "/pods"

// readStored reads a stored object, what, into one of its type.
func readStored(stored []byte, object runtime.Object, what string) error {
	if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(stored, nil, object); err != nil {
		return fmt.Errorf("this server cannot read %s: %w", what, err)
	}
	return nil
}

// isOfTheMoment says whether a stored pod is of the moment: it shows one of a physical cluster, which nobody would end elsewhere, or its controller
// makes another. One that was made in the workspace, and has no controller, nobody makes again.
func isOfTheMoment(stored []byte) (bool, error) {
	pod := &corev1.Pod{}
	if err := readStored(stored, pod, "a pod"); err != nil {
		return false, err
	}
	if pod.Labels[workloadv1alpha1.MirrorLabel] == "" {
		return false, nil
	}
	return !kinds.IsBound(pod) || pod.DeletionTimestamp != nil || metav1.GetControllerOfNoCopy(pod) != nil, nil
}

// isMadeOfPods says whether a stored EndpointSlice is one that the server makes, of pods of the moment, or of Endpoints.
func isMadeOfPods(stored []byte) (bool, error) {
	slice := &discoveryv1.EndpointSlice{}
	err := readStored(stored, slice, "an EndpointSlice")
	return err == nil && endpoints.IsMade(slice), err
}

// areMadeOfPods says so of stored Endpoints.
func areMadeOfPods(stored []byte) (bool, error) {
	e := &endpoints.Endpoints{}
	err := readStored(stored, e, "Endpoints")
	return err == nil && endpoints.IsOfPods(e), err
}

// kubernetesVersion is the version of the API that is served, as 1.36.
func kubernetesVersion() string {
	v := compatibility.DefaultComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent).EmulationVersion()
	return fmt.Sprintf("%d.%d", v.Major(), v.Minor())
}

// namedWorkspace is the path in the parameter of a request, and what it is in.
func namedWorkspace(req *http.Request) (path, parent logicalcluster.Path, name string, err error) {
	path = logicalcluster.NewPath(req.URL.Query().Get(WorkspaceParameter))
	parent, name = path.Split()
	if !path.IsValid() || parent.Empty() {
		return path, parent, name, apierrors.NewBadRequest(fmt.Sprintf("%q is no path of a workspace that is in another, such as root:shop; root itself, with all that is in it, is for atoll backup and atoll restore", path))
	}
	return path, parent, name, nil
}

// serverWide answers requests that name a logical cluster, and those with another method, and says whether it did.
func (s *Server) serverWide(w http.ResponseWriter, req *http.Request, path, method string) (answered bool) {
	if _, named := lcctx.ClusterFrom(req.Context()); named {
		s.answer(w, req, notFound("ask for %s without /clusters/<path> before it", path))
		return true
	}
	if req.Method != method {
		s.answer(w, req, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: strings.TrimPrefix(path, "/atoll/")}, req.Method))
		return true
	}
	return false
}

// serveExport streams an export. What can be known to fail is known before the first byte.
func (s *Server) serveExport(w http.ResponseWriter, req *http.Request) {
	if s.serverWide(w, req, ExportPath, http.MethodGet) {
		return
	}
	out := newImpatientWriter(w)
	ctx, done := s.untilStop(req.Context(), out.end)
	defer done()
	path, workspace, err := s.exportable(ctx, req)
	if err != nil {
		s.answer(w, req, err)
		return
	}
	export, err := s.backend.Export(ctx, logicalcluster.Name(workspace.Spec.Cluster), exportedLocks)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not begin an export")
		s.answer(w, req, apierrors.NewServiceUnavailable(err.Error()))
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Trailer", BackupErrorTrailer)
	rows, err := writeExport(ctx, out, export, workspacefile.Header{
		Created: time.Now().UTC(), Path: path.String(), Type: TypeName(workspace.Spec.Type), Server: s.url, Kubernetes: kubernetesVersion(), Revision: export.Revision,
		LeftOut: export.LeftOut,
	})
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		klog.FromContext(ctx).Error(err, "An export did not come to its end", "workspace", path.String(), "bytes", out.written)
		w.Header().Set(BackupErrorTrailer, strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	out.lift() // the connection may serve other requests
	klog.FromContext(ctx).Info("Exported a workspace", "workspace", path.String(), "revision", export.Revision, "rows", rows, "bytes", out.written, "leftOut", export.LeftOut)
}

func writeExport(ctx context.Context, out io.Writer, export *storage.Export, header workspacefile.Header) (rows int, err error) {
	file, err := workspacefile.NewWriter(out, header)
	if err != nil {
		return 0, err
	}
	err = export.Rows(ctx, func(row storage.PlainRow) error {
		wanted, err := exported(row)
		if err != nil || !wanted {
			return err
		}
		rows++
		return file.Add(workspacefile.Row{Prefix: row.Prefix, Key: row.Key, Custom: row.Custom, Value: row.Value})
	})
	if err != nil {
		return rows, err
	}
	return rows, file.Close()
}

// exportable returns the workspace that a request names, or why it cannot be exported.
func (s *Server) exportable(ctx context.Context, req *http.Request) (path logicalcluster.Path, workspace *tenancyv1alpha1.Workspace, err error) {
	path, parent, name, err := namedWorkspace(req)
	if err != nil {
		return path, nil, err
	}
	holder, err := s.holder(ctx, parent)
	if err != nil {
		return path, nil, err
	}
	workspace = &tenancyv1alpha1.Workspace{}
	found, err := s.Read(ctx, holder, "", name, "", workspace)
	switch {
	case err != nil:
		return path, nil, apierrors.NewServiceUnavailable(err.Error())
	case !found:
		return path, nil, notFound("there is no workspace %q", path)
	case workspace.Status.Phase != corev1alpha1.LogicalClusterPhaseReady || workspace.DeletionTimestamp != nil:
		return path, nil, conflict("workspace %q is %s: only one that is Ready can be exported", path, workspace.Status.Phase)
	}
	requests, err := client.New(s.LoopbackConfig())
	if err != nil {
		return path, nil, err
	}
	for what, list := range map[string]ctrlclient.ObjectList{"workspaces": &tenancyv1alpha1.WorkspaceList{}, "SyncTargets": &workloadv1alpha1.SyncTargetList{}} {
		if err := requests.Objects.List(client.In(ctx, logicalcluster.Name(workspace.Spec.Cluster)), list, ctrlclient.Limit(1)); err != nil {
			return path, nil, err
		}
		if n := lengthOf(list); n > 0 {
			return path, nil, conflict("workspace %q holds %s, which an export cannot hold: a backup of the whole server does", path, what)
		}
	}
	return path, workspace, nil
}

func lengthOf(list ctrlclient.ObjectList) int {
	switch list := list.(type) {
	case *tenancyv1alpha1.WorkspaceList:
		return len(list.Items)
	case *workloadv1alpha1.SyncTargetList:
		return len(list.Items)
	}
	return 0
}

// holder is the logical cluster at the end of a path in which a workspace is.
func (s *Server) holder(ctx context.Context, path logicalcluster.Path) (logicalcluster.Name, error) {
	name, err := s.directory.Resolve(ctx, path)
	if errors.Is(err, lcctx.ErrNotFound) {
		return "", notFound("there is no workspace %q", path)
	}
	if err != nil {
		return "", apierrors.NewServiceUnavailable(err.Error())
	}
	return name, nil
}

func conflict(format string, args ...any) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict, Message: fmt.Sprintf(format, args...),
	}}
}
