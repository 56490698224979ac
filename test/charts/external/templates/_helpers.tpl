{{- define "external.selector" -}}
app.kubernetes.io/name: external, app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "external.labels" -}}
{{ include "external.selector" . }}, app.kubernetes.io/part-of: external, app.kubernetes.io/version: {{ .Values.tag | quote }}
{{- end }}
