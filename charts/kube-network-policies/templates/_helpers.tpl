{{/* The name of all objects of the agent. It is fixed: a node has one agent. */}}
{{- define "agent.name" -}}netpol-agent{{- end }}

{{/* The name of all objects of the status writer. */}}
{{- define "writer.name" -}}netpol-status{{- end }}

{{- define "image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{/* The plural names of the administrators' kinds, with a comma between; empty unless they are
enabled. */}}
{{- define "kinds" -}}
{{- if .Values.adminPolicies -}}
adminnetworkpolicies, baselineadminnetworkpolicies, clusternetworkpolicies
{{- end -}}
{{- end }}

{{/* The same with /status. */}}
{{- define "kinds.status" -}}
{{ include "kinds" . | replace "ies" "ies/status" }}
{{- end }}

{{/* One argument for each flag of a map, in the order of their names. Numbers are whole, or
small, and never written with an exponent. */}}
{{- define "flags" -}}
{{- range $name, $value := . }}
{{- if not (kindIs "invalid" $value) }}
{{- if and (kindIs "float64" $value) (eq $value (floor $value)) }}{{ $value = int64 $value }}{{ end }}
- --{{ $name }}={{ $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* The arguments that agents and status writer have in common: they need the same values. */}}
{{- define "flags.common" -}}
{{- if .Values.adminPolicies }}
- --admin-policies
{{- end }}
{{- with .Values.featureGates }}
{{- $gates := list }}
{{- range $name, $enabled := . }}{{ $gates = append $gates (printf "%s=%v" $name $enabled) }}{{ end }}
- --feature-gates={{ join "," $gates }}
{{- end }}
{{- if .Values.audit }}
- --audit
{{- end }}
{{- end }}

{{/* Where a pod may run. */}}
{{- define "scheduling" -}}
priorityClassName: {{ .priorityClassName }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The port of the agent's metrics; empty if they are for the node alone. */}}
{{- define "agent.metrics.port" -}}
{{- $address := index .Values.agent.flags "metrics-bind-address" | default ":9080" -}}
{{- if not (regexMatch "^(127\\.|localhost:|\\[::1\\])" $address) }}{{ regexFind "[0-9]+$" $address }}{{ end -}}
{{- end }}

{{/* The annotations of a pod, from the chart's root, its own annotations and the port of its metrics. Many
a Prometheus finds pods by them. */}}
{{- define "annotations" -}}
{{- $root := index . 0 }}{{ $own := index . 1 }}{{ $port := index . 2 }}{{ $all := dict }}
{{- if $port }}
{{- $all = dict "prometheus.io/scrape" "true" "prometheus.io/port" ($port | toString) }}
{{- if $root.Values.metrics.secure.enabled }}{{ $_ := set $all "prometheus.io/scheme" "https" }}{{ end }}
{{- end }}
{{- with merge (deepCopy $own) $all }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The arguments of who may read the metrics, the volume with the certificate, and where it
is. */}}
{{- define "metrics.flags" -}}
{{- with .Values.metrics.secure }}{{ if .enabled }}
- --metrics-tls={{ if .certificateSecret }}/etc/kube-network-policies/tls{{ else }}self-signed{{ end }}
{{- end }}{{ end }}
{{- end }}

{{/* "true" if the status writer asks the agents. */}}
{{- define "asked" -}}
{{- if and .Values.statusWriter.enabled (index .Values.agent.flags "status-bind-address") }}true{{ end }}
{{- end }}

{{- define "metrics.mount" -}}
{{- with .Values.metrics.secure }}{{ if and .enabled .certificateSecret }}
- name: tls
  mountPath: /etc/kube-network-policies/tls
  readOnly: true
{{- end }}{{ end }}
{{- end }}

{{- define "metrics.volume" -}}
{{- with .Values.metrics.secure }}{{ if and .enabled .certificateSecret }}
- name: tls
  secret:
    secretName: {{ .certificateSecret }}
{{- end }}{{ end }}
{{- end }}

{{/* The labels of an object that "helm uninstall" creates, and when: those of lower weight first. */}}
{{- define "uninstall.hook" -}}
labels:
  app.kubernetes.io/name: {{ index . 0 }}
annotations:
  helm.sh/hook: post-delete
  helm.sh/hook-weight: {{ index . 1 | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
