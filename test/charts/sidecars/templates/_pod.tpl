{{- define "sidecars.pod" -}}
shareProcessNamespace: true
runtimeClassName: sandboxed
initContainers:
- name: fetch
  image: registry.example/fetch:1
  args: [--into=/work]
  volumeMounts: [{name: work, mountPath: /work}]
# It begins before the others and ends after them.
- name: proxy
  image: registry.example/proxy:{{ .Values.tag }}
  restartPolicy: Always
  ports: [{name: proxy, containerPort: 15001}]
  startupProbe: {tcpSocket: {port: proxy}}
  volumeMounts: [{name: proxy, mountPath: /etc/proxy}]
containers:
- name: app
  image: registry.example/app:{{ .Values.tag }}
  ports: [{name: http, containerPort: 8080}]
  env:
  - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  - {name: UPSTREAMS, value: {{ .Values.upstreams | join "," | quote }}}
  lifecycle: {postStart: {exec: {command: ["true"]}}, preStop: {httpGet: {path: /drain, port: http}}}
  volumeMounts: [{name: work, mountPath: /work, readOnly: true}, {name: cache, mountPath: /cache}]
- name: logs
  image: registry.example/logs:1
  args: [--follow=/cache/log]
  volumeMounts: [{name: cache, mountPath: /cache}]
volumes:
- {name: work, emptyDir: {medium: Memory, sizeLimit: 16Mi}}
- {name: cache, emptyDir: {}}
- name: proxy
  projected:
    defaultMode: 0440
    sources:
    - {configMap: {name: {{ .Release.Name }}-proxy}}
    - {downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
    - {secret: {name: {{ .Release.Name }}-proxy, optional: true}}
{{- end }}
