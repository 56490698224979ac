{{- define "worker.selector" -}}
app.kubernetes.io/name: worker, app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "worker.labels" -}}
{{ include "worker.selector" . }}, app.kubernetes.io/part-of: worker, app.kubernetes.io/version: {{ .Values.tag | quote }}
{{- end }}
