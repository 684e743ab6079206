{{- define "hami-node.schedulerConfig" -}}
{{- $names := include "hami-node.resources" . | fromYaml -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceName: {{ include "hami-node.scheduler.name" . }}
  resourceNamespace: {{ .Release.Namespace }}
# By default 50 requests a second, which bounds how many pods a second can be placed. The API
# server shares its time out among its clients itself.
clientConnection:
  qps: 200
  burst: 400
# A pod that did not fit is retried when something has changed, but not before its back-off is
# over. With 10 s, free capacity may be noticed that late; with less, a full cluster calls the
# extender more often for each waiting pod.
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 10
# All nodes: kube-scheduler doesn't know the cards. Of more than 100 nodes it would send the
# extender only a sample, which might contain no node with a free card.
percentageOfNodesToScore: 100
profiles:
  - schedulerName: {{ .Values.schedulerName }}
extenders:
  - urlPrefix: https://{{ include "hami-node.name" . }}-leader.{{ .Release.Namespace }}.svc:443
    filterVerb: filter
    preemptVerb: preempt
    bindVerb: bind
    nodeCacheCapable: true
    weight: 1
    httpTimeout: 30s
    enableHTTPS: true
    # The extender answers this certificate only. It and its key are read again when they change,
    # the authority only at startup: it is therefore published long before it is needed.
    tlsConfig:
      caFile: /tls/ca.crt
      certFile: /tls/tls.crt
      keyFile: /tls/tls.key
    # Only pods that request one of these are sent to the extender. What kubelet counts, kube-scheduler
    # counts too: otherwise it would evict pods on nodes without cards for a pod that wants one.
    # ignoredByScheduler: no node has these, only the extender knows them.
    managedResources:
      {{- range $names.counted }}
      - name: {{ . }}
      {{- end }}
      {{- range $names.ignored }}
      - name: {{ . }}
        ignoredByScheduler: true
      {{- end }}
      {{- range $names.neuron }}
      - name: {{ . }}
      {{- end }}
{{- end -}}
