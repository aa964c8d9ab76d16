{{/* One installation a cluster: roles, lease and labels have fixed names, and so has the namespace. */}}
{{- define "berth.check" -}}
{{- if ne .Release.Namespace "berth-system" -}}
{{- fail "Berth is installed into the namespace berth-system: helm install berth … --namespace berth-system --create-namespace" -}}
{{- end -}}
{{- if and .Values.datastore.etcd.enabled .Values.datastore.external.endpoints -}}
{{- fail "either datastore.etcd.enabled or datastore.external.endpoints: set datastore.etcd.enabled=false to use another etcd" -}}
{{- end -}}
{{- /* `helm template` looks up nothing. */ -}}
{{- $installed := lookup "apps/v1" "StatefulSet" .Release.Namespace "berth-etcd" -}}
{{- if $installed -}}
{{- if .Values.datastore.etcd.enabled -}}
{{- /* Further members would begin an empty database of their own, beside the first one; of three, one alone serves nothing. The selector of the
StatefulSet says the same, and cannot change. */ -}}
{{- $isAlone := has "--listen-peer-urls=https://127.0.0.1:2380" ((first $installed.spec.template.spec.containers).command | default list) -}}
{{- if ne $isAlone (eq (int (.Values.datastore.etcd.members | default 1)) 1) -}}
{{- fail (printf "datastore.etcd.members cannot change after the installation: set datastore.etcd.members=%d, which is installed" (ternary 1 3 $isAlone)) -}}
{{- end -}}
{{- else if not $installed.spec.volumeClaimTemplates -}}
{{- fail "datastore.etcd.enabled=false would delete the etcd that is installed, which has no volumes, and with it all objects of all tenants: delete the StatefulSet berth-etcd before if nothing in it is needed" -}}
{{- else if eq (dig "spec" "persistentVolumeClaimRetentionPolicy" "whenDeleted" "Retain" $installed) "Delete" -}}
{{- fail "datastore.etcd.enabled=false would delete the etcd that is installed, with its volumes and all objects of all tenants: set datastore.etcd.persistence.keep=true in an upgrade before" -}}
{{- end -}}
{{- end -}}
{{- if .Values.datastore.etcd.enabled -}}
{{- with lookup "apps/v1" "Deployment" .Release.Namespace "berth-control" -}}
{{- range (first .spec.template.spec.containers).args -}}
{{- if hasPrefix "--datastore-endpoint=" . -}}
{{- fail "control uses an etcd of your own, and datastore.etcd.enabled=true would give all tenants an empty one: set datastore.etcd.enabled=false and datastore.external, or delete the Deployment berth-control before" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (not .Values.datastore.etcd.enabled) (or (not .Values.datastore.external.endpoints) (not .Values.datastore.external.authoritySecret)) -}}
{{- fail "without datastore.etcd.enabled, datastore.external.endpoints and datastore.external.authoritySecret are needed" -}}
{{- end -}}
{{- with .Values.gpuMetrics -}}
{{- /* Control refuses the same, see --prometheus-token. */ -}}
{{- if and .tokenSecret (hasPrefix "http://" .url) (not .allowInsecureToken) (not (regexMatch "^http://(localhost|127[.]0[.]0[.]1|[[]::1[]])(:|/|$)" .url)) -}}
{{- fail "the token in gpuMetrics.tokenSecret would be sent without encryption: use an https URL in gpuMetrics.url, or set gpuMetrics.allowInsecureToken=true if the network is protected otherwise" -}}
{{- end -}}
{{- end -}}
{{- /* Values of an older release do not have it. */ -}}
{{- with .Values.snapshots -}}
{{- /* Control refuses the same, and would not start. */ -}}
{{- if and .url (hasPrefix "http://" (.endpoint | default "")) (not .allowHTTP) -}}
{{- fail "snapshots would be sent without encryption: use an https URL in snapshots.endpoint, or set snapshots.allowHTTP=true if the network is protected otherwise" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.networkPolicies.enabled (not .Values.networkPolicies.metricsFrom) -}}
{{- range $name := list "serviceMonitor" "podMonitor" -}}
{{- with get $.Values.monitoring $name -}}
{{- if and .enabled .labels -}}
{{- fail (printf "monitoring.%s.labels are for a Prometheus that no metrics would reach: name it in networkPolicies.metricsFrom, for example namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.gateway -}}
{{- if and .enabled (not .domain) -}}
{{- fail "gateway.enabled needs gateway.domain: the API server of a tenant is <tenant>.<namespace>.<domain>" -}}
{{- end -}}
{{- with .tlsRoute -}}
{{- if and .enabled (not .parentRefs) -}}
{{- fail "gateway.tlsRoute.enabled needs gateway.tlsRoute.parentRefs: the Gateway, and its listener with protocol TLS and mode Passthrough" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Programs of Berth with metrics. */}}
{{- define "berth.monitored" -}}
[berth-control, berth-etcd{{ with .Values.gateway }}{{ if .enabled }}, berth-gateway{{ end }}{{ end }}]
{{- end -}}

{{/* Peers of a NetworkPolicy, of a list of them. No selector of namespaces selects those of tenants: control adds the same. */}}
{{- define "berth.peersOutsideTenants" -}}
{{- $none := dict "key" "berth.dev/role" "operator" "DoesNotExist" -}}
{{- range $peer := deepCopy . }}
{{- if hasKey $peer "namespaceSelector" }}
{{- $_ := set $peer.namespaceSelector "matchExpressions" (append ($peer.namespaceSelector.matchExpressions | default list) $none) }}
{{- end }}
- {{ toYaml $peer | nindent 2 | trim }}
{{- end }}
{{- end -}}

{{- define "berth.labels" -}}
app.kubernetes.io/part-of: berth
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (replace "+" "_" .Chart.Version) }}
{{- end -}}

{{/* A repository, in global.imageRegistry if that is set: the registry's host is replaced, the path stays. Values of an older
release do not have it. */}}
{{- define "berth.repository" -}}
{{- $registry := (.root.Values.global | default dict).imageRegistry | default "" | trimSuffix "/" -}}
{{- if $registry -}}
{{- $parts := splitList "/" .repository -}}
{{- $host := first $parts -}}
{{- $hasHost := or (contains "." $host) (contains ":" $host) (eq $host "localhost") -}}
{{ $registry }}{{ range ternary (rest $parts) $parts $hasHost }}/{{ . }}{{ end }}
{{- else -}}
{{ .repository }}
{{- end -}}
{{- end -}}

{{/* The full name of an image: what nodes fetch is decided by the digest if there is one, and the tag is for people. */}}
{{- define "berth.image" -}}
{{ include "berth.repository" (dict "root" .root "repository" .image.repository) }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- with .image.digest }}@{{ . }}{{ end }}
{{- end -}}

{{- define "berth.controlImage" -}}
{{ include "berth.image" (dict "root" . "image" .Values.control.image) }}
{{- end -}}

{{- define "berth.imagePullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Of every pod. Environment variables of programs begin with BERTH_, as those would that the kubelet makes of Services here. */}}
{{- define "berth.podSecurity" -}}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "berth.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "berth.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
{{ toYaml . | indent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Away from each other, as far as there are nodes. */}}
{{- define "berth.apart" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
  - weight: 100
    podAffinityTerm:
      topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels: {app.kubernetes.io/name: {{ . }}}
{{- end -}}

{{/* Over zones, as far as there are nodes. */}}
{{- define "berth.overZones" -}}
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: topology.kubernetes.io/zone
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {app.kubernetes.io/name: {{ . }}}
{{- end -}}

{{/* Secret of the authority that signs the datastore's certificates. */}}
{{- define "berth.authoritySecret" -}}
{{- if .Values.datastore.etcd.enabled -}}berth-etcd-ca{{- else -}}{{ .Values.datastore.external.authoritySecret }}{{- end -}}
{{- end -}}

{{- define "berth.certificatesPod" -}}
spec:
  serviceAccountName: berth-certificates
  restartPolicy: OnFailure
  {{- include "berth.imagePullSecrets" . | nindent 2 }}
  {{- include "berth.podSecurity" . | nindent 2 }}
  {{- include "berth.placement" .Values.control | nindent 2 }}
  containers:
  - name: certificates
    image: {{ include "berth.controlImage" . }}
    imagePullPolicy: {{ .Values.control.image.pullPolicy }}
    args:
    - certificates
    - --namespace={{ .Release.Namespace }}
    - --service=berth-etcd
    - --peers=berth-etcd-peers
    - --authority-secret=berth-etcd-ca
    - --server-secret=berth-etcd-server
    - --peer-authority-secret=berth-etcd-peer-ca
    - --peer-secret=berth-etcd-peer
    - --log-format={{ .Values.control.logFormat }}
    resources:
      requests: {cpu: 10m, memory: 32Mi}
      limits: {memory: 128Mi}
    {{- include "berth.containerSecurity" . | nindent 4 }}
{{- end -}}

{{/* "8Gi" as a number of bytes; etcd takes no units. */}}
{{- define "berth.bytes" -}}
{{- $size := . -}}
{{- if hasSuffix "Gi" $size -}}{{ mul (trimSuffix "Gi" $size | int64) 1073741824 }}
{{- else -}}{{ mul (trimSuffix "Mi" $size | int64) 1048576 }}
{{- end -}}
{{- end -}}
