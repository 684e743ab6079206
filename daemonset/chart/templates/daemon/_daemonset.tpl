{{/* A DaemonSet: (dict "ctx" $ "neuron" BOOL). */}}
{{- define "hami-node.daemonset" -}}
{{- $ctx := .ctx -}}
{{- $neuron := .neuron -}}
{{- $plugin := $ctx.Values.devicePlugin -}}
{{- $driver := include "hami-node.driver" $ctx -}}
{{- $driverRoot := ternary (include "hami-node.driverRoot" $ctx) "" (eq $driver "host") -}}
{{- $component := ternary "neuron" "daemon" $neuron -}}
{{- $name := ternary (printf "%s-neuron" (include "hami-node.name" $ctx)) (include "hami-node.name" $ctx) $neuron -}}
{{- $simulated := and (not $neuron) $plugin.simulatedCards -}}
{{- $runtime := and (not $neuron) (not $simulated) (eq $driver "runtimeClass") -}}
{{- $mounts := and (not $neuron) (not $simulated) (has $driver (list "nri" "host")) -}}
{{- $validations := and (not $neuron) (not $simulated) (or $mounts $plugin.gpuOperatorToolkitReady.enabled) -}}
{{- $privileged := and (not $neuron) (not $simulated) (or (eq $driver "host") $plugin.mig.switchMode) -}}
{{- $mig := and (not $neuron) $plugin.mig.enabled (not (eq $driver "host")) -}}
{{- $limiter := and (not $neuron) (not $simulated) (eq $ctx.Values.limiter.source "image") -}}
{{- $hook := include "hami-node.hookPath" $ctx -}}
{{- $podResources := include "hami-node.podResourcesPath" $ctx -}}
{{- $pluginPath := include "hami-node.pluginPath" $ctx -}}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  {{- $selection := ternary (dict) (dict "hami-node.io/node-selection" (include "hami-node.nodeSelection" $ctx)) $neuron }}
  {{- include "hami-node.metadata" (dict "ctx" $ctx "name" $name "component" $component "annotations" $selection) | nindent 2 }}
spec:
  selector:
    matchLabels:
      {{- include "hami-node.selector" (list $ctx $component) | nindent 6 }}
  updateStrategy:
    {{- toYaml $plugin.updateStrategy | nindent 4 }}
  template:
    metadata:
      labels:
        {{- include "hami-node.podLabels" (list $ctx $component $name) | nindent 8 }}
        hami-node.io/metrics: daemon
        {{- with $plugin.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        prometheus.io/scrape: "true"
        prometheus.io/port: "9394"
        # What the daemon reads at its start only. Everything else it takes from the ConfigMap as it runs.
        checksum/restart: {{ include "hami-node.restartSum" $ctx }}
        {{- if and (not $neuron) (not $simulated) (eq $driver "nri") }}
        nvidia.cdi.k8s.io/container.hami-node: management.nvidia.com/gpu=all
        {{- end }}
        {{- with $plugin.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "hami-node.name" $ctx }}
      {{- include "hami-node.pullSecrets" $ctx | nindent 6 }}
      {{- with $plugin.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- if and (not $neuron) (not $simulated) $plugin.hostPID }}
      hostPID: true
      {{- end }}
      {{- if and $runtime $plugin.runtimeClassName }}
      # NVIDIA's container runtime adds the driver's library and device nodes to this container,
      # so it needs no privileges.
      runtimeClassName: {{ $plugin.runtimeClassName }}
      {{- end }}
      {{- if $neuron }}
      nodeSelector:
        {{- toYaml $ctx.Values.neuron.nodeSelector | nindent 8 }}
      affinity:
        {{- include "hami-node.nodeTerms" (list dict) | nindent 8 }}
      {{- else }}
      {{- $selector := merge (dict) $plugin.nvidiaNodeSelector }}
      {{- if $plugin.gpuOperatorClient }}{{ $_ := set $selector "nvidia.com/gpu.deploy.client" "true" }}{{ end }}
      {{- with $selector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      affinity:
        {{- include "hami-node.affinity" $ctx | nindent 8 }}
      {{- end }}
      {{- with $plugin.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      enableServiceLinks: false
      terminationGracePeriodSeconds: 15
      {{- if $limiter }}
      # Every container of a pod would get the daemon's token, the foreign one too: only ours does.
      automountServiceAccountToken: false
      {{- end }}
      securityContext:
        {{- with include "hami-node.seLinuxType" $ctx }}
        seLinuxOptions:
          type: {{ . }}
        {{- end }}
        seccompProfile:
          type: RuntimeDefault
      {{- if $limiter }}
      initContainers:
        {{- include "hami-node.limiterContainers" $ctx | nindent 8 }}
      {{- end }}
      containers:
        - name: hami-node
          image: {{ include "hami-node.image" $ctx }}
          imagePullPolicy: {{ $ctx.Values.image.pullPolicy }}
          args:
            - run
            - --config-file=/config/device-config.yaml
            - --node-config-file=/config/config.json
            - --probe-address=:9396
            {{- if ne $pluginPath "/var/lib/kubelet/device-plugins" }}
            - --plugin-dir={{ $pluginPath }}
            {{- end }}
            {{- if ne $podResources "/var/lib/kubelet/pod-resources" }}
            - --pod-resources-socket={{ $podResources }}/kubelet.sock
            {{- end }}
            {{- if and $mounts (eq $driver "nri") }}
            - --device-list-strategy={{ ternary "cdi-cri" $plugin.deviceListStrategy (eq $plugin.deviceListStrategy "auto") }}
            {{- end }}
            {{- if $simulated }}
            - --backend=simulated
            - --simulated-file=/config/cards.yaml
            - --limiter=optional
            {{- end }}
            {{- if and $plugin.standalone.enabled (not $neuron) }}
            - --standalone=true
            - --standalone-shares={{ $plugin.standalone.shares }}
            {{- end }}
            {{- with $plugin.extraArgs }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          env:
            - name: NODE_NAME
              valueFrom:
                fieldRef:
                  fieldPath: spec.nodeName
            - name: HOOK_PATH
              value: {{ $hook }}
            {{- if $runtime }}
            - name: NVIDIA_VISIBLE_DEVICES
              value: all
            - name: NVIDIA_DRIVER_CAPABILITIES
              value: utility
            {{- end }}
            {{- if $mig }}
            - name: NVIDIA_MIG_CONFIG_DEVICES
              value: all
            - name: NVIDIA_MIG_MONITOR_DEVICES
              value: all
            {{- end }}
            {{- if and $mounts $driverRoot }}
            - name: NVIDIA_DRIVER_ROOT
              value: {{ $driverRoot }}
            {{- end }}
            {{- if $mounts }}
            # Where the GPU Operator's driver-ready does not say otherwise.
            - name: DRIVER_ROOT_CTR_PATH
              value: {{ printf "/host%s" ($driverRoot | trimSuffix "/") }}
            {{- end }}
            {{- if not $neuron }}
            {{- include "hami-node.limiterSum" $ctx | nindent 12 }}
            {{- end }}
            {{- with $plugin.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            - name: metrics
              containerPort: 9394
            # /healthz and /readyz: nobody who reads metrics can keep kubelet out.
            - name: probes
              containerPort: 9396
          securityContext:
            # Root without a single capability: kubelet's folders belong to root.
            runAsUser: 0
            {{- if $privileged }}
            # Nothing else lets a container open the driver's device nodes when no runtime adds them, or switch the MIG mode.
            privileged: true
            readOnlyRootFilesystem: true
            {{- else }}
            privileged: false
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
              {{- if $mig }}
              # Written like this, not CAP_SYS_ADMIN: beside that the API server does not take
              # allowPrivilegeEscalation false.
              add: [SYS_ADMIN, MKNOD]
              {{- end }}
            {{- end }}
          resources:
            {{- toYaml $plugin.resources | nindent 12 }}
          livenessProbe:
            httpGet:
              path: /healthz
              port: probes
            initialDelaySeconds: 20
            periodSeconds: 15
            timeoutSeconds: 5
            failureThreshold: 4
          readinessProbe:
            httpGet:
              path: /readyz
              port: probes
            periodSeconds: 5
            timeoutSeconds: 5
          volumeMounts:
            - name: config
              mountPath: /config
              readOnly: true
            - name: device-plugins
              mountPath: {{ $pluginPath }}
            - name: pod-resources
              mountPath: {{ $podResources }}
              readOnly: true
            - name: limiter
              mountPath: {{ $hook }}/vgpu
            - name: record
              mountPath: /var/lib/hami-node
            {{- if $limiter }}
            - name: token
              mountPath: /var/run/secrets/kubernetes.io/serviceaccount
              readOnly: true
            {{- end }}
            {{- if $mig }}
            - name: nvidia-caps
              mountPath: /host/dev/nvidia-caps
            {{- end }}
            {{- if $validations }}
            - name: validations
              mountPath: /run/nvidia/validations
              readOnly: true
              mountPropagation: HostToContainer
            {{- end }}
            {{- if $mounts }}
            - name: host
              mountPath: /host
              readOnly: true
              mountPropagation: HostToContainer
            - name: driver-root
              mountPath: /driver-root
              readOnly: true
              mountPropagation: HostToContainer
            - name: cdi
              mountPath: /var/run/cdi
            {{- end }}
            {{- with $plugin.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        # A folder, not a subPath: changes of the ConfigMap are propagated.
        - name: config
          {{- include "hami-node.configVolume" $ctx | nindent 10 }}
        - name: device-plugins
          hostPath:
            path: {{ $pluginPath }}
            type: Directory
        - name: pod-resources
          hostPath:
            path: {{ $podResources }}
            type: Directory
        # libvgpu.so, ld.so.preload, and files for each container; HOOK_PATH and this path agree.
        # Containers never get it as a whole: only root may write here.
        - name: limiter
          hostPath:
            path: {{ $hook }}/vgpu
            type: DirectoryOrCreate
        # What this node has granted. Only root reaches it: the daemon creates it with mode 0700 below.
        - name: record
          hostPath:
            path: /var/lib/hami-node
            type: DirectoryOrCreate
        {{- if $limiter }}
        {{- include "hami-node.limiterVolumes" $ctx | nindent 8 }}
        {{- end }}
        {{- if $mig }}
        # Device nodes of an instance's capabilities: the runtime leaves out those that the host does not have.
        - name: nvidia-caps
          hostPath:
            path: /dev/nvidia-caps
            type: DirectoryOrCreate
        {{- end }}
        {{- if $validations }}
        - name: validations
          hostPath:
            path: {{ $plugin.gpuOperatorToolkitReady.hostPath }}
            type: DirectoryOrCreate
        {{- end }}
        {{- if $mounts }}
        - name: host
          hostPath:
            path: /
            type: Directory
        - name: driver-root
          hostPath:
            path: /run/nvidia/driver
            type: DirectoryOrCreate
        - name: cdi
          hostPath:
            path: /var/run/cdi
            type: DirectoryOrCreate
        {{- end }}
        {{- with $plugin.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end -}}

{{/* Names of resources are read at the start; so are the names of the ConfigMaps, which change the pod anyway. */}}
{{- define "hami-node.restartSum" -}}
{{- include "hami-node.resources" . | sha256sum | trunc 16 | quote -}}
{{- end -}}

{{- define "hami-node.configVolume" -}}
{{- if .Values.devicePlugin.nodeConfiguration.externalConfigName -}}
projected:
  sources:
    - configMap:
        name: {{ include "hami-node.configName" . }}
        items:
          - key: device-config.yaml
            path: device-config.yaml
    - configMap:
        name: {{ .Values.devicePlugin.nodeConfiguration.externalConfigName }}
        items:
          - key: config.json
            path: config.json
{{- else -}}
configMap:
  name: {{ include "hami-node.configName" . }}
{{- end -}}
{{- end -}}
