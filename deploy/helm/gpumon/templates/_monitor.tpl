{{/*
One endpoint of a PodMonitor or ServiceMonitor. What Prometheus would add about gpumon's own pod (namespace, pod,
container) is dropped: on series of a GPU it would stand for whose GPU it is, and it changes with every restart.
*/}}
{{- define "gpumon.endpoint" -}}
{{- $monitor := .Values.monitor | default dict -}}
{{- $interval := $monitor.interval | default "15s" -}}
{{- $timeout := $monitor.scrapeTimeout | default "10s" -}}
{{- if ge (trimSuffix "s" $timeout | int) (trimSuffix "s" $interval | int) -}}
{{- fail (printf "monitor.scrapeTimeout = %s: expected less than monitor.interval = %s" $timeout $interval) -}}
{{- end -}}
port: http
path: /metrics
scheme: {{ include "gpumon.scheme" . }}
interval: {{ $interval }}
scrapeTimeout: {{ $timeout }}
# Series of processes carry the pod that they are of.
honorLabels: true
{{- range $key := list "tlsConfig" "basicAuth" "authorization" }}
{{- with get $monitor $key }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
relabelings:
  - action: replace
    targetLabel: job
    replacement: gpumon
  - action: replace
    sourceLabels: [__meta_kubernetes_pod_node_name]
    targetLabel: node
  # An address would be another one after each restart.
  - action: replace
    sourceLabels: [__meta_kubernetes_pod_node_name]
    targetLabel: instance
  {{- with $monitor.cluster }}
  - action: replace
    targetLabel: cluster
    replacement: {{ . | quote }}
  {{- end }}
  - action: labeldrop
    regex: namespace|pod|container|service|endpoint
  {{- with $monitor.relabelings }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $monitor.metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
