{{- define "kubealign.dashboard.name" -}}
{{ include "kubealign.fullname" . }}-dashboard
{{- end }}

{{/* The port's name, which is its protocol too. */}}
{{- define "kubealign.dashboard.scheme" -}}
{{ ternary "https" "http" .Values.dashboard.tls.enabled }}
{{- end }}

{{/* The Service's port. */}}
{{- define "kubealign.dashboard.servicePort" -}}
{{ ternary 443 80 .Values.dashboard.tls.enabled }}
{{- end }}

{{- define "kubealign.dashboard.tlsSecret" -}}
{{ default (printf "%s-tls" (include "kubealign.dashboard.name" .)) .Values.dashboard.tls.existingSecret }}
{{- end }}

{{/* What it reads of jobs and what belongs to them, for everybody whom the cluster lets see it. */}}
{{- define "kubealign.dashboard.rules" -}}
- apiGroups: [kubealign.dev]
  resources: [alignmentjobs]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
{{- end }}
