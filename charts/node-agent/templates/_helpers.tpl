{{/* What every object of this release is called. */}}
{{- define "node-agent.fullname" -}}
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
{{- define "node-agent.outside" -}}
{{- printf "%s.%s" (include "node-agent.fullname" .) .Release.Namespace -}}
{{- end -}}

{{/* With the name of a node at its end: the account that may read the node's Secrets. */}}
{{- define "node-agent.secretsPrefix" -}}
{{- printf "%s-secrets-" (include "node-agent.fullname" .) -}}
{{- end -}}

{{/* Not empty: agents read Secrets, with a token of their node's account. */}}
{{- define "node-agent.readsSecrets" -}}
{{- if or .Values.nodes .Values.tls.enabled .Values.ceph.secretName -}}yes{{- end -}}
{{- end -}}

{{- define "node-agent.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "node-agent.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{ include "node-agent.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
app.kubernetes.io/part-of: cobaltcore
{{- end -}}

{{- define "node-agent.image" -}}
{{- with .Values.image -}}
{{- printf "%s/%s:%s" .registry .repository (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}

{{/* The groups of the host that the agent is a member of, as JSON. */}}
{{- define "node-agent.groups" -}}
{{- $groups := list -}}
{{- with .Values.libvirtGroup -}}{{- $groups = append $groups (int64 .) -}}{{- end -}}
{{- if .Values.tls.enabled -}}
{{- with .Values.tls.qemuGroup -}}{{- $groups = append $groups (int64 .) -}}{{- end -}}
{{- end -}}
{{- $groups | uniq | toJson -}}
{{- end -}}

{{/* Where the agent keeps heartbeats; the agent knows no other. */}}
{{- define "node-agent.leaseNamespace" -}}cobaltcore-node-lease{{- end -}}
