{{- define "api-with-migrations.selector" -}}
app.kubernetes.io/name: api-with-migrations, app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "api-with-migrations.labels" -}}
{{ include "api-with-migrations.selector" . }}, app.kubernetes.io/part-of: api-with-migrations, app.kubernetes.io/version: {{ .Values.tag | quote }}
{{- end }}
