{{/*
gpu-labels or own-label. auto: what our DaemonSet was installed with; at the first install own-label where
another plugin for these cards is found. `helm template` can't look and takes gpu-labels.
*/}}
{{- define "hami-node.nodeSelection" -}}
{{- if ne .Values.devicePlugin.nodeSelection "auto" -}}
{{- .Values.devicePlugin.nodeSelection -}}
{{- else -}}
{{- $ours := lookup "apps/v1" "DaemonSet" .Release.Namespace (include "hami-node.name" .) | default dict -}}
{{- $before := dig "metadata" "annotations" "hami-node.io/node-selection" "" $ours -}}
{{- if $before -}}
{{- $before -}}
{{- else if include "hami-node.otherPlugins" . | fromYamlArray -}}
own-label
{{- else -}}
gpu-labels
{{- end -}}
{{- end -}}
{{- end -}}

{{/* DaemonSets of other device plugins for NVIDIA's cards, as a YAML list of namespace/name. */}}
{{- define "hami-node.otherPlugins" -}}
{{- $found := list -}}
{{- if .Values.inspectCluster -}}
{{- range (lookup "apps/v1" "DaemonSet" "" "").items -}}
{{- $daemonSet := . -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $is := eq (get $labels "app.kubernetes.io/component") "hami-device-plugin" -}}
{{- if contains "nvidia-device-plugin" .metadata.name }}{{ $is = true }}{{ end -}}
{{- range .spec.template.spec.containers -}}
{{- if regexMatch "(^|/)(hami|k8s-device-plugin)(:|@|$)" .image }}{{ $is = true }}{{ end -}}
{{- end -}}
{{- if $is }}{{ $found = append $found (printf "%s/%s" $daemonSet.metadata.namespace $daemonSet.metadata.name) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* The affinity: any of these labels, hami-node.io/serve=false never, and a processor that our image is for. */}}
{{- define "hami-node.affinity" -}}
{{- if .Values.devicePlugin.affinity -}}
{{- toYaml .Values.devicePlugin.affinity -}}
{{- else if .Values.devicePlugin.simulatedCards -}}
{{- include "hami-node.nodeTerms" (list (dict "hami-node.io/simulated" "true")) -}}
{{- else if eq (include "hami-node.nodeSelection" .) "own-label" -}}
{{- include "hami-node.nodeTerms" (list (dict "hami-node.io/serve" "true")) -}}
{{- else -}}
{{- include "hami-node.nodeTerms" (list
    (dict "hami-node.io/serve" "true")
    (dict "nvidia.com/gpu.present" "true")
    (dict "feature.node.kubernetes.io/pci-10de.present" "true")
    (dict "gpu" "on")) -}}
{{- end -}}
{{- end -}}

{{/* One term for each set of labels in the list. */}}
{{- define "hami-node.nodeTerms" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- range . }}
      - matchExpressions:
          {{- range $key, $value := . }}
          - key: {{ $key }}
            operator: In
            values: [{{ $value | quote }}]
          {{- end }}
          {{- if not (hasKey . "hami-node.io/serve") }}
          - key: hami-node.io/serve
            operator: NotIn
            values: ["false"]
          {{- end }}
          - key: kubernetes.io/arch
            operator: In
            values: [amd64, arm64]
      {{- end }}
{{- end -}}
