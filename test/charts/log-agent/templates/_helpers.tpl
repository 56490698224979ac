{{- define "log-agent.selector" -}}
app.kubernetes.io/name: log-agent, app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "log-agent.labels" -}}
{{ include "log-agent.selector" . }}, app.kubernetes.io/part-of: log-agent, app.kubernetes.io/version: {{ .Values.tag | quote }}
{{- end }}
