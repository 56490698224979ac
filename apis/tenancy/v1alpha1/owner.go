package v1alpha1

import (
	"encoding/json"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OwnerValue is what OwnerAnnotation says of a user: a UserInfo of authentication.k8s.io/v1, of which it has the name alone. kcp
// notes UID, groups and extra as well until a workspace is ready, and then leaves them out. What somebody was when he made a
// workspace is to give him nothing later, so here they are never there.
func OwnerValue(name string) string {
	// A struct of strings, so there is nothing that could not be marshalled.
	value, err := json.Marshal(authenticationv1.UserInfo{Username: name})
	if err != nil {
		return ""
	}
	return string(value)
}

// OwnerOf is the user name in the OwnerAnnotation of an object; "" if it has none, or one that is no UserInfo.
func OwnerOf(obj metav1.Object) string {
	value, ok := obj.GetAnnotations()[OwnerAnnotation]
	if !ok {
		return ""
	}
	var owner authenticationv1.UserInfo
	if err := json.Unmarshal([]byte(value), &owner); err != nil {
		return ""
	}
	return owner.Username
}
