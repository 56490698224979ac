{{- define "settings.selector" -}}
app.kubernetes.io/name: settings, app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "settings.labels" -}}
{{ include "settings.selector" . }}, app.kubernetes.io/part-of: settings, app.kubernetes.io/version: {{ .Values.tag | quote }}
{{- end }}
