{{/* Security context of every container of the platform. */}}
{{- define "kubealign.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Arguments: user, group (0: none). */}}
{{- define "kubealign.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ int64 .user }}
runAsGroup: {{ int64 .user }}
{{- if .group }}
fsGroup: {{ int64 .group }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
seccompProfile:
  type: RuntimeDefault
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
  - {port: 53, protocol: UDP}
  - {port: 53, protocol: TCP}
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
