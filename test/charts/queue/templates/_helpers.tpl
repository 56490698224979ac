{{- define "queue.selector" -}}
app.kubernetes.io/name: queue, app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "queue.labels" -}}
{{ include "queue.selector" . }}, app.kubernetes.io/part-of: queue, app.kubernetes.io/version: {{ .Values.tag | quote }}
{{- end }}
