{{- define "isotach.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "isotach.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "isotach.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "isotach.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Labels that tell a component's pods from all others; never changed by an upgrade. Call with (list $ "component"). */}}
{{- define "isotach.selector" -}}
app.kubernetes.io/name: {{ include "isotach.name" (index . 0) }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "isotach.labels" -}}
{{ include "isotach.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version | replace "+" "_" }}
{{- with (index . 0).Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A pod's metadata. Call with (list $ "component" values); a changed ConfigMap starts the pods anew. */}}
{{- define "isotach.podMetadata" -}}
labels:
  {{- include "isotach.labels" . | nindent 2 }}
  {{- with (index . 2).podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $files := include "isotach.files" (index . 0) }}
{{- if or $files (index . 2).podAnnotations }}
annotations:
  {{- if $files }}
  isotach/files: {{ sha256sum $files }}
  {{- end }}
  {{- with (index . 2).podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Call with (list $ "agent"|"server"). */}}
{{- define "isotach.image" -}}
{{- $image := index (index . 0).Values.images (index . 1) }}
{{- $name := $image.repository }}
{{- with (index . 0).Values.images.registry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) $name }}{{ end }}
{{- if $image.digest }}{{ printf "%s@%s" $name $image.digest }}
{{- else }}{{ printf "%s:%s" $name (default (index . 0).Chart.AppVersion $image.tag) }}
{{- end }}
{{- end }}

{{/* What every pod has but its containers and volumes. Call with (list $ "component" values account mountToken). */}}
{{- define "isotach.pod" -}}
{{- $root := index . 0 }}{{ $values := index . 2 }}
serviceAccountName: {{ index . 3 }}
automountServiceAccountToken: {{ index . 4 }}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65534
  runAsGroup: 65534
  fsGroup: 65534
  seccompProfile: {type: RuntimeDefault}
{{- with $root.Values.images.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Replicas apart, where there is room. */}}
{{- define "isotach.apart" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "isotach.selector" . | nindent 8 }}
{{- end }}

{{- define "isotach.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "isotach.kafkaArgs" -}}
{{- with .Values.kafka }}
- --bootstrap
- {{ .bootstrap | quote }}
{{- with .topicPrefix }}
- --topic-prefix
- {{ . | quote }}
{{- end }}
- --telemetry-partitions
- {{ .telemetryPartitions | int | quote }}
- --replication
- {{ .replication | int | quote }}
{{- with .securityProtocol }}
- --kafka-security-protocol
- {{ . }}
{{- end }}
{{- if .sasl.username }}
- --kafka-sasl-mechanism
- {{ .sasl.mechanism }}
- --kafka-username
- {{ .sasl.username | quote }}
- --kafka-password-file
- /etc/isotach/kafka-password/{{ .sasl.passwordKey }}
{{- end }}
{{- if .tls.existingSecret }}
- --kafka-ca-file
- /etc/isotach/kafka-ca/{{ .tls.caKey }}
{{- end }}
{{- if .config.existingSecret }}
- --kafka-config
- /etc/isotach/kafka-config/{{ .config.key }}
{{- end }}
{{- end }}
{{- end }}

{{/* Names and keys of the Secrets that are mounted: one a line, `name secret key`. Call with (list $ withToken). */}}
{{- define "isotach.secrets" -}}
{{- $values := (index . 0).Values }}
{{- if $values.kafka.enabled }}
{{- if $values.kafka.sasl.username }}
kafka-password {{ $values.kafka.sasl.existingSecret }} {{ $values.kafka.sasl.passwordKey }}
{{- end }}
{{- with $values.kafka.tls.existingSecret }}
kafka-ca {{ . }} {{ $values.kafka.tls.caKey }}
{{- end }}
{{- with $values.kafka.config.existingSecret }}
kafka-config {{ . }} {{ $values.kafka.config.key }}
{{- end }}
{{- end }}
{{- if and (index . 1) $values.token.existingSecret }}
token {{ $values.token.existingSecret }} {{ $values.token.key }}
{{- end }}
{{- end }}

{{- define "isotach.secretVolumes" -}}
{{- range splitList "\n" (include "isotach.secrets" . | trim) }}
{{- if . }}
{{- $parts := splitList " " . }}
- name: {{ index $parts 0 }}
  secret:
    secretName: {{ index $parts 1 | quote }}
    defaultMode: 0440
    items:
      - {key: {{ index $parts 2 }}, path: {{ index $parts 2 }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "isotach.secretMounts" -}}
{{- range splitList "\n" (include "isotach.secrets" . | trim) }}
{{- if . }}
- {name: {{ index (splitList " " .) 0 }}, mountPath: /etc/isotach/{{ index (splitList " " .) 0 }}, readOnly: true}
{{- end }}
{{- end }}
{{- end }}

{{/* Texts that the chart keeps in its ConfigMap. */}}
{{- define "isotach.files" -}}
{{- if .Values.topology.content }}
topology: {{ .Values.topology.content | quote }}
{{- end }}
{{- if .Values.xidPolicy.content }}
xid-policy.yaml: {{ .Values.xidPolicy.content | quote }}
{{- end }}
{{- end }}

{{/* Call with (list $ "topology"|"xidPolicy"): the ConfigMap that has it, or nothing. */}}
{{- define "isotach.fileMap" -}}
{{- $file := index (index . 0).Values (index . 1) }}
{{- if $file.existingConfigMap }}{{ $file.existingConfigMap }}
{{- else if $file.content }}{{ include "isotach.fullname" (index . 0) }}-files
{{- end }}
{{- end }}

{{- define "isotach.fileKey" -}}
{{- $file := index (index . 0).Values (index . 1) }}
{{- if $file.existingConfigMap }}{{ $file.key }}{{ else if eq (index . 1) "topology" }}topology{{ else }}xid-policy.yaml{{ end }}
{{- end }}

{{/* Arguments, volumes and mounts of files. Call with (list $ (list "topology" "xidPolicy")). */}}
{{- define "isotach.fileArgs" -}}
{{- $root := index . 0 }}
{{- range $file := index . 1 }}
{{- if include "isotach.fileMap" (list $root $file) }}
- {{ ternary "--topology" "--xid-policy" (eq $file "topology") }}
- /etc/isotach/{{ kebabcase $file }}/{{ include "isotach.fileKey" (list $root $file) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "isotach.fileVolumes" -}}
{{- $root := index . 0 }}
{{- range $file := index . 1 }}
{{- with include "isotach.fileMap" (list $root $file) }}
- name: {{ kebabcase $file }}
  configMap: {name: {{ . | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "isotach.fileMounts" -}}
{{- $root := index . 0 }}
{{- range $file := index . 1 }}
{{- if include "isotach.fileMap" (list $root $file) }}
- {name: {{ kebabcase $file }}, mountPath: /etc/isotach/{{ kebabcase $file }}, readOnly: true}
{{- end }}
{{- end }}
{{- end }}

{{/* How an agent sends: to Kafka, or to the one process of a site without. */}}
{{- define "isotach.agentArgs" -}}
{{- if .Values.kafka.enabled }}
{{- include "isotach.kafkaArgs" . }}
{{- else }}
- --server
- http://{{ include "isotach.fullname" . }}-serve:{{ .Values.serve.service.port | int }}
{{- if .Values.token.existingSecret }}
- --token-file
- /etc/isotach/token/{{ .Values.token.key }}
{{- end }}
{{- end }}
- --log-level
- {{ .Values.logLevel }}
{{- include "isotach.metricsArgs" . }}
{{- end }}

{{- define "isotach.metricsArgs" }}
- --metrics-host
- {{ .Values.listen | quote }}
- --metrics-port
- "9470"
{{- end }}

{{/* What values say together and cannot be; the schema has said the rest. */}}
{{- define "isotach.check" -}}
{{- with .Values }}
{{- if and .kafka.enabled (not .kafka.bootstrap) }}
{{- fail "kafka.bootstrap is needed (host:port,...); for a site without Kafka set kafka.enabled=false" }}
{{- end }}
{{- if ne (empty .kafka.sasl.username) (empty .kafka.sasl.existingSecret) }}
{{- fail "kafka.sasl.username needs kafka.sasl.existingSecret, the Secret with the password: give both or neither" }}
{{- end }}
{{- if and .agent.enabled .dcgm.enabled }}
{{- fail "agent.enabled and dcgm.enabled would report every GPU twice: set one of them to false" }}
{{- end }}
{{- if and (not .token.existingSecret) (not .token.anonymous) }}
{{- fail "token.existingSecret is needed, the Secret with the token that writers present to the API; without any token set token.anonymous=true: who reaches the API can then pin a GPU's tier" }}
{{- end }}
{{- if and .token.existingSecret .token.anonymous }}
{{- fail "token.existingSecret and token.anonymous contradict each other: set one of them" }}
{{- end }}
{{- range $name := list "topology" "xidPolicy" }}
{{- $file := index $.Values $name }}
{{- if and $file.content $file.existingConfigMap }}
{{- fail (printf "%s.content and %s.existingConfigMap: give one of them" $name $name) }}
{{- end }}
{{- end }}
{{- if and .agent.jobs (not (has .agent.collector (list "nvml" "auto"))) }}
{{- fail (printf "agent.jobs would not be used with agent.collector %s: only nvml sees processes" .agent.collector) }}
{{- end }}
{{- if and .agent.kernelLog (not (has .agent.collector (list "nvml" "auto"))) }}
{{- fail (printf "agent.kernelLog would not be used with agent.collector %s: only nvml reads the kernel's log" .agent.collector) }}
{{- end }}
{{- end }}
{{- end }}
