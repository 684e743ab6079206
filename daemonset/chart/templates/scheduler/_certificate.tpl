{{/* job, cert-manager or secret. */}}
{{- define "hami-node.certificateSource" -}}
{{- if .Values.scheduler.certManager.enabled -}}cert-manager
{{- else if .Values.scheduler.certificate.existingSecret -}}secret
{{- else -}}job{{- end -}}
{{- end -}}

{{- define "hami-node.extenderSecret" -}}
{{- .Values.scheduler.certificate.existingSecret | default (printf "%s-extender-tls" (include "hami-node.name" .)) -}}
{{- end -}}

{{- define "hami-node.clientSecret" -}}
{{- .Values.scheduler.certificate.existingClientSecret | default (printf "%s-client-tls" (include "hami-node.scheduler.name" .)) -}}
{{- end -}}

{{/* The Secret as a volume's source. The pod waits until it has all three keys. */}}
{{- define "hami-node.tlsVolume" -}}
secret:
  secretName: {{ . }}
  defaultMode: 0440
  items:
    - key: tls.crt
      path: tls.crt
    - key: tls.key
      path: tls.key
    - key: ca.crt
      path: ca.crt
{{- end -}}
