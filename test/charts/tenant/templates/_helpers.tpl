{{- define "tenant.selector" -}}
app.kubernetes.io/name: tenant, app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "tenant.labels" -}}
{{ include "tenant.selector" . }}, app.kubernetes.io/part-of: tenant, app.kubernetes.io/version: {{ .Values.tag | quote }}
{{- end }}
