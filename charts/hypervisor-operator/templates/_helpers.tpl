{{/* What every object of this release is called. */}}
{{- define "hypervisor-operator.fullname" -}}
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
{{- define "hypervisor-operator.outside" -}}
{{- printf "%s.%s" (include "hypervisor-operator.fullname" .) .Release.Namespace -}}
{{- end -}}

{{- define "hypervisor-operator.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "hypervisor-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{ include "hypervisor-operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
app.kubernetes.io/part-of: cobaltcore
{{- end -}}

{{- define "hypervisor-operator.image" -}}
{{- with .Values.image -}}
{{- printf "%s/%s:%s" .registry .repository (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}

{{/* Where the node agents keep heartbeats; they know no other. */}}
{{- define "hypervisor-operator.leaseNamespace" -}}cobaltcore-node-lease{{- end -}}

{{- define "hypervisor-operator.agentNamespaces" -}}
{{- default (list .Release.Namespace) .Values.agents.namespaces | uniq | join "," -}}
{{- end -}}

{{/* Where the accounts are that read a node's Secrets: beside that of the agents. */}}
{{- define "hypervisor-operator.readersNamespace" -}}
{{- default .Release.Namespace .Values.agents.secretReaders.namespace -}}
{{- end -}}

{{- define "hypervisor-operator.certificateNamespace" -}}
{{- default .Release.Namespace .Values.certificates.namespace -}}
{{- end -}}

{{/* The metadata of a Role, and of its binding: (list root name namespace). */}}
{{- define "hypervisor-operator.metadata" -}}
metadata:
  name: {{ index . 1 }}
  namespace: {{ index . 2 }}
  labels: {{- include "hypervisor-operator.labels" (index . 0) | nindent 4 }}
{{- end -}}

{{/* Gives the Role of the same arguments to the operator. */}}
{{- define "hypervisor-operator.binding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
{{ include "hypervisor-operator.metadata" . }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ index . 1 }}
subjects:
  - kind: ServiceAccount
    name: {{ include "hypervisor-operator.fullname" (index . 0) }}
    namespace: {{ (index . 0).Release.Namespace }}
{{- end -}}
