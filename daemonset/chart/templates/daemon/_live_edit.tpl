{{/*
Whether the ConfigMap in the cluster has been edited since a release wrote it: "" no, "kept" the edit stays,
"overwritten" these values replace it. Fails where both the edit and these values change it. A ConfigMap that no
release wrote (kustomize's) is taken for an edit, unless it says the same.
*/}}
{{- define "hami-node.liveEdit" -}}
{{- $name := include "hami-node.configName" . -}}
{{- $live := lookup "v1" "ConfigMap" .Release.Namespace $name -}}
{{- if and $live $live.data (not .Values.config.existingConfigMap) -}}
{{- $made := include "hami-node.configData" . | fromJson -}}
{{- $liveSum := $live.data | toJson | sha256sum -}}
{{- $madeSum := $made | toJson | sha256sum -}}
{{- $writtenSum := dig "metadata" "annotations" "hami-node.io/config-sha256" "" $live -}}
{{- $same := eq (include "hami-node.meaning" $live.data) (include "hami-node.meaning" $made) -}}
{{- if not (or $same (eq $liveSum $writtenSum)) -}}
{{- if eq .Values.config.liveEdits "overwrite" -}}
overwritten
{{- else if eq $writtenSum $madeSum -}}
kept
{{- else -}}
{{- fail (printf "\n\nThe ConfigMap %s/%s has been edited in the cluster, and these values change it as well. Take the edit into your values (config.deviceConfig, devicePlugin.nodeConfiguration.config; kubectl -n %s get configmap %s -o yaml shows it), or set config.liveEdits=overwrite to replace it.\n" .Release.Namespace $name .Release.Namespace $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What the files of a ConfigMap say, without order and comments. */}}
{{- define "hami-node.meaning" -}}
{{- $read := dict -}}
{{- range $file, $text := . }}{{ $_ := set $read $file (fromYaml $text) }}{{ end -}}
{{- toJson $read -}}
{{- end -}}
