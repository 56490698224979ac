{{- define "operator.selector" -}}
app.kubernetes.io/name: operator, app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "operator.labels" -}}
{{ include "operator.selector" . }}, app.kubernetes.io/part-of: operator, app.kubernetes.io/version: {{ .Values.tag | quote }}
{{- end }}
