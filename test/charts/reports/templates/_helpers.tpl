{{- define "reports.selector" -}}
app.kubernetes.io/name: reports, app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "reports.labels" -}}
{{ include "reports.selector" . }}, app.kubernetes.io/part-of: reports, app.kubernetes.io/version: {{ .Values.tag | quote }}
{{- end }}
