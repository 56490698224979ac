package v1alpha1

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	corev1alpha1 "atoll.dev/atoll/apis/core/v1alpha1"
)

// InitializerOf is the name of the initializer of a type that a logical cluster holds.
func InitializerOf(holder, name string) corev1alpha1.LogicalClusterInitializer {
	return corev1alpha1.LogicalClusterInitializer(holder + ":" + name)
}

// TypeOfInitializer returns the logical cluster that holds the type of an initializer, and the type's name; false if it names none.
func TypeOfInitializer(initializer corev1alpha1.LogicalClusterInitializer) (holder, name string, ok bool) {
	i := strings.LastIndexByte(string(initializer), ':')
	if i <= 0 || i == len(initializer)-1 {
		return "", "", false
	}
	return string(initializer[:i]), string(initializer[i+1:]), true
}

// InitializerLabel is the label of LogicalClusters that wait for an initializer: a hash, of which the key has as much as fits.
func InitializerLabel(initializer corev1alpha1.LogicalClusterInitializer) (key, value string) {
	hash := fmt.Sprintf("%x", sha256.Sum224([]byte(initializer)))
	return InitializerLabelPrefix + hash[:validation.LabelValueMaxLength-len(InitializerLabelPrefix)], hash
}
