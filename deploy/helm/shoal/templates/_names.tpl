{{- define "shoal.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "shoal.peers" -}}
{{ include "shoal.name" . }}-peers
{{- end }}

{{- define "shoal.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "shoal.labels" -}}
{{ include "shoal.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "shoal.scheme" -}}
{{ if .Values.tls.enabled }}https{{ else }}http{{ end }}
{{- end }}

{{- define "shoal.join" -}}
{{- $names := list -}}
{{- range $number := until (int .Values.founders) -}}
{{- $names = append $names (printf "%s-%d.%s:%d" (include "shoal.name" $) $number (include "shoal.peers" $) (int $.Values.port)) -}}
{{- end -}}
{{ join "," $names }}
{{- end }}

{{- define "shoal.check" -}}
{{- if and (not .Values.insecure) (not (and .Values.tls.enabled .Values.tokens.enabled)) }}
{{- fail "a node that other machines reach needs tls.enabled and tokens.enabled, or insecure: true for a trial" }}
{{- end }}
{{- if lt (int .Values.replicas) (int .Values.founders) }}
{{- fail "replicas is below founders: founders is the number of pods at the first start, and never changes. Drain members before you lower replicas, and leave at least the founders, or see docs/operate/kubernetes.md" }}
{{- end }}
{{- if gt (int .Values.replicas) (int .Values.replicasMax) }}
{{- fail "replicas is above replicasMax, so the last pods would have no certificate: raise replicasMax, too" }}
{{- end }}
{{- end }}
