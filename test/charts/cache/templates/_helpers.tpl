{{- define "cache.selector" -}}
app.kubernetes.io/name: cache, app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "cache.labels" -}}
{{ include "cache.selector" . }}, app.kubernetes.io/part-of: cache, app.kubernetes.io/version: {{ .Values.tag | quote }}
{{- end }}
