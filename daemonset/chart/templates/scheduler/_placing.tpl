{{/* Placing of extender and kube-scheduler: (list $ component). */}}
{{- define "hami-node.placing" -}}
{{- $ctx := first . -}}
{{- with $ctx.Values.scheduler.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $ctx.Values.scheduler.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $ctx.Values.scheduler.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
  {{- if $ctx.Values.scheduler.affinity }}
  {{- toYaml $ctx.Values.scheduler.affinity | nindent 2 }}
  {{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "hami-node.selector" . | nindent 14 }}
  {{- end }}
{{- end -}}

{{- define "hami-node.unprivileged" -}}
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

