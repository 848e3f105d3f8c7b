{{/* Values of earlier versions are errors that say what to write instead. */}}
{{- define "removed" -}}
{{- if hasKey .Values "kinds" }}
{{- fail "kinds was removed: write adminPolicies: true, for all kinds of administrators' policies that the cluster serves" }}
{{- end }}
{{- if hasKey .Values.statusWriter "denials" }}
{{- fail "statusWriter.denials was removed: kubectl netpol flows --denied shows what is denied" }}
{{- end }}
{{- $always := "is no value any more, see docs/flags.md: remove it" }}
{{- $collector := "was removed: an OpenTelemetry collector can read what agent.flags.flow-log writes" }}
{{- $mark := "was removed: agent.flags.mark is a mask of two bits, such as 0x1800" }}
{{- include "removed.flags" (list "agent.flags" .Values.agent.flags (dict
  "block-established" $always
  "block-mark" $mark
  "cni-cache-dir" "was removed: write the folder as agent.flags.pod-address-source"
  "divert" $always
  "early-udp" $always
  "evaluation-memory" $always
  "fail-open-internal-error" "was removed: write agent.flags.fail-open: internal-error"
  "fail-open-queue-full" "was removed: write agent.flags.fail-open: queue-full"
  "fail-open-unknown-packet" "was removed: write agent.flags.fail-open: unknown-packet"
  "max-crashes" $always
  "max-pod-watches" $always
  "nfqueue-count" $always
  "otlp-ca-file" $collector
  "otlp-endpoint" $collector
  "otlp-interval" $collector
  "pod-share" $always
  "pod-watches" "was removed: all pods are watched"
  "remember-mark" $mark
  "snapshot-cache-max-age" $always
)) }}
{{- include "removed.flags" (list "statusWriter.flags" .Values.statusWriter.flags (dict
  "events" $always
  "status-burst" $always
  "status-qps" $always
)) }}
{{- with .Values.agent.flags }}
{{- if kindIs "bool" (index . "fail-open") }}
{{- fail (printf "agent.flags.fail-open: %v was replaced: write no-agent for true, and remove it for false" (index . "fail-open")) }}
{{- end }}
{{- if eq (toString (index . "pod-address-source")) "cni-cache" }}
{{- fail "agent.flags.pod-address-source: cni-cache was replaced: write the folder, /var/lib/cni/results" }}
{{- end }}
{{- $bit := 1 }}
{{- range until 32 }}
{{- if eq (int64 (index $.Values.agent.flags "mark")) (int64 $bit) }}
{{- fail (printf "agent.flags.mark: %#x is one bit: write the mask of two, such as 0x1800" $bit) }}
{{- end }}
{{- $bit = mul $bit 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "removed.flags" -}}
{{- $path := index . 0 }}{{ $flags := index . 1 }}
{{- range $name, $instead := index . 2 }}
{{- if not (kindIs "invalid" (index $flags $name)) }}
{{- fail (printf "%s.%s %s" $path $name $instead) }}
{{- end }}
{{- end }}
{{- end }}
