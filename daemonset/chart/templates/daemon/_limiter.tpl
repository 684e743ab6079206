{{- define "hami-node.limiterSum" -}}
{{- with .Values.limiter.sha256 }}
- name: HAMI_NODE_LIMITER_SHA256
  value: {{ join "," . | quote }}
{{- end }}
{{- end -}}

{{- define "hami-node.limiterContainers" -}}
# Foreign code: it gets an empty folder, no part of the node, no card, no right, no token.
- name: fetch-limiter
  image: {{ include "hami-node.limiter.image" . }}
  imagePullPolicy: {{ .Values.limiter.image.pullPolicy }}
  command: [cp, -R, {{ .Values.limiter.path | trimSuffix "/" }}/., /limiter/]
  env:
    - name: NVIDIA_VISIBLE_DEVICES
      value: void
  securityContext:
    runAsUser: 65534
    runAsGroup: 65534
    runAsNonRoot: true
    privileged: false
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
  resources:
    requests:
      cpu: 20m
      memory: 16Mi
    limits:
      memory: 128Mi
  volumeMounts:
    - name: fetched
      mountPath: /limiter
# Ours: what is not a whole library with the wanted checksum never reaches the node.
- name: install-limiter
  image: {{ include "hami-node.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    - install-limiter
    - --from=/limiter
  env:
    - name: HOOK_PATH
      value: {{ include "hami-node.hookPath" . }}
    - name: NVIDIA_VISIBLE_DEVICES
      value: void
    {{- include "hami-node.limiterSum" . | nindent 4 }}
  securityContext:
    # Root without a single capability: the folder on the node belongs to root.
    runAsUser: 0
    privileged: false
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
  resources:
    requests:
      cpu: 20m
      memory: 96Mi
    limits:
      memory: 256Mi
  volumeMounts:
    - name: fetched
      mountPath: /limiter
      readOnly: true
    - name: limiter
      mountPath: {{ include "hami-node.hookPath" . }}/vgpu
{{- end -}}

{{- define "hami-node.limiterVolumes" -}}
- name: fetched
  emptyDir:
    sizeLimit: 256Mi
- name: token
  projected:
    sources:
      - serviceAccountToken:
          path: token
          expirationSeconds: 3607
      - configMap:
          name: kube-root-ca.crt
          items:
            - key: ca.crt
              path: ca.crt
      - downwardAPI:
          items:
            - path: namespace
              fieldRef:
                fieldPath: metadata.namespace
{{- end -}}
