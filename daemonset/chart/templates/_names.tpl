{{- define "hami-node.name" -}}
{{- .Values.fullnameOverride | default "hami-node" -}}
{{- end -}}

{{/* kube-scheduler's objects: never hami-scheduler, which is a name of HAMi's chart. */}}
{{- define "hami-node.scheduler.name" -}}
{{- include "hami-node.name" . -}}-scheduler
{{- end -}}

{{- define "hami-node.extender.account" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "hami-node.name" . }}-extender
{{- end -}}

{{- define "hami-node.daemon.account" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "hami-node.name" . }}
{{- end -}}

{{/* What selects pods: immutable in Kubernetes, so it never changes. Called with (list $ component). */}}
{{- define "hami-node.selector" -}}
app.kubernetes.io/name: hami-node
app.kubernetes.io/instance: {{ (first .).Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end -}}

{{/* Labels of pods: no version, so that a new chart alone restarts nothing. Called with (list $ component app). */}}
{{- define "hami-node.podLabels" -}}
{{- $ctx := first . -}}
{{ include "hami-node.selector" (list $ctx (index . 1)) }}
app.kubernetes.io/part-of: hami-node
app: {{ last . }}
hami.io/webhook: ignore
{{- end -}}

{{- define "hami-node.labels" -}}
app.kubernetes.io/name: hami-node
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: hami-node
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.global.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The metadata of an object: (dict "ctx" $ "name" NAME "component" C "labels" {} "annotations" {} "cluster" true). */}}
{{- define "hami-node.metadata" -}}
name: {{ .name }}
{{- if not .cluster }}
namespace: {{ .namespace | default .ctx.Release.Namespace }}
{{- end }}
labels:
  {{- include "hami-node.labels" .ctx | nindent 2 }}
  {{- with .component }}
  app.kubernetes.io/component: {{ . }}
  {{- end }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $annotations := merge (dict) (.annotations | default dict) (.ctx.Values.global.annotations | default dict) }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
