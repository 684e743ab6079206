{{/* "true" where templates can look at the cluster: not under `helm template` and --dry-run=client. */}}
{{- define "hami-node.seesCluster" -}}
{{- if .Values.inspectCluster -}}
{{- if lookup "v1" "Namespace" "" "kube-system" -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* Deployments of HAMi's chart that run a scheduler of our schedulerName, as a YAML list of namespace/name. */}}
{{- define "hami-node.otherSchedulers" -}}
{{- $found := list -}}
{{- $name := .Values.schedulerName -}}
{{- range (lookup "apps/v1" "Deployment" "" "").items -}}
{{- $deployment := . -}}
{{- $component := get (.metadata.labels | default dict) "app.kubernetes.io/component" -}}
{{- if and (eq $component "hami-scheduler") (gt (int (dig "spec" "replicas" 1 .)) 0) -}}
{{- $theirs := "hami-scheduler" -}}
{{- range .spec.template.spec.containers -}}
{{- range concat (.command | default list) (.args | default list) -}}
{{- if hasPrefix "--scheduler-name=" . }}{{ $theirs = trimPrefix "--scheduler-name=" . }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if eq $theirs $name }}{{ $found = append $found (printf "%s/%s" $deployment.metadata.namespace $deployment.metadata.name) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* How many nodes the DaemonSet's affinity and node selector match: "3", or "" with an affinity of the user's. */}}
{{- define "hami-node.matchingNodes" -}}
{{- if not .Values.devicePlugin.affinity -}}
{{- $affinity := include "hami-node.affinity" . | fromYaml -}}
{{- $selector := merge (dict) .Values.devicePlugin.nvidiaNodeSelector -}}
{{- if .Values.devicePlugin.gpuOperatorClient }}{{ $_ := set $selector "nvidia.com/gpu.deploy.client" "true" }}{{ end -}}
{{- $count := 0 -}}
{{- range (lookup "v1" "Node" "" "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $any := false -}}
{{- range $affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms -}}
{{- $all := true -}}
{{- range .matchExpressions -}}
{{- $has := has (get $labels .key) .values -}}
{{- if ne $has (eq .operator "In") }}{{ $all = false }}{{ end -}}
{{- end -}}
{{- if $all }}{{ $any = true }}{{ end -}}
{{- end -}}
{{- range $key, $value := $selector }}{{ if ne (get $labels $key) $value }}{{ $any = false }}{{ end }}{{ end -}}
{{- if $any }}{{ $count = add1 $count }}{{ end -}}
{{- end -}}
{{- $count -}}
{{- end -}}
{{- end -}}
