{{/*
What the schema cannot say, or only in words that help nobody: values that Helm and the API server would take, and with
which gpumon would not run, or not as these values say. Included once, by the DaemonSet.
*/}}
{{- define "gpumon.check" -}}
{{- $config := .Values.config | default dict -}}
{{- range $path, $instead := dict
  "kubernetes.pod_resources" "kubernetes.podResources, which mounts it, too"
  "kubernetes.log_folder" "kubernetes.logFolder, which mounts it, too"
  "kubernetes.api" "kubernetes.api, which gives the token and the rights, too"
  "kubernetes.labels" "kubernetes.labels"
  "http.web_config" "webConfig.existingSecret, which mounts it, too"
  "state.folder" "state, which mounts it, too; state.type none leaves the folder to config"
-}}
{{- $parts := splitList "." $path -}}
{{- $known := hasKey (get $config (first $parts) | default dict) (last $parts) -}}
{{- $isFree := and (eq $path "state.folder") (eq (($.Values.state).type | default "") "none") -}}
{{- if and $known (not $isFree) -}}
{{- fail (printf "config.%s: expected %s" $path $instead) -}}
{{- end -}}
{{- end -}}

{{- if and (.Values.otlpService).enabled (not (include "gpumon.otlpPorts" . | fromJsonArray)) -}}
{{- fail "otlpService.enabled: config.otlp takes no traces: expected grpc or http of it" -}}
{{- end -}}

{{- range .Values.extraArgs -}}
{{- if regexMatch "^--(config|listen|otlp-grpc|otlp-http|cgroupfs)(=|$)" . -}}
{{- fail (printf "extraArgs: %s is the chart's own: expected config instead" .) -}}
{{- end -}}
{{- end -}}
{{- $taken := list "NODE_NAME" "NVIDIA_VISIBLE_DEVICES" "NVIDIA_DRIVER_CAPABILITIES" -}}
{{- range .Values.extraEnv -}}
{{- if has .name $taken -}}
{{- fail (printf "extraEnv: %s is the chart's own (gpuAccess)" .name) -}}
{{- end -}}
{{- if regexMatch "^GPUMON_(HTTP__(LISTEN|WEB_CONFIG)|OTLP__(ENABLED|GRPC|HTTP)|KUBERNETES__(POD_RESOURCES|LOG_FOLDER|API|LABELS)|STATE__FOLDER)$" (.name | default "") -}}
{{- fail (printf "extraEnv: %s is the chart's own: expected config or a value of the chart instead" .name) -}}
{{- end -}}
{{- end -}}
{{- if hasKey (.Values.podAnnotations | default dict) "checksum/config" -}}
{{- fail "podAnnotations: checksum/config is the chart's own" -}}
{{- end -}}

{{- range $key, $path := dict "state.hostPath" (.Values.state).hostPath "kubernetes.podResources" (.Values.kubernetes).podResources -}}
{{- if and $path (or (eq (clean $path) "/") (has ".." (splitList "/" $path))) -}}
{{- fail (printf "%s = %s: expected a folder of its own, without .." $key $path) -}}
{{- end -}}
{{- end -}}

{{- $update := .Values.updateStrategy | default dict -}}
{{- $rolling := $update.rollingUpdate | default dict -}}
{{- if and $rolling (ne ($update.type | default "RollingUpdate") "OnDelete") -}}
{{- $none := list "0" "0%" -}}
{{- $surges := not (has (toString ($rolling.maxSurge | default 0)) $none) -}}
{{- $stops := or (not (hasKey $rolling "maxUnavailable")) (not (has (toString $rolling.maxUnavailable) $none)) -}}
{{- if and $surges $stops -}}
{{- fail "updateStrategy.rollingUpdate: maxSurge needs maxUnavailable 0" -}}
{{- end -}}
{{- if not (or $surges $stops) -}}
{{- fail "updateStrategy.rollingUpdate: maxUnavailable and maxSurge are both 0: no pod could be replaced" -}}
{{- end -}}
{{- end -}}
{{- end }}
