{{- define "inband.labels" -}}
app.kubernetes.io/name: inband
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The number of machines must be odd and at least three, so that a majority survives one. */ -}}
{{- define "inband.count" -}}
{{- $count := len .Values.nodes -}}
{{- if or (lt $count 3) (eq (mod $count 2) 0) -}}
{{- fail (printf "nodes: %d machines are given, a cluster needs 3 or 5; see values.yaml" $count) -}}
{{- end -}}
{{- $count -}}
{{- end }}
