{{- define "atoll.name" -}}
{{- $name := contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) -}}
{{- /* Names of its pods, with the hash of a revision in their label, have 63 characters. */ -}}
{{- $name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- /* What selects the pods: it cannot be changed once they are there. */ -}}
{{- define "atoll.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "atoll.labels" -}}
{{ include "atoll.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "atoll.host" -}}
{{ .Values.externalHostname | default (printf "%s.%s.svc" (include "atoll.name" .) .Release.Namespace) }}
{{- end }}

{{- define "atoll.directory" -}}
/var/lib/atoll/{{ .Values.persistence.directory }}
{{- end }}

{{- /* Nine tenths of the container's limit of memory, in bytes. The downward API knows the limit itself only. */ -}}
{{- define "atoll.goMemoryLimit" -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $number := regexFind "^[0-9.]+" . -}}
{{- mulf $number (get $units (trimPrefix $number .)) 0.9 | floor | int64 -}}
{{- end }}
