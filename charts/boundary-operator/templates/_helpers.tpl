{{- define "boundary-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "boundary-operator.fullname" -}}
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

{{- define "boundary-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "boundary-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "boundary-operator.labels" -}}
{{ include "boundary-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "boundary-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "boundary-operator.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.create is false: name the service account in serviceAccount.name" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "boundary-operator.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "boundary-operator.tlsSecretName" -}}
{{- if .Values.planApi.tls.secretName -}}
{{- .Values.planApi.tls.secretName -}}
{{- else if .Values.planApi.tls.certManager.enabled -}}
{{- include "boundary-operator.fullname" . }}-plan-api
{{- else -}}
{{- fail "planApi.enabled needs a certificate: set planApi.tls.secretName, or planApi.tls.certManager.enabled" -}}
{{- end -}}
{{- end -}}

{{/*
The roles and bindings of a manifest in files/rbac, under the names of this release. Those files are
copies of config/rbac, so that what the operator may do is written in one place.
*/}}
{{- define "boundary-operator.rbac" -}}
{{- $fullname := include "boundary-operator.fullname" .root -}}
{{- $labels := include "boundary-operator.labels" .root | fromYaml -}}
{{- range $document := splitList "\n---\n" .text }}
{{- $object := fromYaml $document }}
{{- $metadata := $object.metadata }}
{{- $probe := and (eq $object.kind "Namespace") (eq $metadata.name "boundary-operator-probe") }}
{{- if or $probe (has $object.kind (list "ClusterRole" "ClusterRoleBinding" "Role" "RoleBinding")) }}
{{- if not $probe }}
{{- $_ := set $metadata "name" ($metadata.name | replace "boundary-operator" $fullname) }}
{{- end }}
{{- if eq (default "" $metadata.namespace) "boundary-operator" }}
{{- $_ := set $metadata "namespace" $.root.Release.Namespace }}
{{- end }}
{{- $_ := set $metadata "labels" (merge (default dict $metadata.labels) (deepCopy $labels)) }}
{{- with $object.roleRef }}
{{- $_ := set . "name" (.name | replace "boundary-operator" $fullname) }}
{{- end }}
{{- range $object.subjects }}
{{- $_ := set . "name" (include "boundary-operator.serviceAccountName" $.root) }}
{{- $_ := set . "namespace" $.root.Release.Namespace }}
{{- end }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}
{{- end -}}
