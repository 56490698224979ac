package server

import (
	"github.com/kcp-dev/logicalcluster/v3"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
	lcctx "atoll.dev/atoll/internal/logicalcluster"
	"atoll.dev/atoll/server/admission"
	"atoll.dev/atoll/server/storage"
)

// limit is the one that an annotation sets on a logical cluster, and otherwise that of the server's flag. Admission lets no other
// values pass; one that came past it, by an import, sets nothing.
func (s *Server) limit(cluster logicalcluster.Name, annotation string, otherwise int64) int64 {
	value := s.directory.Annotation(cluster, annotation)
	if value == "" {
		return otherwise
	}
	own, err := admission.ParseLimit(annotation, value)
	if err != nil {
		return otherwise
	}
	return own
}

// called is how people call a logical cluster: by the path of its workspace, and by its name if it has none or that is not known yet.
func (s *Server) called(cluster logicalcluster.Name) string {
	if path := s.directory.Annotation(cluster, lcctx.PathAnnotation); path != "" {
		return path
	}
	return cluster.String()
}

func (s *Server) storageLimits(cluster logicalcluster.Name) storage.Limits {
	return storage.Limits{
		Objects: s.limit(cluster, corev1alpha1.LimitObjectsAnnotation, s.options.MaxObjectsPerWorkspace),
		Bytes:   s.limit(cluster, corev1alpha1.LimitBytesAnnotation, s.options.MaxBytesPerWorkspace),
	}
}

func (s *Server) watchesLimit(cluster logicalcluster.Name) int {
	return int(s.limit(cluster, corev1alpha1.LimitWatchesAnnotation, int64(s.options.MaxWatchesPerWorkspace)))
}

// definitionsLimit is how many CustomResourceDefinitions a logical cluster may have, and how many bytes of memory these may take.
func (s *Server) definitionsLimit(cluster logicalcluster.Name) (number int, bytes int64) {
	return int(s.limit(cluster, corev1alpha1.LimitDefinitionsAnnotation, int64(s.options.MaxDefinitionsPerWorkspace))),
		s.limit(cluster, corev1alpha1.LimitDefinitionBytesAnnotation, s.options.MaxDefinitionBytesPerWorkspace)
}
