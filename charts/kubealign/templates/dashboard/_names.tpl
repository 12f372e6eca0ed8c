{{- define "kubealign.dashboard.name" -}}
{{ include "kubealign.fullname" . }}-dashboard
{{- end }}

{{/* Name of the port, which is also its protocol. */}}
{{- define "kubealign.dashboard.scheme" -}}
{{ ternary "https" "http" .Values.dashboard.tls.enabled }}
{{- end }}

{{/* Port of the Service. */}}
{{- define "kubealign.dashboard.servicePort" -}}
{{ ternary 443 80 .Values.dashboard.tls.enabled }}
{{- end }}

{{- define "kubealign.dashboard.tlsSecret" -}}
{{ default (printf "%s-tls" (include "kubealign.dashboard.name" .)) .Values.dashboard.tls.existingSecret }}
{{- end }}

{{- define "kubealign.dashboard.scraper" -}}
{{ include "kubealign.dashboard.name" . }}-scraper
{{- end }}

{{- define "kubealign.dashboard.scraperSecret" -}}
{{ default (include "kubealign.dashboard.scraper" .) .Values.serviceMonitor.jobs.existingSecret }}
{{- end }}

{{/* Read rights of the dashboard on jobs and their objects; callers are authorized separately. */}}
{{- define "kubealign.dashboard.rules" -}}
- apiGroups: [kubealign.dev]
  resources: [alignmentjobs]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
{{- end }}
