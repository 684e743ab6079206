{{/* The section hami-node of device-config.yaml: what differs from our defaults, then config.settings. */}}
{{- define "hami-node.settings" -}}
{{- $plugin := .Values.devicePlugin -}}
{{- $own := dict -}}
{{- if ne $plugin.migStrategy "none" }}{{ $_ := set $own "mig-strategy" $plugin.migStrategy }}{{ end -}}
{{- if and (ne $plugin.deviceListStrategy "auto") (ne (include "hami-node.driver" .) "nri") }}{{ $_ := set $own "device-list-strategy" $plugin.deviceListStrategy }}{{ end -}}
{{- with $plugin.nvidiaHookPath }}{{ $_ := set $own "nvidia-cdi-hook-path" . }}{{ end -}}
{{- if $plugin.passDeviceSpecsEnabled }}{{ $_ := set $own "pass-device-specs" true }}{{ end -}}
{{- if $plugin.gdsEnabled }}{{ $_ := set $own "gds-enabled" true }}{{ end -}}
{{- if $plugin.mofedEnabled }}{{ $_ := set $own "mofed-enabled" true }}{{ end -}}
{{- if $plugin.gdrcopyEnabled }}{{ $_ := set $own "gdrcopy-enabled" true }}{{ end -}}
{{- if .Values.legacyMetrics }}{{ $_ := set $own "legacy-metrics" true }}{{ end -}}
{{- if ne .Values.schedulerName "hami-scheduler" }}{{ $_ := set $own "scheduler-name" .Values.schedulerName }}{{ end -}}
{{- if not .Values.scheduler.forceOverwriteDefaultScheduler }}{{ $_ := set $own "force-overwrite-default-scheduler" false }}{{ end -}}
{{- $policy := .Values.scheduler.defaultSchedulerPolicy -}}
{{- if ne $policy.nodeSchedulerPolicy "binpack" }}{{ $_ := set $own "node-scheduler-policy" $policy.nodeSchedulerPolicy }}{{ end -}}
{{- if ne $policy.gpuSchedulerPolicy "spread" }}{{ $_ := set $own "gpu-scheduler-policy" $policy.gpuSchedulerPolicy }}{{ end -}}
{{- $labels := list -}}
{{- range $key, $value := .Values.scheduler.nodeLabelSelector }}{{ $labels = append $labels (printf "%s=%v" $key $value) }}{{ end -}}
{{- with $labels }}{{ $_ := set $own "node-label-selector" . }}{{ end -}}
{{- mergeOverwrite $own (deepCopy .Values.config.settings) | toYaml -}}
{{- end -}}

{{/* device-config.yaml as these values make it, before config.deviceConfig. */}}
{{- define "hami-node.madeConfig" -}}
{{- $plugin := .Values.devicePlugin -}}
nvidia:
  resourceCountName: {{ .Values.resourceName }}
  resourceMemoryName: {{ .Values.resourceMem }}
  resourceMemoryPercentageName: {{ .Values.resourceMemPercentage }}
  resourceCoreName: {{ .Values.resourceCores }}
  resourcePriorityName: {{ .Values.resourcePriority }}
  deviceSplitCount: {{ $plugin.deviceSplitCount }}
  deviceMemoryScaling: {{ $plugin.deviceMemoryScaling }}
  deviceCoreScaling: {{ $plugin.deviceCoreScaling }}
  {{- with $plugin.preConfiguredDeviceMemory }}
  preConfiguredDeviceMemory: {{ int64 . }}
  {{- end }}
  {{- if $plugin.enableNumaTopology }}
  enableNumaTopology: true
  {{- end }}
  {{- if .Values.scheduler.overwriteEnv }}
  overwriteEnv: true
  {{- end }}
  {{- with include "hami-node.podRuntimeClass" . }}
  runtimeClassName: {{ . }}
  {{- end }}
awsneuron:
  resourceCountName: aws.amazon.com/neuron
  resourceCoreName: aws.amazon.com/neuroncore
hami-node:
  {{- include "hami-node.settings" . | nindent 2 }}
{{- end -}}

{{/* The class of users' pods. No class where no runtime adds cards (CDI specs of our own, simulated cards). */}}
{{- define "hami-node.podRuntimeClass" -}}
{{- $plugin := .Values.devicePlugin -}}
{{- if ne (.Values.podRuntimeClassName | default "") "auto" -}}
{{- .Values.podRuntimeClassName | default "" -}}
{{- else if and $plugin.enabled (eq (include "hami-node.driver" .) "runtimeClass") (not $plugin.simulatedCards) -}}
{{- $plugin.runtimeClassName -}}
{{- end -}}
{{- end -}}

{{- define "hami-node.deviceConfig" -}}
{{- $given := .Values.config.deviceConfig -}}
{{- if kindIs "string" $given -}}
{{- $given -}}
{{- else -}}
{{- $made := include "hami-node.madeConfig" . | fromYaml -}}
{{- if $made.Error }}{{ fail (printf "these values make no device-config.yaml: %s" $made.Error) }}{{ end -}}
{{- mergeOverwrite $made (deepCopy ($given | default dict)) | toYaml }}
{{ end -}}
{{- end -}}

{{/* config.json: HAMi's text as it is, or the list. */}}
{{- define "hami-node.nodeConfig" -}}
{{- $given := .Values.devicePlugin.nodeConfiguration.config -}}
{{- if kindIs "string" $given -}}
{{- $given | default "{\"nodeconfig\": []}\n" -}}
{{- else -}}
{{- dict "nodeconfig" ($given | default list) | toPrettyJson }}
{{ end -}}
{{- end -}}

{{/* The ConfigMap's data, as JSON: YAML would lose a last line's end. */}}
{{- define "hami-node.configData" -}}
{{- $data := dict "device-config.yaml" (include "hami-node.deviceConfig" .) "config.json" (include "hami-node.nodeConfig" .) -}}
{{- with .Values.devicePlugin.simulatedCards }}{{ $_ := set $data "cards.yaml" (dict "cards" . | toYaml) }}{{ end -}}
{{- toJson $data -}}
{{- end -}}

{{- define "hami-node.configName" -}}
{{- .Values.config.existingConfigMap | default (printf "%s-config" (include "hami-node.name" .)) -}}
{{- end -}}

{{/* Names of resources, as a YAML list: what the configuration in force says, in the order of its keys. */}}
{{- define "hami-node.resources" -}}
{{- $config := include "hami-node.deviceConfig" . | fromYaml -}}
{{- if $config.Error }}{{ fail (printf "config.deviceConfig is not YAML: %s" $config.Error) }}{{ end -}}
{{- $nvidia := $config.nvidia | default dict -}}
{{- $neuron := $config.awsneuron | default dict -}}
counted:
  - {{ $nvidia.resourceCountName | default .Values.resourceName }}
ignored:
  - {{ $nvidia.resourceMemoryName | default .Values.resourceMem }}
  - {{ $nvidia.resourceMemoryPercentageName | default .Values.resourceMemPercentage }}
  - {{ $nvidia.resourceCoreName | default .Values.resourceCores }}
  - {{ $nvidia.resourcePriorityName | default .Values.resourcePriority }}
neuron:
  - {{ $neuron.resourceCountName | default "aws.amazon.com/neuron" }}
  - {{ $neuron.resourceCoreName | default "aws.amazon.com/neuroncore" }}
{{- end -}}

{{/* The same as a list in CEL. */}}
{{- define "hami-node.resourcesInCel" -}}
{{- $names := include "hami-node.resources" . | fromYaml -}}
{{- $quoted := list -}}
{{- range concat $names.counted $names.ignored $names.neuron }}{{ $quoted = append $quoted (squote .) }}{{ end -}}
[{{ join ", " $quoted }}]
{{- end -}}

{{/* Annotations of a reservation, as a list in CEL: nobody but scheduler and daemon writes them. */}}
{{- define "hami-node.reservationKeys" -}}
['hami.io/vgpu-node', 'hami.io/vgpu-time', 'hami.io/vgpu-devices-to-allocate',
'hami.io/vgpu-devices-allocated', 'hami.io/vgpu-mig-allocations', 'hami.io/bind-phase',
'hami.io/bind-time', 'hami.io/aws-neuron-devices-allocated', 'AWS_NEURON_IDS',
'NEURON_RESOURCE_TYPE', 'NEURON_ALLOC_TIME', 'NEURON_ALLOCATED',
'aws.amazon.com/predicate-node', 'hami-node.io/resize-approved',
'hami-node.io/resize-state', 'hami-node.io/victims']
{{- end -}}

{{/* "true" where every container's environment is written, so every pod concerns the webhook. */}}
{{- define "hami-node.overwriteEnv" -}}
{{- $config := include "hami-node.deviceConfig" . | fromYaml -}}
{{- if or ($config.nvidia | default dict).overwriteEnv (get (get $config "hami-node" | default dict) "overwrite-env") -}}true{{- end -}}
{{- end -}}
