{{/* Security context of every container of the platform. */}}
{{- define "kubealign.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/*
Argument: the values of a component. An empty runAsUser or fsGroup leaves the choice to the namespace; seccompProfile and
appArmorProfile are names of profiles on the nodes.
*/}}
{{- define "kubealign.podSecurity" -}}
runAsNonRoot: true
{{- with .runAsUser }}
runAsUser: {{ int64 . }}
runAsGroup: {{ int64 . }}
{{- end }}
{{- with .fsGroup }}
fsGroup: {{ int64 . }}
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  {{- if .seccompProfile }}
  type: Localhost
  localhostProfile: {{ .seccompProfile }}
  {{- else }}
  type: RuntimeDefault
  {{- end }}
{{- with .appArmorProfile }}
appArmorProfile:
  type: Localhost
  localhostProfile: {{ . }}
{{- end }}
{{- end }}

{{/* Name of the account of a component's pods. Arguments: values, name: the component's, if the chart creates the account. */}}
{{- define "kubealign.serviceAccount" -}}
{{- $account := .values.serviceAccount }}
{{- $account.name | default (ternary .name "default" $account.create) }}
{{- end }}

{{/* ServiceAccount of a component. Arguments: context, component, values, name as for kubealign.serviceAccount. */}}
{{- define "kubealign.account" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "kubealign.serviceAccount" . }}
  namespace: {{ .context.Release.Namespace }}
  {{- include "kubealign.annotations" (list .context .values.serviceAccount.annotations) }}
  labels:
    {{- include "kubealign.labels" . | nindent 4 }}
automountServiceAccountToken: false
{{- end }}

{{/* Fields of a pod that every component has. Arguments: context, values. */}}
{{- define "kubealign.podFields" -}}
{{- with concat (((.context.Values.global).imagePullSecrets) | default list) .context.Values.imagePullSecrets | uniq }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "kubealign.podSecurity" .values | nindent 2 }}
{{- with include "kubealign.placement" .values }}
{{- . | nindent 0 }}
{{- end }}
{{- end }}

{{/* Scheduling of a pod. Argument: the values of its component. */}}
{{- define "kubealign.placement" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Egress to DNS. */}}
{{- define "kubealign.dnsEgress" -}}
- ports:
  {{- range .Values.networkPolicy.dnsPorts }}
  - {port: {{ int . }}, protocol: UDP}
  - {port: {{ int . }}, protocol: TCP}
  {{- end }}
{{- end }}

{{/* Egress to Redis, embedded or external. */}}
{{- define "kubealign.redisEgress" -}}
{{- if .Values.redis.embedded.enabled }}
- to:
  - podSelector:
      matchLabels:
        {{- include "kubealign.selector" (dict "context" . "component" "redis") | nindent 8 }}
  ports:
  - {port: 6379, protocol: TCP}
{{- else if .Values.redis.external.host }}
- ports:
  - {port: {{ int .Values.redis.external.port }}, protocol: TCP}
{{- end }}
{{- end }}
