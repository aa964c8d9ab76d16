//! Random objects of the schemas that an API server publishes.

use berth_tests::dice::Dice;
use kube::Client;
use serde_json::{Map, Value, json};

/// How deep objects are nested.
const DEPTH: usize = 7;

/// Fields that no request may set, or that admission sets by others.
const LEFT_OUT: &[&str] = &[
    "clusterIP",
    "clusterIPs",
    "ephemeralContainers",
    "loadBalancerIP",
    "overhead",
    "nodeName",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "windowsOptions",
    "volumeName",
];

/// Objects with one of several fields, beside their name.
const UNIONS: &[(&str, &[&str])] = &[
    (
        "volume",
        &[
            "configMap",
            "secret",
            "emptyDir",
            "projected",
            "downwardAPI",
            "persistentVolumeClaim",
            "image",
            "csi",
            "ephemeral",
            "hostPath",
        ],
    ),
    (
        "source",
        &[
            "configMap",
            "secret",
            "downwardAPI",
            "serviceAccountToken",
            "clusterTrustBundle",
            "podCertificate",
        ],
    ),
    ("livenessProbe", &["exec", "httpGet", "tcpSocket", "grpc"]),
    ("readinessProbe", &["exec", "httpGet", "tcpSocket", "grpc"]),
    ("startupProbe", &["exec", "httpGet", "tcpSocket", "grpc"]),
    ("postStart", &["exec", "httpGet", "sleep"]),
    ("preStop", &["exec", "httpGet", "sleep"]),
    ("env", &["value", "valueFrom"]),
    (
        "valueFrom",
        &["configMapKeyRef", "secretKeyRef", "fieldRef", "resourceFieldRef"],
    ),
    ("envFrom", &["configMapRef", "secretRef"]),
    ("resourceClaim", &["resourceClaimName", "resourceClaimTemplateName"]),
    ("toleration", &["key", "operator"]),
    ("from", &["podSelector", "namespaceSelector", "ipBlock"]),
    ("to", &["podSelector", "namespaceSelector", "ipBlock"]),
    ("backend", &["service", "resource"]),
    ("request", &["exactly", "firstAvailable"]),
    ("schedulingGroup", &["podGroupName"]),
];

/// The schemas of one API group and version.
pub(super) struct Schemas(Map<String, Value>);

impl Schemas {
    /// Reads them from an API server: `api/v1`, `apis/networking.k8s.io/v1`.
    pub(super) async fn read(client: &Client, group_version: &str) -> Self {
        let request = http::Request::get(format!("/openapi/v3/{group_version}"))
            .body(Vec::new())
            .unwrap();
        let mut document: Value = client.request(request).await.unwrap();
        match document["components"]["schemas"].take() {
            Value::Object(schemas) => Self(schemas),
            other => panic!("schemas of {group_version}: {other}"),
        }
    }

    /// A random spec of a kind (the last part of its schema's name), and `None` for kinds without one.
    pub(super) fn spec(&self, dice: &mut Dice, kind: &str) -> Value {
        let (name, _) = self
            .0
            .iter()
            .find(|(name, schema)| {
                name.rsplit('.').next() == Some(kind) && schema["x-kubernetes-group-version-kind"].is_array()
            })
            .unwrap_or_else(|| panic!("no schema of {kind}"));
        let schema = self.resolve(&self.0[name]);
        let of_spec = &schema["properties"]["spec"];
        // The fields of an EndpointSlice are beside its metadata.
        if of_spec.is_null() {
            let mut whole = self.value(dice, schema, kind, 0);
            for own in ["apiVersion", "kind", "metadata", "status"] {
                whole.as_object_mut().unwrap().remove(own);
            }
            return whole;
        }
        self.value(dice, of_spec, "spec", 0)
    }

    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let reference = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
        match reference {
            Some(reference) => &self.0[reference.rsplit('/').next().unwrap_or_default()],
            None => schema,
        }
    }

    fn value(&self, dice: &mut Dice, schema: &Value, field: &str, depth: usize) -> Value {
        let schema = self.resolve(schema);
        let is_text = schema["type"] == "string";
        let known = known_values(field).filter(|known| known.iter().any(Value::is_string) == is_text);
        if let Some(known) = known.filter(|_| is_text || schema["type"] == "integer") {
            return known[dice.index(known.len())].clone();
        }
        if let Some(values) = schema["enum"].as_array() {
            return values[dice.index(values.len())].clone();
        }
        match schema["type"].as_str() {
            Some("object") => self.object(dice, schema, field, depth),
            Some("array") => self.list(dice, schema, field, depth),
            Some("boolean") => (dice.below(2) == 0).into(),
            Some("integer") if field.contains("ort") => pick(dice, &[80, 443, 8080, 31_000]).into(),
            Some("integer") => pick(dice, &[0, 1, 2, 3, 30, 80, 443, 600, 1000, 65_535]).into(),
            Some("string") if schema["format"] == "date-time" => "2026-01-01T00:00:00Z".into(),
            Some("string") if schema["format"] == "byte" => "QQ==".into(),
            Some("string") => pick(dice, &["a", "a1", "settings"]).into(),
            // A quantity, or a number or the name of a port.
            _ => {
                let port = schema["format"] == "int-or-string";
                let values = if port {
                    json!([1, 80, "http", "50%"])
                } else {
                    json!(["1", "100m", "1Gi"])
                };
                values[dice.index(values.as_array().unwrap().len())].clone()
            }
        }
    }

    fn list(&self, dice: &mut Dice, schema: &Value, field: &str, depth: usize) -> Value {
        let count = if depth >= DEPTH { 0 } else { 1 + dice.index(2) };
        let mut list: Vec<Value> = (0..count)
            .map(|_| self.value(dice, &schema["items"], singular(field), depth + 1))
            .collect();
        // Names that other fields refer to differ within a list.
        let first = match field {
            "initContainers" => "i",
            "containers" => "c",
            _ => "a",
        };
        if !["volumeMounts", "volumeDevices", "imagePullSecrets", "envFrom"].contains(&field) {
            for (index, named) in list.iter_mut().enumerate() {
                if let Some(name) = named.get_mut("name") {
                    *name = if index == 0 {
                        first.into()
                    } else {
                        format!("{first}{index}").into()
                    };
                }
            }
        }
        list.into()
    }

    fn object(&self, dice: &mut Dice, schema: &Value, field: &str, depth: usize) -> Value {
        let mut object = Map::new();
        if let Some(of_values) = schema["additionalProperties"].as_object() {
            let keys: &[&str] = match field {
                "nodeSelector" => &["kubernetes.io/os", "example.com/tier"],
                "requests" | "limits" | "overhead" | "capacity" => &["cpu", "memory", "ephemeral-storage", "storage"],
                _ => &["app", "example.com/tier", "tier"],
            };
            let of_values = Value::Object(of_values.clone());
            for _ in 0..=dice.below(2) {
                let key = keys[dice.index(keys.len())];
                object.insert(key.into(), self.value(dice, &of_values, "", depth + 1));
            }
            return object.into();
        }
        let Some(properties) = schema["properties"].as_object() else {
            return object.into();
        };
        if let Some((_, sources)) = UNIONS.iter().find(|(of, _)| *of == field) {
            let (mut one, source) = (Map::new(), sources[dice.index(sources.len())]);
            for name in ["name", source] {
                if let Some(of_field) = properties.get(name) {
                    one.insert(name.into(), self.value(dice, of_field, name, depth));
                }
            }
            return one.into();
        }
        let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
        // Of the fields of a spec about a third, below it fewer.
        let share = if depth >= DEPTH {
            0
        } else {
            35_u64.saturating_sub(3 * depth as u64)
        };
        for (name, of_field) in properties {
            if LEFT_OUT.contains(&name.as_str()) {
                continue;
            }
            if required.iter().any(|required| required == name) || dice.below(100) < share {
                object.insert(name.clone(), self.value(dice, of_field, name, depth + 1));
            }
        }
        object.into()
    }
}

fn pick<T: Copy>(dice: &mut Dice, values: &[T]) -> T {
    values[dice.index(values.len())]
}

fn singular(field: &str) -> &str {
    field.strip_suffix('s').unwrap_or(field)
}

/// Values of fields that mean something: what is offered to the tenant, and what API servers accept.
fn known_values(field: &str) -> Option<Vec<Value>> {
    let values = match field {
        "image" => json!([
            "docker.io/library/busybox:1.36",
            "registry.example.com/base/cuda",
            "localhost:5000/a@sha256:0000000000000000000000000000000000000000000000000000000000000000"
        ]),
        "reference" => json!(["docker.io/library/busybox"]),
        "topologyKey" => json!(["kubernetes.io/hostname", "topology.kubernetes.io/zone"]),
        "storageClassName" => json!(["fast"]),
        "ingressClassName" => json!(["nginx"]),
        "runtimeClassName" => json!(["gvisor"]),
        "schedulerName" => json!(["default-scheduler", "gangs"]),
        "namespace" | "serviceAccountName" | "serviceAccount" => json!(["default"]),
        "deviceClassName" => json!(["gpu"]),
        "host" => json!(["a.policies.example.com", "*.policies.example.com"]),
        "path" => json!(["/a", "/a/b", "a"]),
        "mountPath" | "devicePath" => json!(["/a", "/b/c"]),
        "subPath" | "subPathExpr" => json!(["a", "a/b"]),
        "loadBalancerSourceRange" => json!(["192.0.2.0/24"]),
        "ipFamilie" => json!(["IPv4"]),
        "cidr" => json!(["10.20.1.0/24", "192.0.2.0/24", "2001:db8::/64"]),
        "ip" | "clusterIP" | "addresse" | "nameserver" => json!(["192.0.2.7"]),
        "hostname" | "subdomain" => json!(["a", "b"]),
        "apiGroup" => json!(["", null, "snapshot.storage.k8s.io"]),
        "kind" => json!(["PersistentVolumeClaim", "VolumeSnapshot"]),
        "fieldPath" => json!([
            "metadata.name",
            "metadata.labels",
            "metadata.annotations['example.com/note']",
            "status.podIP",
            "metadata.uid"
        ]),
        "resource" => json!(["limits.cpu", "requests.memory"]),
        "audience" | "externalName" => json!(["a.example.com"]),
        "dnsPolicy" => json!(["ClusterFirst", "Default", "ClusterFirstWithHostNet"]),
        "claimName" | "nodeName" => json!(["a"]),
        "maxSkew" => json!([1, 2]),
        "driver" => json!(["scratch.example.com"]),
        "defaultMode" | "mode" => json!([0o400, 0o644]),
        "runAsUser" | "runAsGroup" | "fsGroup" | "supplementalGroup" => json!([1000, 65534]),
        "seconds" | "periodSecond" | "expirationSeconds" => json!([600, 3600]),
        "signerName" => json!(["example.com/signer"]),
        "expression" => json!(["true", "device.driver == 'gpu.example.com'"]),
        _ => return None,
    };
    values.as_array().cloned()
}
