{{/* Security context of every container of the platform. */}}
{{- define "kubealign.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Argument: the values of a component. An empty runAsUser or fsGroup leaves the choice to the namespace. */}}
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
