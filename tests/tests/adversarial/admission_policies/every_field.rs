//! What an intact syncer writes: for each kind an object with every field that translation passes on, and one with as few as it may have. No policy may deny
//! one of them, nor fail on a field that the API server adds.
//!
//! What the API server answers is what policies see: fields that it writes as null have to be known to the policies.

use super::{StolenCredential, shared_nodes, with};
use berth_admission_policies::{LeftOut, NULL_FIELDS, READ_NULL_FIELDS};
use berth_api::labels;
use serde_json::{Value, json};
use std::collections::BTreeSet;

pub(super) async fn of_each_kind(credential: &StolenCredential) {
    let kinds = [
        pods(credential),
        services_and_endpoints(credential),
        configuration(credential),
        network_policies(credential),
        storage(credential),
        devices(credential),
        ingresses(credential),
        routes(credential),
    ];
    let mut nulls = BTreeSet::new();
    for object in kinds.concat() {
        match credential.create(&object).await {
            Ok(created) => find_nulls(&created.data, "object", &mut nulls),
            Err(error) => panic!("a policy denies what an intact syncer writes: {error}: {object}"),
        }
    }
    let seen = { NULL_FIELDS.iter() }.filter(|known| known.left_out == LeftOut::SeenAsNull);
    let known: BTreeSet<_> = seen
        .map(|known| (known.parent.to_owned(), known.field.to_owned()))
        .collect();
    let unknown: Vec<_> = nulls.difference(&known).collect();
    assert!(unknown.is_empty(), "fields that NULL_FIELDS lacks: {unknown:?}");
    for (parent, field) in READ_NULL_FIELDS {
        let field = (parent.to_owned(), field.to_owned());
        assert!(nulls.contains(&field), "{field:?} is not null: {nulls:?}");
    }
}

/// The fields of an object that are null, each with the field around it, as in [`NULL_FIELDS`].
fn find_nulls(value: &Value, parent: &str, found: &mut BTreeSet<(String, String)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if value.is_null() {
                    found.insert((parent.to_owned(), name.clone()));
                }
                find_nulls(value, name, found);
            }
        }
        Value::Array(items) => {
            let items_of = format!("{parent}[]");
            for item in items {
                find_nulls(item, &items_of, found);
            }
        }
        _ => {}
    }
}

fn pods(credential: &StolenCredential) -> Vec<Value> {
    let metadata = json!({
        "labels": {"pod.berth.dev/app": "a", "net.berth.dev/egress": "open", "job-name": "train", "example.com/tier": "gold"},
        "annotations": {"example.com/note": "n", "tools.example.com/a": "b", "kubernetes.io/egress-bandwidth": "10M",
            "downward.berth.dev/a": "b", labels::APPLIED_KEYS: "labels=;annotations=;gates="},
    });
    let full = with(&placement_of_pod(credential), &rest_of_pod());
    let full = with(&full, &volumes_of_pod());
    let with_device = json!({
        "containers": [{"name": "c", "image": "i", "volumeDevices": [{"name": "raw", "devicePath": "/dev/raw"}]}],
        "volumes": [{"name": "raw", "persistentVolumeClaim": {"claimName": "raw"}}, {"name": "none", "projected": {}}],
    });
    vec![
        with(&credential.pod(&full), &json!({ "metadata": metadata })),
        with(
            &shared_nodes::pod(credential, &without_devices(&full)),
            &json!({ "metadata": metadata }),
        ),
        credential.pod(&with_device),
        credential.pod(&json!({})),
    ]
}

/// The spec of a pod that may run on shared nodes: without devices and capabilities of the class, and with other terms about nodes.
fn without_devices(spec: &Value) -> Value {
    let gpu = json!({"nvidia.com/gpu": null});
    let main = json!({"resources": {"limits": gpu, "requests": gpu, "claims": null},
        "securityContext": {"capabilities": {"add": ["CHOWN"]}}});
    let other = json!({
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": null}},
        "containers": [with(&container(), &main)],
        "nodeSelector": null,
        "resourceClaims": null,
    });
    with(spec, &other)
}

/// What of a pod's spec decides where it runs.
fn placement_of_pod(credential: &StolenCredential) -> Value {
    let selector = json!({"matchLabels": {"pod.berth.dev/app": "a"},
        "matchExpressions": [{"key": "berth.dev/namespace", "operator": "In", "values": ["a", "b"]}]});
    let near = json!({"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"});
    let pods = json!({"requiredDuringSchedulingIgnoredDuringExecution": [near],
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": near}]});
    let term = json!({"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}],
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["own"]}]});
    let nodes = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term}]});
    let own = json!({"key": labels::TENANT, "operator": "Equal", "value": credential.slug, "effect": "NoExecute"});
    let briefly =
        json!({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30});
    json!({
        "affinity": {"nodeAffinity": nodes, "podAffinity": pods, "podAntiAffinity": pods},
        "nodeSelector": {"disk": "ssd"},
        "priorityClassName": "berth-policies-3-never",
        "runtimeClassName": "gvisor",
        "schedulerName": "gangs",
        "schedulingGates": [{"name": "example.com/quota"}],
        "tolerations": [own, briefly],
        "topologySpreadConstraints": [{"maxSkew": 1, "minDomains": 1, "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector, "nodeAffinityPolicy": "Honor", "nodeTaintsPolicy": "Honor"}],
    })
}

/// The rest of a pod's spec, but volumes.
fn rest_of_pod() -> Value {
    let profile = json!({"type": "RuntimeDefault"});
    let security = json!({"appArmorProfile": profile, "fsGroup": 1000, "fsGroupChangePolicy": "OnRootMismatch", "runAsGroup": 1000,
        "runAsNonRoot": true, "runAsUser": 1000, "seLinuxOptions": {"type": "container_t", "level": "s0:c1,c2"},
        "seccompProfile": profile, "supplementalGroups": [2000],
        "sysctls": [{"name": "net.ipv4.ip_local_port_range", "value": "1024 65000"}]});
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 5, "terminationGracePeriodSeconds": 30});
    let beside =
        json!({"image": "i", "imagePullPolicy": "Always", "securityContext": {"capabilities": {"drop": ["NET_RAW"]}}});
    let sidecar = with(
        &beside,
        &json!({"name": "sidecar", "restartPolicy": "Always", "startupProbe": probe}),
    );
    let init = with(&beside, &json!({"name": "init", "env": [{"name": "A", "value": "b"}]}));
    json!({
        "activeDeadlineSeconds": 3600,
        "containers": [container()],
        "dnsConfig": {"nameservers": ["10.96.0.99"], "searches": ["a.svc.cluster.local"], "options": [{"name": "ndots", "value": "5"}]},
        "dnsPolicy": "None",
        "hostAliases": [{"ip": "192.0.2.1", "hostnames": ["a.example.com"]}],
        "hostUsers": false,
        "hostname": "train-0",
        "imagePullSecrets": [{"name": "registry"}],
        "initContainers": [sidecar, init],
        "os": {"name": "linux"},
        "readinessGates": [{"conditionType": "example.com/ready"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}, {"name": "made", "resourceClaimTemplateName": "t"}],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
        "restartPolicy": "Never",
        "securityContext": security,
        "serviceAccountName": "s3-reader",
        "setHostnameAsFQDN": true,
        "shareProcessNamespace": true,
        "subdomain": "train",
        "terminationGracePeriodSeconds": 60,
    })
}

fn container() -> Value {
    let local = |name: &str| json!({"type": "Localhost", "localhostProfile": name});
    let http = |port: Value| {
        json!({"httpGet": {"path": "/health", "port": port, "scheme": "HTTP",
        "httpHeaders": [{"name": "X-A", "value": "b"}]}})
    };
    let times = json!({"initialDelaySeconds": 1, "periodSeconds": 5, "timeoutSeconds": 2, "successThreshold": 1, "failureThreshold": 3,
        "terminationGracePeriodSeconds": 30});
    let from = |source: Value| json!({"name": "V", "valueFrom": source});
    json!({
        "name": "c",
        "image": "registry.example.com/base/cuda:12",
        "imagePullPolicy": "Always",
        "command": ["run"],
        "args": ["-v"],
        "env": [
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
            {"name": "EMPTY"},
            from(json!({"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}})),
            from(json!({"resourceFieldRef": {"containerName": "c", "resource": "limits.cpu", "divisor": "1m"}})),
            from(json!({"configMapKeyRef": {"name": "m", "key": "k", "optional": true}})),
            from(json!({"secretKeyRef": {"name": "s", "key": "k", "optional": true}})),
        ],
        "envFrom": [{"prefix": "APP_", "configMapRef": {"name": "m", "optional": true}}, {"secretRef": {"name": "s"}}],
        "lifecycle": {"postStart": {"exec": {"command": ["true"]}}, "preStop": http(json!("web"))},
        "livenessProbe": with(&http(json!(8080)), &times),
        "readinessProbe": {"grpc": {"port": 9000}},
        "startupProbe": with(&json!({"tcpSocket": {"port": "web"}}), &times),
        "ports": [{"name": "web", "containerPort": 8080, "protocol": "TCP"}],
        "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
        "resources": {"limits": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"},
            "requests": {"cpu": "500m", "memory": "512Mi", "nvidia.com/gpu": "1"}, "claims": [{"name": "gpu", "request": "r"}]},
        "securityContext": {"allowPrivilegeEscalation": false, "appArmorProfile": local("p"),
            "capabilities": {"add": ["NET_BIND_SERVICE", "IPC_LOCK"], "drop": ["ALL"]}, "readOnlyRootFilesystem": true,
            "runAsGroup": 1000, "runAsNonRoot": true, "runAsUser": 1000,
            "seLinuxOptions": {"type": "container_t", "level": "s0:c1,c2"}, "seccompProfile": local("p.json")},
        "stdin": true,
        "stdinOnce": true,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "tty": true,
        "volumeMounts": [
            {"name": "settings", "mountPath": "/settings", "readOnly": true, "subPath": "a"},
            {"name": "scratch", "mountPath": "/scratch", "subPathExpr": "$(EMPTY)", "mountPropagation": "HostToContainer"},
        ],
        "workingDir": "/w",
    })
}

/// A container that comes into a pod with the volume `v`. Of the fields of a container, it may not have all.
pub(super) fn ephemeral_container() -> Value {
    let env_from = json!([{"prefix": "APP_", "configMapRef": {"name": "m", "optional": true}}]);
    let security = json!({"allowPrivilegeEscalation": false, "capabilities": {"add": ["CHOWN"], "drop": ["ALL"]},
        "readOnlyRootFilesystem": true, "runAsGroup": 1000, "runAsNonRoot": true, "runAsUser": 1000,
        "seLinuxOptions": {"type": "container_t", "level": "s0:c1,c2"}, "seccompProfile": {"type": "RuntimeDefault"}});
    json!({
        "name": "all",
        "image": "i",
        "imagePullPolicy": "Always",
        "command": ["sh"],
        "args": ["-c", "true"],
        "env": [{"name": "A", "value": "b"}, {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "envFrom": env_from,
        "securityContext": security,
        "stdin": true,
        "stdinOnce": true,
        "targetContainerName": "c",
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "tty": true,
        "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true}],
        "workingDir": "/w",
    })
}

fn volumes_of_pod() -> Value {
    let field = json!({"apiVersion": "v1", "fieldPath": "metadata.annotations['downward.berth.dev/a']"});
    let downward = json!([{"path": "a", "mode": 256, "fieldRef": field},
        {"path": "cpu", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu", "divisor": "1m"}}]);
    let items = json!([{"key": "k", "path": "p", "mode": 256}]);
    let token = json!({"path": "t", "audience": "sts.example.com", "expirationSeconds": 3600});
    json!({"volumes": [
        {"name": "settings", "configMap": {"name": "m", "defaultMode": 420, "items": items, "optional": true}},
        {"name": "secret", "secret": {"secretName": "s", "defaultMode": 256, "items": items, "optional": true}},
        {"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        {"name": "about", "downwardAPI": {"defaultMode": 420, "items": downward}},
        {"name": "all", "projected": {"defaultMode": 420, "sources": [
            {"secret": {"name": "s", "items": items, "optional": true}}, {"configMap": {"name": "m"}},
            {"downwardAPI": {"items": downward}}, {"serviceAccountToken": token}]}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "c", "readOnly": true}},
        {"name": "inline", "csi": {"driver": "scratch.example.com", "readOnly": true, "fsType": "ext4",
            "volumeAttributes": {"size": "1Gi"}, "nodePublishSecretRef": {"name": "s"}}},
        {"name": "model", "image": {"reference": "registry.example.com/base/cuda:12", "pullPolicy": "Always"}},
    ]})
}

fn services_and_endpoints(credential: &StolenCredential) -> Vec<Value> {
    let port = json!({"name": "web", "port": 80, "targetPort": "web", "protocol": "TCP", "appProtocol": "http"});
    let service = |more: &Value| credential.object("v1", "Service", more);
    let full = service(&json!({
        "metadata": {"labels": {"pool": "a"}, "annotations": {"metallb.io/address-pool": "a"}},
        "spec": {"type": "NodePort", "selector": {"pod.berth.dev/app": "a"}, "ports": [port], "externalTrafficPolicy": "Cluster",
            "internalTrafficPolicy": "Cluster", "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "publishNotReadyAddresses": true,
            "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}, "trafficDistribution": "PreferClose"},
    }));
    let headless =
        json!({"metadata": {"labels": {"service.kubernetes.io/headless": ""}}, "spec": {"clusterIP": "None"}});
    let managed =
        json!({"endpointslice.kubernetes.io/managed-by": "syncer.berth.dev", "kubernetes.io/service-name": "s"});
    let slice = |more: &Value| {
        let base = json!({"metadata": {"labels": managed}, "addressType": "IPv4"});
        credential.object("discovery.k8s.io/v1", "EndpointSlice", &with(&base, more))
    };
    let endpoint = json!({"addresses": ["10.1.1.1"], "conditions": {"ready": true, "serving": true, "terminating": false},
        "hostname": "a", "nodeName": "own", "zone": "z", "hints": {"forZones": [{"name": "z"}]}});
    let port = json!({"name": "db", "port": 5432, "protocol": "TCP", "appProtocol": "postgresql"});
    vec![
        full,
        service(&json!({"spec": {"ports": [{"port": 80}]}})),
        service(&headless),
        slice(&json!({"endpoints": [endpoint], "ports": [port]})),
        slice(&json!({"endpoints": [{"addresses": ["10.1.1.1"]}], "ports": [{"name": "db"}]})),
        slice(&json!({"endpoints": [], "ports": []})),
        slice(&json!({})),
    ]
}

fn configuration(credential: &StolenCredential) -> Vec<Value> {
    let map = |more: &Value| credential.object("v1", "ConfigMap", more);
    let secret = |more: &Value| credential.object("v1", "Secret", more);
    let budget = |spec: &Value| credential.object("policy/v1", "PodDisruptionBudget", &json!({"spec": spec}));
    let selector = json!({"matchLabels": {"pod.berth.dev/app": "a"},
        "matchExpressions": [{"key": "berth.dev/namespace", "operator": "In", "values": ["a"]}]});
    vec![
        map(&json!({"data": {"a": "b"}, "binaryData": {"c": "ZA=="}, "immutable": true})),
        map(&json!({})),
        secret(&json!({"data": {"a": "YQ=="}, "type": "example.com/login", "immutable": true})),
        secret(&json!({})),
        budget(&json!({"minAvailable": "50%", "selector": selector, "unhealthyPodEvictionPolicy": "AlwaysAllow"})),
        budget(&json!({"maxUnavailable": 1})),
    ]
}

fn network_policies(credential: &StolenCredential) -> Vec<Value> {
    let policy = |spec: &Value| credential.object("networking.k8s.io/v1", "NetworkPolicy", &json!({"spec": spec}));
    let selector = json!({"matchLabels": {"pod.berth.dev/app": "a"},
        "matchExpressions": [{"key": "berth.dev/namespace", "operator": "Exists"}]});
    let pods = json!({"podSelector": selector});
    let ports = json!([{"port": 80, "endPort": 90, "protocol": "TCP"}, {"port": "web"}, {"protocol": "UDP"}]);
    let namespace = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}});
    let from = json!([pods, namespace, {"ipBlock": {"cidr": "198.51.100.0/24", "except": ["198.51.100.0/28"]}}]);
    let to = json!([pods, {"ipBlock": {"cidr": "10.20.0.0/16", "except": ["10.20.7.0/24"]}}, {"ipBlock": {"cidr": "10.20.1.0/24"}}]);
    vec![
        policy(&json!({"podSelector": selector, "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": from, "ports": ports}], "egress": [{"to": to, "ports": ports}]})),
        policy(&json!({"podSelector": {}, "ingress": [], "egress": []})),
        policy(&json!({"podSelector": {}})),
    ]
}

fn storage(credential: &StolenCredential) -> Vec<Value> {
    let base = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}});
    let claim = |more: &Value| credential.object("v1", "PersistentVolumeClaim", &json!({"spec": with(&base, more)}));
    let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "monday"});
    let other = json!({"kind": "PersistentVolumeClaim", "name": "other"});
    let spec = json!({"source": {"persistentVolumeClaimName": "c"}, "volumeSnapshotClassName": "daily"});
    vec![
        claim(
            &json!({"resources": {"limits": {"storage": "2Gi"}}, "volumeMode": "Block", "dataSource": snapshot, "dataSourceRef": snapshot}),
        ),
        claim(&json!({"dataSource": other, "dataSourceRef": other})),
        claim(&json!({"dataSource": with(&other, &json!({"apiGroup": ""}))})),
        claim(&json!({})),
        credential.object("snapshot.storage.k8s.io/v1", "VolumeSnapshot", &json!({"spec": spec})),
    ]
}

fn devices(credential: &StolenCredential) -> Vec<Value> {
    let selectors = json!([{"cel": {"expression": "device.attributes['gpu.example.com'].model == 'H100'"}}]);
    let toleration = json!({"key": "gpu.example.com/unhealthy", "operator": "Exists", "effect": "NoSchedule"});
    let exactly = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2, "selectors": selectors,
        "tolerations": [toleration], "capacity": {"requests": {"memory": "40Gi"}}});
    let alternatives = json!([{"name": "big", "deviceClassName": "gpu", "allocationMode": "All"},
        {"name": "small", "deviceClassName": "gpu", "count": 1, "selectors": selectors, "tolerations": [toleration]}]);
    let opaque =
        json!({"driver": "gpu.example.com", "parameters": {"kind": "GpuConfig", "sharing": {"strategy": "MPS"}}});
    let full = json!({
        "requests": [{"name": "gpu", "exactly": exactly}, {"name": "any", "firstAvailable": alternatives}],
        "constraints": [{"matchAttribute": "gpu.example.com/numa", "requests": ["gpu"]}],
        "config": [{"requests": ["gpu"], "opaque": opaque}],
    });
    let few = json!({"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]});
    let all = [full, few, json!({})];
    let objects = all.iter().flat_map(|devices| {
        let spec = json!({"devices": devices});
        let template = json!({"spec": {"spec": spec}});
        [
            credential.object("resource.k8s.io/v1", "ResourceClaim", &json!({"spec": spec})),
            credential.object("resource.k8s.io/v1", "ResourceClaimTemplate", &template),
        ]
    });
    objects.collect()
}

fn ingresses(credential: &StolenCredential) -> Vec<Value> {
    let ingress = |rules: Value, more: &Value| {
        let spec = with(&json!({"ingressClassName": "nginx", "rules": rules}), more);
        credential.object("networking.k8s.io/v1", "Ingress", &json!({"spec": spec}))
    };
    let host = "shop.policies.example.com";
    let path = |port: Value, path_type: &str| json!({"path": "/a", "pathType": path_type, "backend": {"service": {"name": "s", "port": port}}});
    let without_path =
        json!({"pathType": "ImplementationSpecific", "backend": {"service": {"name": "s", "port": {"number": 1}}}});
    let paths = json!([
        path(json!({"name": "web"}), "Prefix"),
        path(json!({"number": 80}), "Exact"),
        without_path
    ]);
    let annotations = json!({"metadata": {"annotations": {"nginx.ingress.kubernetes.io/proxy-body-size": "8m"}}});
    vec![
        with(
            &ingress(
                json!([{"host": host, "http": {"paths": paths}}]),
                &json!({"tls": [{"hosts": [host], "secretName": "s"}, {"hosts": [host]}]}),
            ),
            &annotations,
        ),
        // Without paths, as few as it may have.
        ingress(json!([{"host": host}]), &json!({})),
    ]
}

fn routes(credential: &StolenCredential) -> Vec<Value> {
    let parent = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "edge", "name": "public",
        "sectionName": "https", "port": 443});
    let route = |kind: (&str, &str), rules: Value| {
        let spec = json!({"parentRefs": [parent], "hostnames": ["a.policies.example.com"], "rules": rules});
        credential.object(kind.0, kind.1, &json!({"spec": spec}))
    };
    let header = json!([{"name": "X-A", "value": "b; c"}]);
    let modifier = json!({"set": header, "add": header, "remove": ["X-B"]});
    let backend = json!({"name": "s", "port": 80});
    let redirected = json!({"type": "ReplaceFullPath", "replaceFullPath": "/b"});
    let rewritten = json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"});
    let modifies = json!({"type": "RequestHeaderModifier", "requestHeaderModifier": modifier});
    let filters = json!([
        modifies,
        {"type": "ResponseHeaderModifier", "responseHeaderModifier": modifier},
        {"type": "RequestMirror", "requestMirror": {"backendRef": backend, "fraction": {"numerator": 1, "denominator": 100}}},
        {"type": "RequestMirror", "requestMirror": {"backendRef": backend, "percent": 10}},
        {"type": "RequestRedirect", "requestRedirect": {"scheme": "https", "hostname": "b.example.com", "port": 443, "statusCode": 301, "path": redirected}},
        {"type": "URLRewrite", "urlRewrite": {"hostname": "b.example.com", "path": rewritten}},
        {"type": "CORS", "cors": {"allowOrigins": ["https://*.example.com"], "allowMethods": ["GET", "*"], "allowHeaders": ["X-A"],
            "exposeHeaders": ["X-A"], "allowCredentials": true, "maxAge": 600}},
    ]);
    let matches = json!([{"path": {"type": "PathPrefix", "value": "/api"}, "method": "GET",
        "headers": [{"type": "Exact", "name": "X-A", "value": "b"}], "queryParams": [{"type": "RegularExpression", "name": "q", "value": "[0-9]+"}]}]);
    let full = json!({
        "name": "all",
        "matches": matches,
        "filters": filters,
        "backendRefs": [{"name": "s", "port": 80, "weight": 1, "filters": filters}],
        "timeouts": {"request": "10s", "backendRequest": "500ms"},
        "retry": {"codes": [503], "attempts": 2, "backoff": "100ms"},
        "sessionPersistence": {"sessionName": "s", "absoluteTimeout": "1h", "idleTimeout": "10m", "type": "Cookie",
            "cookieConfig": {"lifetimeType": "Permanent"}},
    });
    let call = json!({"type": "Exact", "service": "shop.v1.Cart", "method": "Add"});
    let calls = json!({"name": "all", "matches": [{"method": call, "headers": header}], "filters": [modifies],
        "backendRefs": [{"name": "s", "port": 80, "weight": 1, "filters": [modifies]}], "sessionPersistence": {"sessionName": "s"}});
    let grpc = ("gateway.networking.k8s.io/v1", "GRPCRoute");
    let http = ("gateway.networking.k8s.io/v1", "HTTPRoute");
    let tls = ("gateway.networking.k8s.io/v1alpha2", "TLSRoute");
    vec![
        route(http, json!([full])),
        route(http, json!([{}])),
        route(http, json!([])),
        route(grpc, json!([calls])),
        route(grpc, json!([{}])),
        route(
            tls,
            json!([{"name": "all", "backendRefs": [{"name": "db", "port": 5432, "weight": 1}]}]),
        ),
    ]
}
