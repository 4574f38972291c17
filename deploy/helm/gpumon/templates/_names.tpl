{{/*
Names, labels, image. Values may be missing: `helm upgrade --reuse-values` keeps those of an older chart, which had no
such key. So every value is asked for with parentheses, and has its default here once more.

Names are cut at 40, which leaves room for what is appended: labels and names of services end at 63.
*/}}

{{- define "gpumon.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "gpumon.fullname" -}}
{{- $name := include "gpumon.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* Of the node's pods; never changes, since a DaemonSet's selector cannot. */}}
{{- define "gpumon.selectorLabels" -}}
app.kubernetes.io/name: {{ include "gpumon.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: node
{{- end }}

{{/* Of every object. The component is what the selector asks for, so the test pod has another. */}}
{{- define "gpumon.labels" -}}
{{- $labels := dict
  "app.kubernetes.io/name" (include "gpumon.name" .)
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/version" (.Values.image).tag
  "app.kubernetes.io/part-of" "gpumon"
  "app.kubernetes.io/managed-by" .Release.Service
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-")
-}}
{{- $_ := set $labels "app.kubernetes.io/version" ((.Values.image).tag | default .Chart.AppVersion | trunc 63 | trimSuffix "-") -}}
{{- range $key, $value := .Values.commonLabels }}{{ $_ := set $labels $key $value }}{{ end -}}
{{- toYaml $labels -}}
{{- end }}

{{- define "gpumon.serviceAccountName" -}}
{{- $account := .Values.serviceAccount | default dict -}}
{{- if $account.create -}}
{{- $account.name | default (include "gpumon.fullname" .) -}}
{{- else -}}
{{- $account.name | default "default" -}}
{{- end -}}
{{- end }}

{{- define "gpumon.image" -}}
{{- $repository := (.Values.image).repository | default "ghcr.io/gpumon/gpumon" -}}
{{- if (.Values.image).digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository ((.Values.image).tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{/* Of the pages and probes. */}}
{{- define "gpumon.scheme" -}}
{{- if (.Values.webConfig).https }}https{{ else }}http{{ end -}}
{{- end }}
