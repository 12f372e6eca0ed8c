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

{{- define "kubealign.redis.user" -}}
{{ ternary "operator" .Values.redis.external.user .Values.redis.embedded.enabled }}
{{- end }}

{{/* The Secret with Redis' CA certificate as ca.crt; empty: none, or the images' trusted certificates suffice. */}}
{{- define "kubealign.redis.caSecret" -}}
{{- if eq (include "kubealign.redis.tls" .) "true" }}
{{- ternary (include "kubealign.redis.secret" .) .Values.redis.external.caSecret .Values.redis.embedded.enabled }}
{{- end }}
{{- end }}

{{- define "kubealign.redis.secret" -}}
{{ default (include "kubealign.redis.name" .) .Values.redis.existingSecret }}
{{- end }}
