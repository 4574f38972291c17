{{/*
Names, labels, image. Values may be missing: `helm upgrade --reuse-values` keeps those of an older chart, which had no
such key. So every value is asked for with parentheses, and has its default here once more.

Names are cut at 40, which leaves room for what is appended: labels and names of services end at 63. Whatever is
somebody's name is quoted where it is put: a release may be called 1 or true.
*/}}

{{- define "gpumon.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "gpumon.fullname" -}}
{{- $name := include "gpumon.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* The same, of a service: Kubernetes wants a letter first. */}}
{{- define "gpumon.serviceName" -}}
{{- $name := include "gpumon.fullname" . -}}
{{- if not (regexMatch "^[a-z]" $name) -}}
{{- fail (printf "%s: expected a letter first, for the name of a service; fullnameOverride sets another name" $name) -}}
{{- end -}}
{{- $name -}}
{{- end }}

{{/* Of the node's pods; never changes, since a DaemonSet's selector cannot. */}}
{{- define "gpumon.selectorLabels" -}}
app.kubernetes.io/name: {{ include "gpumon.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: node
{{- end }}

{{/*
Of every object: (list . (dict ...) ...), the context and what else is wanted, the later over the former. The component
of the node's pods is in the selector, so the test pod has another.
*/}}
{{- define "gpumon.labels" -}}
{{- $context := first . -}}
{{- $labels := dict
  "app.kubernetes.io/name" (include "gpumon.name" $context)
  "app.kubernetes.io/instance" $context.Release.Name
  "app.kubernetes.io/version" (($context.Values.image).tag | default $context.Chart.AppVersion | trunc 63)
  "app.kubernetes.io/part-of" "gpumon"
  "app.kubernetes.io/managed-by" $context.Release.Service
  "helm.sh/chart" (printf "%s-%s" $context.Chart.Name $context.Chart.Version | replace "+" "_" | trunc 63)
-}}
{{- range $more := prepend (rest .) ($context.Values.commonLabels | default dict) -}}
{{- range $key, $value := $more }}{{ $_ := set $labels $key $value }}{{ end -}}
{{- end -}}
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
