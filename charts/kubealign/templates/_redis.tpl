{{- define "kubealign.redis.name" -}}
{{ include "kubealign.fullname" . }}-redis
{{- end }}

{{/* Host of Redis as resolved by pods of any namespace; empty: no Redis. */}}
{{- define "kubealign.redis.host" -}}
{{- if .Values.redis.embedded.enabled -}}
{{ include "kubealign.redis.name" . }}.{{ .Release.Namespace }}.svc
{{- else -}}
{{ .Values.redis.external.host }}
{{- end }}
{{- end }}

{{- define "kubealign.redis.port" -}}
{{ ternary 6379 (int .Values.redis.external.port) .Values.redis.embedded.enabled }}
{{- end }}

{{- define "kubealign.redis.tls" -}}
{{ ternary .Values.redis.embedded.tls .Values.redis.external.tls .Values.redis.embedded.enabled }}
{{- end }}

{{/* Redis as `to` of a NetworkPolicy; an empty list: any address. */}}
{{- define "kubealign.redis.peers" -}}
{{- if .Values.redis.embedded.enabled -}}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ .Release.Namespace }}
  podSelector:
    matchLabels:
      {{- include "kubealign.selector" (dict "context" . "component" "redis") | nindent 6 }}
{{- else }}
{{- range .Values.redis.external.egressCidrs }}
- ipBlock: {cidr: {{ . | quote }}}
{{- else -}}
[]
{{- end }}
{{- end }}
{{- end }}

{{- define "kubealign.redis.user" -}}
{{ ternary "operator" .Values.redis.external.user .Values.redis.embedded.enabled }}
{{- end }}

{{/* The Secret with Redis' CA certificate as ca.crt; empty: none, or the images' trusted certificates suffice. */}}
{{- define "kubealign.redis.caSecret" -}}
{{- if eq (include "kubealign.redis.tls" .) "true" }}
{{- ternary (include "kubealign.redis.secret" .) .Values.redis.external.caSecret .Values.redis.embedded.enabled }}
{{- end }}
{{- end }}

{{- define "kubealign.redis.dashboardUser" -}}
{{ ternary "dashboard" .Values.redis.external.dashboardUser .Values.redis.embedded.enabled }}
{{- end }}

{{/* Prefix of the cluster's keys: key_prefix of sdk/kubealign/access/redis_names.py. */}}
{{- define "kubealign.redis.keyPrefix" -}}
{{ with .Values.clusterId }}kubealign.{{ . }}:{{ else }}kubealign:{{ end }}
{{- end }}

{{/* Rules of the dashboard's user: READER_COMMANDS of sdk/kubealign/access/redis_acl.py. */}}
{{- define "kubealign.redis.dashboardRules" -}}
~{{ include "kubealign.redis.keyPrefix" . }}* resetchannels -@all +ping +hmget +getrange +xrange +xrevrange
{{- end }}

{{- define "kubealign.redis.probeRules" -}}
resetkeys resetchannels -@all +ping
{{- end }}

{{/* The probes' user: a Secret of your own need not have one. */}}
{{- define "kubealign.redis.probeUser" -}}
{{ ternary "probe" "dashboard" (empty .Values.redis.existingSecret) }}
{{- end }}

{{/* Action of the probes. A server that is busy with a script or is still loading does not answer PONG. */}}
{{- define "kubealign.redis.probe" -}}
{{- $redis := .Values.redis.embedded }}
{{- if $redis.cli }}
{{- $tls := ternary (list "--tls" "--cacert" "/etc/redis-secrets/ca.crt") list $redis.tls }}
exec:
  command: [sh, -c, 'test "$("$@")" = PONG', sh
    {{- range concat $redis.cli $tls (list "-h" "127.0.0.1" "--no-auth-warning" "--user" (include "kubealign.redis.probeUser" .) "ping") -}}
    , {{ . | quote }}
    {{- end -}}
    ]
timeoutSeconds: 5
{{- else }}
tcpSocket: {port: redis}
{{- end }}
{{- end }}

{{- define "kubealign.redis.secret" -}}
{{ default (include "kubealign.redis.name" .) .Values.redis.existingSecret }}
{{- end }}
