{{- define "sidecars.selector" -}}
app.kubernetes.io/name: sidecars, app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "sidecars.labels" -}}
{{ include "sidecars.selector" . }}, app.kubernetes.io/part-of: sidecars, app.kubernetes.io/version: {{ .Values.tag | quote }}
{{- end }}
