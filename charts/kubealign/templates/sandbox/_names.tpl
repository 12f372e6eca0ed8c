{{- define "kubealign.sandbox.name" -}}
{{ include "kubealign.fullname" . }}-sandbox
{{- end }}

{{/* Name of the port, which is also its protocol. */}}
{{- define "kubealign.sandbox.scheme" -}}
{{ ternary "https" "http" (not (empty .Values.sandbox.tlsSecret)) }}
{{- end }}
