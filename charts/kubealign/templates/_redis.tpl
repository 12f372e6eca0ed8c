{{- define "kubealign.redis.name" -}}
{{ include "kubealign.fullname" . }}-redis
{{- end }}

{{/* As pods of any namespace resolve it; empty: there is none. */}}
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

{{/* The Secret whose ca.crt vouches for Redis; empty: there is none, or the images' own trust is enough. */}}
{{- define "kubealign.redis.caSecret" -}}
{{- if eq (include "kubealign.redis.tls" .) "true" }}
{{- ternary (include "kubealign.redis.secret" .) .Values.redis.external.caSecret .Values.redis.embedded.enabled }}
{{- end }}
{{- end }}

{{- define "kubealign.redis.secret" -}}
{{ default (include "kubealign.redis.name" .) .Values.redis.existingSecret }}
{{- end }}
