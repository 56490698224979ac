package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/api/v1/resource"
	"k8s.io/kubernetes/pkg/fieldpath"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
)

// hostPath is where programs are looked for: nothing of our own environment reaches a command.
const hostPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment is what a command in a container has as its environment: what its pod says, and what every process needs.
func (k *kubelet) environment(ctx context.Context, pod *corev1.Pod, container *corev1.Container) ([]string, error) {
	env := containerEnv{pod: pod, container: container, data: func(kind, name string) (map[string]string, error) { return k.data(ctx, pod.Namespace, kind, name) }}
	if asksForResources(container) {
		node, err := k.client.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read node %q: %w", pod.Spec.NodeName, err)
		}
		env.allocatable = node.Status.Allocatable
	}
	values, err := env.values()
	return append([]string{"PATH=" + hostPath, "HOME=" + k.dir, "HOSTNAME=" + pod.Name}, values...), err
}

// data reads a ConfigMap or a Secret; nil if there is none.
func (k *kubelet) data(ctx context.Context, namespace, kind, name string) (map[string]string, error) {
	data := map[string]string{}
	var err error
	if kind == "ConfigMap" {
		var read *corev1.ConfigMap
		if read, err = k.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{}); err == nil {
			data = read.Data
		}
	} else {
		var read *corev1.Secret
		if read, err = k.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{}); err == nil {
			for key, value := range read.Data {
				data[key] = string(value)
			}
		}
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if data == nil {
		data = map[string]string{} // it is there, and empty
	}
	return data, err
}

func asksForResources(container *corev1.Container) bool {
	for _, v := range container.Env {
		if v.ValueFrom != nil && v.ValueFrom.ResourceFieldRef != nil {
			return true
		}
	}
	return false
}

// containerEnv is what the variables of a container are made of, as a kubelet makes them.
type containerEnv struct {
	pod         *corev1.Pod
	container   *corev1.Container
	allocatable corev1.ResourceList                                // of the node
	data        func(kind, name string) (map[string]string, error) // of a ConfigMap or Secret, nil if there is none
}

// values returns NAME=VALUE of each variable, those of envFrom first: of two of one name the later counts.
func (e *containerEnv) values() ([]string, error) {
	var all []string
	known := map[string]string{}
	add := func(name, value string) {
		known[name] = value
		all = append(all, name+"="+value)
	}
	for _, from := range e.container.EnvFrom {
		kind, name, optional := "ConfigMap", "", new(bool)
		switch {
		case from.ConfigMapRef != nil:
			name, optional = from.ConfigMapRef.Name, from.ConfigMapRef.Optional
		case from.SecretRef != nil:
			kind, name, optional = "Secret", from.SecretRef.Name, from.SecretRef.Optional
		}
		data, err := e.data(kind, name)
		if err != nil {
			return nil, err
		}
		if data == nil && (optional == nil || !*optional) {
			return nil, fmt.Errorf("%s %q is not there", kind, name)
		}
		for _, key := range slices.Sorted(maps.Keys(data)) {
			add(from.Prefix+key, data[key])
		}
	}
	expand := expansion.MappingFuncFor(known)
	for _, v := range e.container.Env {
		value, is := expansion.Expand(v.Value, expand), true
		if v.Value == "" && v.ValueFrom != nil {
			var err error
			if value, is, err = e.from(v.ValueFrom); err != nil {
				return nil, fmt.Errorf("variable %s: %w", v.Name, err)
			}
		}
		if is {
			add(v.Name, value)
		}
	}
	return all, nil
}

// from returns a value that is written elsewhere; none if it is optional and is not.
func (e *containerEnv) from(source *corev1.EnvVarSource) (value string, is bool, err error) {
	switch {
	case source.FieldRef != nil:
		value, err = e.field(source.FieldRef.FieldPath)
		return value, err == nil, err
	case source.ResourceFieldRef != nil:
		of := source.ResourceFieldRef.ContainerName
		if of == "" {
			of = e.container.Name
		}
		value, err = resource.ExtractResourceValueByContainerNameAndNodeAllocatable(source.ResourceFieldRef, e.pod, of, e.allocatable)
		return value, err == nil, err
	case source.ConfigMapKeyRef != nil:
		return e.key("ConfigMap", source.ConfigMapKeyRef.Name, source.ConfigMapKeyRef.Key, source.ConfigMapKeyRef.Optional)
	case source.SecretKeyRef != nil:
		return e.key("Secret", source.SecretKeyRef.Name, source.SecretKeyRef.Key, source.SecretKeyRef.Optional)
	}
	return "", false, fmt.Errorf("what it is made from is not known here: %v", source)
}

// field is a field of the pod that the downward API has.
func (e *containerEnv) field(path string) (string, error) {
	status := &e.pod.Status
	switch path {
	case "spec.nodeName":
		return e.pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return e.pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return status.HostIP, nil
	case "status.podIP":
		return status.PodIP, nil
	case "status.hostIPs":
		var ips []string
		for _, ip := range status.HostIPs {
			ips = append(ips, ip.IP)
		}
		return strings.Join(ips, ","), nil
	case "status.podIPs":
		var ips []string
		for _, ip := range status.PodIPs {
			ips = append(ips, ip.IP)
		}
		return strings.Join(ips, ","), nil
	}
	return fieldpath.ExtractFieldPathAsString(e.pod, path)
}

func (e *containerEnv) key(kind, name, key string, optional *bool) (value string, is bool, err error) {
	data, err := e.data(kind, name)
	if err != nil {
		return "", false, err
	}
	value, is = data[key]
	if !is && (optional == nil || !*optional) {
		return "", false, fmt.Errorf("%s %q has no key %q", kind, name, key)
	}
	return value, is, nil
}
