{{- define "batch.selector" -}}
app.kubernetes.io/name: batch, app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "batch.labels" -}}
{{ include "batch.selector" . }}, app.kubernetes.io/part-of: batch, app.kubernetes.io/version: {{ .Values.tag | quote }}
{{- end }}
