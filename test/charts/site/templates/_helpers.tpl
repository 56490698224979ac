{{- define "site.selector" -}}
app.kubernetes.io/name: site, app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "site.labels" -}}
{{ include "site.selector" . }}, app.kubernetes.io/part-of: site, app.kubernetes.io/version: {{ .Values.tag | quote }}
{{- end }}
