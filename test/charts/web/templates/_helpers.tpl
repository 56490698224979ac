{{- define "web.selector" -}}
app.kubernetes.io/name: web, app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "web.labels" -}}
{{ include "web.selector" . }}, app.kubernetes.io/part-of: web, app.kubernetes.io/version: {{ .Values.tag | quote }}
{{- end }}
