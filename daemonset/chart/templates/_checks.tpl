{{/* Values that contradict each other: (list CONDITION MESSAGE). The message names the values and the cure. */}}
{{- define "hami-node.refuse" -}}
{{- if first . }}{{ fail (printf "\n\n%s\n" (last .)) }}{{ end -}}
{{- end -}}

{{- define "hami-node.checks" -}}
{{- $plugin := .Values.devicePlugin -}}
{{- $scheduler := .Values.scheduler -}}
{{- $daemons := or $plugin.enabled .Values.neuron.enabled -}}
{{- include "hami-node.refuse" (list (not (or $daemons $scheduler.enabled))
    "Nothing is left to install: set devicePlugin.enabled, neuron.enabled or scheduler.enabled to true.") -}}
{{- include "hami-node.refuse" (list (and $plugin.standalone.enabled $scheduler.enabled)
    "devicePlugin.standalone.enabled=true serves fixed shares without a scheduler part, and scheduler.enabled=true installs one: set scheduler.enabled=false.") -}}
{{- include "hami-node.refuse" (list (and $plugin.mig.switchMode (not $plugin.mig.enabled))
    "devicePlugin.mig.switchMode=true needs devicePlugin.mig.enabled=true.") -}}
{{- include "hami-node.refuse" (list (and $plugin.mig.switchMode (not $plugin.hostPID))
    "devicePlugin.mig.switchMode=true needs devicePlugin.hostPID=true: without it nobody knows whether a process uses a card.") -}}
{{- include "hami-node.refuse" (list (and $plugin.nvidiaDriverRoot (ne (include "hami-node.driver" .) "host"))
    (printf "devicePlugin.nvidiaDriverRoot=%s is used with devicePlugin.driver=host only: set that, or remove it." $plugin.nvidiaDriverRoot)) -}}
{{- include "hami-node.refuse" (list (and $plugin.createRuntimeClass (not $plugin.runtimeClassName))
    "devicePlugin.createRuntimeClass=true needs a name: set devicePlugin.runtimeClassName=nvidia.") -}}
{{- include "hami-node.refuse" (list (eq .Values.schedulerName "default-scheduler")
    "schedulerName=default-scheduler is the cluster's own scheduler, which knows no cards: set another name.") -}}
{{- include "hami-node.configChecks" . -}}
{{- include "hami-node.certificateChecks" . -}}
{{- include "hami-node.exposureChecks" . -}}
{{- include "hami-node.clusterChecks" . -}}
{{- end -}}

{{- define "hami-node.configChecks" -}}
{{- $nodes := .Values.devicePlugin.nodeConfiguration -}}
{{- $existing := .Values.config.existingConfigMap -}}
{{- include "hami-node.refuse" (list (and $existing .Values.config.deviceConfig)
    (printf "config.existingConfigMap=%s has its own device-config.yaml: remove config.deviceConfig." $existing)) -}}
{{- include "hami-node.refuse" (list (and $existing $nodes.config)
    (printf "config.existingConfigMap=%s has its own config.json: remove devicePlugin.nodeConfiguration.config." $existing)) -}}
{{- include "hami-node.refuse" (list (and $existing .Values.devicePlugin.simulatedCards)
    (printf "devicePlugin.simulatedCards are written into the chart's ConfigMap: remove config.existingConfigMap=%s." $existing)) -}}
{{- include "hami-node.refuse" (list (and $nodes.config $nodes.externalConfigName)
    "devicePlugin.nodeConfiguration: set config or externalConfigName, not both.") -}}
{{- $names := include "hami-node.resources" . | fromYaml -}}
{{- $all := concat $names.counted $names.ignored $names.neuron -}}
{{- include "hami-node.refuse" (list (ne (len $all) (len (uniq $all)))
    (printf "Two resources have the same name (%s): give each of resourceName, resourceMem, resourceMemPercentage, resourceCores and resourcePriority its own." (join ", " $all))) -}}
{{- end -}}

{{- define "hami-node.certificateChecks" -}}
{{- $given := .Values.scheduler.certificate -}}
{{- include "hami-node.refuse" (list (and .Values.scheduler.certManager.enabled $given.existingSecret)
    "scheduler.certManager.enabled=true and scheduler.certificate.existingSecret: set one of them.") -}}
{{- include "hami-node.refuse" (list (and (or $given.existingClientSecret $given.caBundle) (not $given.existingSecret))
    "scheduler.certificate.existingClientSecret and caBundle belong to a certificate of yours: set scheduler.certificate.existingSecret as well, or remove them.") -}}
{{- if and $given.existingSecret .Values.scheduler.enabled -}}
{{- include "hami-node.refuse" (list (and .Values.scheduler.kubeScheduler.enabled (not $given.existingClientSecret))
    (printf "With scheduler.certificate.existingSecret=%s kube-scheduler needs a certificate of the same authority: set scheduler.certificate.existingClientSecret." $given.existingSecret)) -}}
{{- include "hami-node.refuse" (list (and .Values.scheduler.admissionWebhook.enabled (not $given.caBundle))
    (printf "With scheduler.certificate.existingSecret=%s the API server has to know the authority: set scheduler.certificate.caBundle to the content of ca.crt." $given.existingSecret)) -}}
{{- end -}}
{{- end -}}

{{- define "hami-node.exposureChecks" -}}
{{- range $path, $service := dict "devicePlugin.service" .Values.devicePlugin.service "scheduler.service" .Values.scheduler.service -}}
{{- include "hami-node.refuse" (list (and $service.nodePort (ne $service.type "NodePort"))
    (printf "%s.nodePort=%v needs %s.type=NodePort." $path $service.nodePort $path)) -}}
{{- end -}}
{{- $ingress := .Values.view.ingress -}}
{{- if $ingress.enabled -}}
{{- include "hami-node.refuse" (list (not .Values.view.enabled) "view.ingress.enabled=true needs view.enabled=true.") -}}
{{- include "hami-node.refuse" (list (not $ingress.host) "view.ingress.enabled=true needs view.ingress.host.") -}}
{{- include "hami-node.refuse" (list (not $ingress.annotations)
    "view.ingress has no annotations: the page has no login of its own, so name those by which your ingress controller authenticates users (nginx.ingress.kubernetes.io/auth-url, for example).") -}}
{{- end -}}
{{- end -}}

{{/* What only a cluster can tell; nothing under `helm template`. */}}
{{- define "hami-node.clusterChecks" -}}
{{- if include "hami-node.seesCluster" . -}}
{{- include "hami-node.refuse" (list (and .Values.scheduler.certManager.enabled (not (.Capabilities.APIVersions.Has "cert-manager.io/v1")))
    "scheduler.certManager.enabled=true, and the cluster has no cert-manager.io/v1: install cert-manager, or set it to false.") -}}
{{- include "hami-node.refuse" (list (and (or .Values.prometheus.enabled .Values.prometheus.rules.enabled) (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")))
    "prometheus.enabled or prometheus.rules.enabled is true, and the cluster has no monitoring.coreos.com/v1: install the Prometheus Operator, or set them to false.") -}}
{{- $others := include "hami-node.otherSchedulers" . | fromYamlArray -}}
{{- $ours := and .Values.scheduler.enabled .Values.scheduler.kubeScheduler.enabled .Values.scheduler.kubeScheduler.replicas -}}
{{- include "hami-node.refuse" (list (and $ours $others)
    (printf "Deployment %s runs a scheduler named %s. Two schedulers of one name place pods on the same memory. Set scheduler.enabled=false while HAMi's scheduler decides, or scheduler.kubeScheduler.replicas=0 until it is gone (docs/install.md#beside-hami)." (join ", " $others) .Values.schedulerName)) -}}
{{- end -}}
{{- end -}}
