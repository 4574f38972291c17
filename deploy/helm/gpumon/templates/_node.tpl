{{/*
What runs on a node: which profile, with which configuration, rights, devices and folders.
*/}}

{{/* "true" or "", for `if`. */}}
{{- define "gpumon.full" -}}
{{- if eq (.Values.profile | default "metrics") "full" }}true{{ end -}}
{{- end }}

{{/* Whether pods are watched at the API server. */}}
{{- define "gpumon.api" -}}
{{- if and (include "gpumon.full" .) (.Values.kubernetes).api }}true{{ end -}}
{{- end }}

{{/* The ports on which traces are taken, as JSON; the application's default is both, and null is none. */}}
{{- define "gpumon.otlpPorts" -}}
{{- $otlp := (.Values.config).otlp | default dict -}}
{{- $ports := list -}}
{{- if ne (toString $otlp.enabled) "false" -}}
{{- range $key, $port := dict "grpc" 4317 "http" 4318 -}}
{{- if or (not (hasKey $otlp $key)) (get $otlp $key) -}}
{{- $ports = append $ports (dict "name" (printf "otlp-%s" $key) "port" $port) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $ports -}}
{{- end }}

{{/* The ports that are asked for metrics pages of servers, as JSON for a NetworkPolicy; none where nobody is looked for. */}}
{{- define "gpumon.serverPorts" -}}
{{- $servers := (.Values.config).servers | default dict -}}
{{- $ports := list -}}
{{- if and (include "gpumon.full" .) (ne (toString $servers.discover) "false") -}}
{{- range $range := ternary $servers.ports (list "8000-8010" "8080-8089" "30000-30010" "3000" "80" "9000") (hasKey $servers "ports") -}}
{{- $ends := splitList "-" (toString $range) -}}
{{- $port := dict "protocol" "TCP" "port" (first $ends | int) -}}
{{- if gt (len $ends) 1 }}{{ $_ := set $port "endPort" (last $ends | int) }}{{ end -}}
{{- $ports = append $ports $port -}}
{{- end -}}
{{- end -}}
{{- toJson $ports -}}
{{- end }}

{{/* Linux whatever else is asked for. */}}
{{- define "gpumon.nodeSelector" -}}
{{- $labels := dict "kubernetes.io/os" "linux" -}}
{{- range $key, $value := .Values.nodeSelector }}{{ $_ := set $labels $key $value }}{{ end -}}
{{- toYaml $labels -}}
{{- end }}

{{/*
gpumon.yaml: what follows from the profile and the mounts, and over it the user's. Key by key and not by `merge`, for
which false and null are no values.
*/}}
{{- define "gpumon.config" -}}
{{- $config := dict "host" (dict "kernel_log" nil) -}}
{{- if include "gpumon.full" . -}}
{{- $_ := set $config.host "cgroupfs" "/host/cgroup" -}}
{{- $pods := .Values.kubernetes | default dict -}}
{{- $_ := set $config "kubernetes" (dict
  "pod_resources" (ternary "/var/lib/kubelet/pod-resources/kubelet.sock" nil (not (empty $pods.podResources)))
  "log_folder" (ternary "/var/log" nil (not (empty $pods.logFolder)))
  "api" ($pods.api | default false)
  "labels" ($pods.labels | default list)
) -}}
{{- else -}}
{{- $_ := set $config "numa" (dict "enabled" false) -}}
{{- end -}}
{{- if eq ((.Values.state).type | default "emptyDir") "none" -}}
{{- $_ := set $config "state" (dict "folder" nil) -}}
{{- end -}}
{{- if (.Values.webConfig).existingSecret -}}
{{- $_ := set $config "http" (dict "web_config" "/etc/gpumon-web/web-config.yml") -}}
{{- end -}}
{{- range $section, $keys := .Values.config -}}
{{- $known := get $config $section | default dict -}}
{{- range $key, $value := $keys }}{{ $_ := set $known $key $value }}{{ end -}}
{{- $_ := set $config $section $known -}}
{{- end -}}
{{- toYaml $config -}}
{{- end }}

{{- define "gpumon.podSecurityContext" -}}
{{- if include "gpumon.full" . -}}
runAsUser: 0
runAsGroup: 0
{{- else -}}
runAsNonRoot: true
runAsUser: 65534
runAsGroup: 65534
fsGroup: 65534
{{- end }}
seccompProfile:
  type: {{ (.Values.seccompProfile).type | default "RuntimeDefault" }}
  {{- with (.Values.seccompProfile).localhostProfile }}
  localhostProfile: {{ . | quote }}
  {{- end }}
{{- with .Values.seLinuxOptions }}
seLinuxOptions:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if and (.Values.appArmorProfile).type (include "gpumon.hasAppArmorField" .) }}
appArmorProfile:
  type: {{ .Values.appArmorProfile.type }}
  {{- with .Values.appArmorProfile.localhostProfile }}
  localhostProfile: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The field came with Kubernetes 1.30; before, an annotation said it. */}}
{{- define "gpumon.hasAppArmorField" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}true{{ end -}}
{{- end }}

{{- define "gpumon.appArmorAnnotation" -}}
{{- $profile := .Values.appArmorProfile | default dict -}}
{{- if and $profile.type (not (include "gpumon.hasAppArmorField" .)) -}}
{{- $local := printf "localhost/%s" ($profile.localhostProfile | default "") -}}
{{- $value := get (dict "RuntimeDefault" "runtime/default" "Unconfined" "unconfined" "Localhost" $local) $profile.type -}}
container.apparmor.security.beta.kubernetes.io/gpumon: {{ $value | quote }}
{{- end -}}
{{- end }}

{{/* Those that profile full adds, as JSON: both, unless the values say which. */}}
{{- define "gpumon.capabilities" -}}
{{- if kindIs "slice" .Values.capabilities -}}
{{- toJson .Values.capabilities -}}
{{- else -}}
["SYS_PTRACE", "DAC_READ_SEARCH"]
{{- end -}}
{{- end }}

{{- define "gpumon.containerSecurityContext" -}}
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  {{- $added := include "gpumon.capabilities" . | fromJsonArray }}
  {{- if and (include "gpumon.full" .) $added }}
  # SYS_PTRACE: /proc/<pid>/maps and numa_maps, move_pages(2), links in fd and ns, of other users.
  # DAC_READ_SEARCH: listing /proc/<pid>/fd of other users: who sent a trace, where servers listen.
  add: [{{ join ", " $added }}]
  {{- end }}
{{- end }}

{{/*
Not NVIDIA_MIG_MONITOR_DEVICES: the container toolkit refuses to start a container with it that has no SYS_ADMIN.
*/}}
{{- define "gpumon.env" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: NVIDIA_VISIBLE_DEVICES
  {{- $access := .Values.gpuAccess | default "envvar" }}
  {{- if eq $access "cdi" }}
  value: {{ .Values.cdiDevice | default "nvidia.com/gpu=all" | quote }}
  {{- else if eq $access "volumeMounts" }}
  value: /var/run/nvidia-container-devices
  {{- else }}
  value: all
  {{- end }}
- name: NVIDIA_DRIVER_CAPABILITIES
  value: utility
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "gpumon.volumeMounts" -}}
- name: config
  mountPath: /etc/gpumon
  readOnly: true
{{- if (.Values.webConfig).existingSecret }}
- name: web-config
  mountPath: /etc/gpumon-web
  readOnly: true
{{- end }}
{{- if ne ((.Values.state).type | default "emptyDir") "none" }}
- name: state
  mountPath: /var/lib/gpumon
{{- end }}
{{- if eq (.Values.gpuAccess | default "envvar") "volumeMounts" }}
- name: gpus
  mountPath: /var/run/nvidia-container-devices/all
  readOnly: true
{{- end }}
{{- if include "gpumon.full" . }}
# /proc and /sys are not mounted: with hostPID the container's own are the host's.
- name: cgroup
  mountPath: /host/cgroup
  readOnly: true
{{- if (.Values.kubernetes).podResources }}
# The folder and not the socket: a kubelet that starts anew makes another socket.
- name: pod-resources
  mountPath: /var/lib/kubelet/pod-resources
  readOnly: true
{{- end }}
{{- if (.Values.kubernetes).logFolder }}
- name: pod-logs
  mountPath: /var/log/pods
  readOnly: true
- name: container-logs
  mountPath: /var/log/containers
  readOnly: true
{{- end }}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "gpumon.volumes" -}}
- name: config
  configMap:
    name: {{ include "gpumon.fullname" . | quote }}
{{- with (.Values.webConfig).existingSecret }}
- name: web-config
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0440
{{- end }}
{{- $state := .Values.state | default dict }}
{{- if eq ($state.type | default "emptyDir") "emptyDir" }}
- name: state
  emptyDir:
    sizeLimit: {{ $state.sizeLimit | default "1Gi" | quote }}
{{- else if eq $state.type "hostPath" }}
- name: state
  hostPath:
    path: {{ $state.hostPath | default "/var/lib/gpumon" | quote }}
    type: DirectoryOrCreate
{{- end }}
{{- if eq (.Values.gpuAccess | default "envvar") "volumeMounts" }}
- name: gpus
  hostPath:
    path: /dev/null
{{- end }}
{{- if include "gpumon.full" . }}
- name: cgroup
  hostPath:
    path: /sys/fs/cgroup
    type: Directory
{{- with (.Values.kubernetes).podResources }}
- name: pod-resources
  hostPath:
    path: {{ . | quote }}
    type: Directory
{{- end }}
{{- if (.Values.kubernetes).logFolder }}
- name: pod-logs
  hostPath:
    path: /var/log/pods
    type: Directory
- name: container-logs
  hostPath:
    path: /var/log/containers
    type: Directory
{{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "gpumon.resources" -}}
{{- if .Values.resources -}}
{{- toYaml .Values.resources -}}
{{- else if include "gpumon.full" . -}}
requests: {cpu: 100m, memory: 192Mi}
limits: {memory: 512Mi}
{{- else -}}
requests: {cpu: 50m, memory: 128Mi}
limits: {memory: 384Mi}
{{- end -}}
{{- end }}
