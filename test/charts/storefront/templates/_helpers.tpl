{{- define "storefront.selector" -}}
app.kubernetes.io/name: storefront, app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "storefront.labels" -}}
{{ include "storefront.selector" . }}, app.kubernetes.io/part-of: storefront, app.kubernetes.io/version: {{ .Values.tag | quote }}
{{- end }}
