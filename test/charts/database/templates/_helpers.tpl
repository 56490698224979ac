{{- define "database.selector" -}}
app.kubernetes.io/name: database, app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "database.labels" -}}
{{ include "database.selector" . }}, app.kubernetes.io/part-of: database, app.kubernetes.io/version: {{ .Values.tag | quote }}
{{- end }}
