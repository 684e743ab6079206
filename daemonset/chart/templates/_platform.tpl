{{/* What differs between distributions, as YAML. A value that is set takes precedence. */}}
{{- define "hami-node.platforms" -}}
k3s: {}
rke2: {}
k0s:
  podResources: /var/lib/k0s/kubelet/pod-resources
microk8s:
  podResources: /var/snap/microk8s/common/var/lib/kubelet/pod-resources
# /usr/local is read-only there.
talos:
  hookPath: /var/lib/hami
bottlerocket:
  hookPath: /var/lib/hami
openshift:
  securityContextConstraints: true
  seLinuxType: spc_t
# /home/kubernetes/bin is writable, and programs may be loaded from it.
gke:
  criticalPodsQuota: true
  hookPath: /home/kubernetes/bin/hami
  driver: host
  driverRoot: /home/kubernetes/bin/nvidia
{{- end -}}

{{- define "hami-node.preset" -}}
{{- $ctx := first . -}}
{{- get (get (include "hami-node.platforms" $ctx | fromYaml) ($ctx.Values.platform | default "none") | default dict) (last .) -}}
{{- end -}}

{{- define "hami-node.hookPath" -}}
{{- .Values.global.gpuHookPath | default (include "hami-node.preset" (list . "hookPath")) | default "/usr/local" | trimSuffix "/" -}}
{{- end -}}

{{- define "hami-node.pluginPath" -}}
{{- .Values.devicePlugin.pluginPath | default "/var/lib/kubelet/device-plugins" | trimSuffix "/" -}}
{{- end -}}

{{- define "hami-node.podResourcesPath" -}}
{{- .Values.devicePlugin.podResourcesPath | default (include "hami-node.preset" (list . "podResources")) | default "/var/lib/kubelet/pod-resources" | trimSuffix "/" -}}
{{- end -}}

{{- define "hami-node.seLinuxType" -}}
{{- .Values.devicePlugin.seLinuxType | default (include "hami-node.preset" (list . "seLinuxType")) -}}
{{- end -}}

{{- define "hami-node.driver" -}}
{{- .Values.devicePlugin.driver | default (include "hami-node.preset" (list . "driver")) | default "runtimeClass" -}}
{{- end -}}

{{/* Only with driver host. */}}
{{- define "hami-node.driverRoot" -}}
{{- .Values.devicePlugin.nvidiaDriverRoot | default (include "hami-node.preset" (list . "driverRoot")) -}}
{{- end -}}

{{/* "true" where the admission policies can be: the node's name in a pod's token came with 1.30. */}}
{{- define "hami-node.policies" -}}
{{- if and .Values.admissionPolicies.enabled (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) -}}true{{- end -}}
{{- end -}}
