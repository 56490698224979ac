{{- define "spread.selector" -}}
app.kubernetes.io/name: spread, app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "spread.labels" -}}
{{ include "spread.selector" . }}, app.kubernetes.io/part-of: spread, app.kubernetes.io/version: {{ .Values.tag | quote }}
{{- end }}
