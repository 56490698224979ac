{{- define "certificates.selector" -}}
app.kubernetes.io/name: certificates, app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "certificates.labels" -}}
{{ include "certificates.selector" . }}, app.kubernetes.io/part-of: certificates, app.kubernetes.io/version: {{ .Values.tag | quote }}
{{- end }}
