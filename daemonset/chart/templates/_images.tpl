{{/* A whole image name: (dict "ctx" $ "image" VALUES "tag" DEFAULT_TAG). */}}
{{- define "hami-node.imageName" -}}
{{- $registry := .ctx.Values.global.imageRegistry | default .image.registry -}}
{{- $name := .image.repository -}}
{{- if $registry }}{{ $name = printf "%s/%s" (trimSuffix "/" $registry) $name }}{{ end -}}
{{- if .image.digest -}}
{{ $name }}@{{ .image.digest }}
{{- else -}}
{{ $name }}:{{ .image.tag | default .tag }}
{{- end -}}
{{- end -}}

{{- define "hami-node.image" -}}
{{- $tag := .Values.global.imageTag | default .Chart.AppVersion -}}
{{- include "hami-node.imageName" (dict "ctx" . "image" .Values.image "tag" $tag) -}}
{{- end -}}

{{- define "hami-node.limiter.image" -}}
{{- include "hami-node.imageName" (dict "ctx" . "image" .Values.limiter.image "tag" "") -}}
{{- end -}}

{{/* The cluster's version without a distributor's suffix: v1.30.4-gke.1 has no image of its own. */}}
{{- define "hami-node.kubeScheduler.image" -}}
{{- $tag := regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version -}}
{{- include "hami-node.imageName" (dict "ctx" . "image" .Values.scheduler.kubeScheduler.image "tag" $tag) -}}
{{- end -}}

{{- define "hami-node.pullSecrets" -}}
{{- with .Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ kindIs "map" . | ternary (get (kindIs "map" . | ternary . dict) "name") . }}
  {{- end }}
{{- end }}
{{- end -}}
