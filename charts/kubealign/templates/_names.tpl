{{- define "kubealign.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Prefix of all object names, short enough for their suffixes. */}}
{{- define "kubealign.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "kubealign.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "kubealign.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Arguments: context, component. */}}
{{- define "kubealign.selector" -}}
app.kubernetes.io/name: {{ include "kubealign.name" .context }}
app.kubernetes.io/instance: {{ .context.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Arguments: context, component. */}}
{{- define "kubealign.labels" -}}
{{ include "kubealign.selector" . }}
app.kubernetes.io/version: {{ .context.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: kubealign
app.kubernetes.io/managed-by: {{ .context.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .context.Chart.Name .context.Chart.Version | replace "+" "_" }}
{{- with .context.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Annotations of an object, a line break before them; empty: none. Arguments: context, the object's own annotations. */}}
{{- define "kubealign.annotations" }}
{{- $own := dict }}
{{- if gt (len .) 1 }}
{{- $own = index . 1 | default dict }}
{{- end }}
{{- with merge dict $own (index . 0).Values.commonAnnotations }}
{{- printf "\n  annotations:%s" (toYaml . | nindent 4) }}
{{- end }}
{{- end }}

{{/* Labels of a pod. Without the chart version: a new chart version alone restarts no pods. Arguments: context, component, values. */}}
{{- define "kubealign.podLabels" -}}
{{ include "kubealign.selector" . }}
{{- with merge dict .values.podLabels .context.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Arguments: context, image. */}}
{{- define "kubealign.image" -}}
{{- $repository := .image.repository }}
{{- with (.context.Values.global).imageRegistry }}
{{- /* The first part of a repository is a registry if it has a dot or a port, or is localhost. */}}
{{- $path := regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $repository "" }}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) $path }}
{{- end }}
{{- if .image.digest }}
{{- printf "%s@%s" $repository .image.digest }}
{{- else }}
{{- printf "%s:%s" $repository (default .context.Chart.AppVersion .image.tag) }}
{{- end }}
{{- end }}
