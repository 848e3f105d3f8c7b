{{/* The name of all objects of the agent. It is fixed: a node has one agent. */}}
{{- define "agent.name" -}}kube-network-policies{{- end }}

{{/* The name of all objects of the status writer. */}}
{{- define "writer.name" -}}kube-network-policies-status{{- end }}

{{- define "image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{/* The plural names of the administrators' kinds that are enabled, with a comma between. */}}
{{- define "kinds" -}}
{{- $kinds := list -}}
{{- range list "adminNetworkPolicy" "baselineAdminNetworkPolicy" "clusterNetworkPolicy" -}}
{{- if index $.Values.kinds . -}}
{{- $kinds = append $kinds (printf "%sies" (lower . | trimSuffix "y")) -}}
{{- end -}}
{{- end -}}
{{- join ", " $kinds -}}
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
{{- range $name, $enabled := .Values.kinds }}
{{- if $enabled }}
- --{{ kebabcase $name }}
{{- end }}
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

{{/* The arguments of who may read the metrics, the volume with the certificate, and where it
is. */}}
{{- define "metrics.flags" -}}
{{- with .Values.metrics.secure }}{{ if .enabled }}
- --metrics-secure
{{- if .certificateSecret }}
- --metrics-tls-cert-file=/etc/kube-network-policies/tls/tls.crt
- --metrics-tls-private-key-file=/etc/kube-network-policies/tls/tls.key
{{- end }}
{{- end }}{{ end }}
{{- end }}

{{/* The arguments of who asks the agents what their policies denied. */}}
{{- define "denials.flags" -}}
{{- if .Values.statusWriter.denials.enabled }}
{{- $address := index .Values.agent.flags "metrics-bind-address" | default ":9080" -}}
{{- if not (and .Values.metrics.secure.enabled .Values.metrics.secure.certificateSecret) }}
{{- fail "statusWriter.denials.enabled: needs metrics.secure.enabled and metrics.secure.certificateSecret" }}
{{- end }}
{{- if regexMatch "^(127\\.|localhost:|\\[::1\\]:)" $address }}
{{- fail (printf "statusWriter.denials.enabled: the status writer does not reach agent.flags.metrics-bind-address: %s" $address) }}
{{- end }}
- --denials-port={{ regexFind "[0-9]+$" $address }}
- --denials-ca-file=/etc/kube-network-policies/tls/ca.crt
- --denials-token-file=/var/run/secrets/kube-network-policies/agents/token
{{- end }}
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
