{{- define "monitor.selector" -}}
app.kubernetes.io/name: monitor, app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "monitor.labels" -}}
{{ include "monitor.selector" . }}, app.kubernetes.io/part-of: monitor, app.kubernetes.io/version: {{ .Values.tag | quote }}
{{- end }}
