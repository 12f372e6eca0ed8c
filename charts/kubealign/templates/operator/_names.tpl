{{- define "kubealign.operator.name" -}}
{{ include "kubealign.fullname" . }}-operator
{{- end }}

{{/* The operator's configuration; its schema is kubealign_operator/controller/config.py. */}}
{{- define "kubealign.operator.config" -}}
namespaces:
  {{- toYaml .Values.watchNamespaces | nindent 2 }}
platform:
  image: {{ include "kubealign.image" (dict "context" . "image" .Values.jobs.image) | quote }}
  imagePullPolicy: {{ .Values.jobs.image.pullPolicy }}
  python: {{ .Values.jobs.python | quote }}
  {{- with .Values.jobs.bus.image }}
  busImage: {{ if .repository }}{{ include "kubealign.image" (dict "context" $ "image" .) | quote }}{{ else }}""{{ end }}
  {{- end }}
  redisHost: {{ include "kubealign.redis.host" . | default "none.invalid" | quote }}
  redisPort: {{ include "kubealign.redis.port" . }}
  redisTls: {{ include "kubealign.redis.tls" . }}
  clusterId: {{ .Values.clusterId | quote }}
  redisPeers:
    {{- include "kubealign.redis.peers" . | nindent 4 }}
  otlpEndpoint: {{ .Values.tracing.endpoint | quote }}
  otlpPeers:
    {{- toYaml .Values.tracing.peers | nindent 4 }}
  egressExcept:
    {{- toYaml .Values.jobs.egressExcept | nindent 4 }}
  dnsPorts:
    {{- range .Values.networkPolicy.dnsPorts }}
    - {{ int . }}
    {{- end }}
  podTemplate:
    {{- toYaml .Values.jobs.podTemplate | nindent 4 }}
  profiles:
    {{- range $name, $profile := .Values.jobs.profiles }}
    {{ $name }}:
      {{- toYaml $profile.podTemplate | nindent 6 }}
    {{- else }} {}
    {{- end }}
  defaultResources:
    {{- toYaml .Values.jobs.defaultResources | nindent 4 }}
  {{- range $field := list "runAsUser" "fsGroup" }}
  {{- $id := get $.Values.jobs $field }}
  {{ $field }}: {{ if $id }}{{ int64 $id }}{{ else }}null{{ end }}
  {{- end }}
  usesKueue: {{ .Values.kueue.enabled }}
  startOneAtATime: {{ .Values.jobs.startOneAtATime }}
  startTurnSeconds: {{ int64 .Values.jobs.startTurnSeconds }}
  maxProcesses: {{ int64 .Values.jobs.maxProcesses }}
  credentialsLifetimeDays: {{ int64 .Values.jobs.credentialsLifetimeDays }}
{{- if include "kubealign.redis.host" . }}
redis:
  host: {{ include "kubealign.redis.host" . | quote }}
  port: {{ include "kubealign.redis.port" . }}
  tls: {{ include "kubealign.redis.tls" . }}
  user: {{ include "kubealign.redis.user" . | quote }}
  passwordFile: /etc/kubealign-operator/redis/password
  quota:
    maxKeys: {{ int64 .Values.redis.quota.maxKeys }}
    maxBytes: {{ int64 .Values.redis.quota.maxBytes }}
    intervalSeconds: {{ .Values.redis.quota.intervalSeconds }}
  {{- if include "kubealign.redis.caSecret" . }}
  caFile: /etc/kubealign-operator/redis-ca/ca.crt
  {{- end }}
{{- end }}
metricsAddress: 0.0.0.0:8080
healthAddress: 0.0.0.0:8081
leaderElection:
  leaseName: {{ include "kubealign.operator.name" . }}
  leaseSeconds: {{ .Values.operator.leaderElection.leaseSeconds }}
  renewDeadlineSeconds: {{ .Values.operator.leaderElection.renewDeadlineSeconds }}
  retrySeconds: {{ .Values.operator.leaderElection.retrySeconds }}
workers: {{ .Values.operator.workers }}
resyncSeconds: {{ .Values.operator.resyncSeconds }}
requestSeconds: {{ .Values.operator.requestSeconds }}
progressSeconds: {{ .Values.operator.progressSeconds }}
logLevel: {{ .Values.operator.logLevel }}
{{- end }}

{{/* The operator's rights on jobs and their objects. */}}
{{- define "kubealign.operator.rules" -}}
- apiGroups: [kubealign.dev]
  resources: [alignmentjobs]
  # delete: after ttlSecondsAfterFinished.
  verbs: [list, watch, delete]
- apiGroups: [kubealign.dev]
  resources: [alignmentjobs/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]
# Neither list nor watch: the operator can only read Secrets whose names it knows.
- apiGroups: [""]
  resources: [secrets, configmaps, services]
  verbs: [get, create]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, create]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- if .Values.kueue.enabled }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  # patch: the owner of those that MultiKueue has created.
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
{{- end }}
{{- end }}

{{/* The operator's rights on Kueue's objects of the cluster, which describe nodes and priorities. */}}
{{- define "kubealign.operator.kueueRules" -}}
- apiGroups: [kueue.x-k8s.io]
  resources: [resourceflavors, workloadpriorityclasses]
  verbs: [list, watch]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [list, watch]
{{- end }}
