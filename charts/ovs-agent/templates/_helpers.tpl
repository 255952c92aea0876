{{/* What every object of this release is called. */}}
{{- define "ovs-agent.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What lies outside of the release's namespace has it in its name, so that releases of the same
name do not meet. */}}
{{- define "ovs-agent.outside" -}}
{{- printf "%s.%s" (include "ovs-agent.fullname" .) .Release.Namespace -}}
{{- end -}}

{{- define "ovs-agent.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "ovs-agent.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{ include "ovs-agent.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
app.kubernetes.io/part-of: cobaltcore
{{- end -}}

{{- define "ovs-agent.image" -}}
{{- with .Values.image -}}
{{- printf "%s/%s:%s" .registry .repository (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}

{{/* The account that `cobalt ovs` asks with, and what is named after it. Not of the release's name:
people and their tools have to find it. */}}
{{- define "ovs-agent.diagnostics" -}}
cobalt-ovs-diagnostics
{{- end -}}

{{/* Whether captures are possible: yes, or nothing. */}}
{{- define "ovs-agent.captures" -}}
{{- with .Values -}}
{{- if and .diagnostics.enabled .diagnostics.capture .hostNetwork (not .socketGroup) -}}
yes
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Where a probe asks: the chart's values and the path. With the host's network only the node asks. */}}
{{- define "ovs-agent.probe" -}}
{{- $root := index . 0 -}}
path: {{ index . 1 }}
port: {{ $root.Values.health.port }}
{{- if $root.Values.hostNetwork }}
host: 127.0.0.1
{{- end }}
{{- end -}}
