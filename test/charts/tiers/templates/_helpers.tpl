{{- define "tiers.selector" -}}
app.kubernetes.io/name: tiers, app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "tiers.labels" -}}
{{ include "tiers.selector" . }}, app.kubernetes.io/part-of: tiers, app.kubernetes.io/version: {{ .Values.tag | quote }}
{{- end }}
