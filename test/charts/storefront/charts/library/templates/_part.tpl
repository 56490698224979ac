{{/* A Deployment and its Service. */}}
{{- define "library.part" -}}
{{- $name := printf "%s-%s" .Release.Name .Chart.Name }}
{{- $selector := printf "app.kubernetes.io/name: %s, app.kubernetes.io/instance: %s" .Chart.Name .Release.Name }}
{{- $labels := printf "%s, app.kubernetes.io/part-of: storefront, region: %s" $selector .Values.global.region }}
apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ $name }}, labels: { {{- $labels }}}}
spec:
  replicas: {{ .Values.replicas }}
  selector: {matchLabels: { {{- $selector }}}}
  template:
    metadata: {labels: { {{- $selector }}}}
    spec:
      containers:
      - name: main
        image: registry.example/{{ .Chart.Name }}:{{ .Values.tag }}
        ports: [{name: http, containerPort: 8080}]
        env: [{name: REGION, value: {{ .Values.global.region }}}]
        {{- with .Values.resources }}
        resources: {{ toJson . }}
        {{- end }}
---
apiVersion: v1
kind: Service
metadata: {name: {{ $name }}, labels: { {{- $labels }}}}
spec: {selector: { {{- $selector }}}, ports: [{name: http, port: 80, targetPort: http}]}
{{- end }}
