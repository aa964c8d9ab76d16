//! The add-ons of every cluster: DNS for Services, and the metrics API.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::images::{USER, catalog};

const NAMESPACE: &str = "kube-system";

/// DNS and the metrics API, in pods with this node selector.
pub(super) fn objects(dns: Ipv4Addr, node_selector: &Value) -> Vec<Value> {
    let mut all = coredns(dns, node_selector);
    all.extend(metrics_server(node_selector));
    all
}

fn meta(name: &str) -> Value {
    json!({"name": name, "namespace": NAMESPACE, "labels": {"k8s-app": name}})
}

/// A Deployment of one replica.
fn deployment(name: &str, pod: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta(name),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"k8s-app": name}},
            "template": {"metadata": {"labels": {"k8s-app": name}}, "spec": pod},
        },
    })
}

fn account(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta(name)})
}

/// A binding of a service account here to a ClusterRole.
fn binding(name: &str, account: &str, role: &str) -> Value {
    let group = "rbac.authorization.k8s.io";
    json!({
        "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}],
    })
}

fn cluster_role(name: &str, rules: &Value) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules,
    })
}

fn coredns(address: Ipv4Addr, node_selector: &Value) -> Vec<Value> {
    const NAME: &str = "kube-dns";
    // Nothing outside the cluster is reachable: other names do not exist. They have a block of their own, since CoreDNS runs
    // `template` before `kubernetes`, in whatever order they are written.
    let corefile = "\
cluster.local:5353 in-addr.arpa:5353 ip6.arpa:5353 {
    errors
    health :8080
    ready :8181
    kubernetes cluster.local in-addr.arpa ip6.arpa
    cache 10
}
.:5353 {
    errors
    template ANY ANY {
        rcode NXDOMAIN
    }
}
";
    let role = "system:coredns";
    vec![
        account(NAME),
        cluster_role(
            role,
            &json!([
                {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
            ]),
        ),
        binding(role, NAME, role),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(NAME), "data": {"Corefile": corefile}}),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": meta(NAME),
            "spec": {
                "clusterIP": address,
                "selector": {"k8s-app": NAME},
                "ports": [
                    {"name": "dns", "port": 53, "targetPort": 5353, "protocol": "UDP"},
                    {"name": "dns-tcp", "port": 53, "targetPort": 5353, "protocol": "TCP"},
                ],
            },
        }),
        deployment(
            NAME,
            &json!({
                "serviceAccountName": NAME,
                "nodeSelector": node_selector,
                "containers": [{
                    "name": "coredns",
                    "image": catalog::COREDNS,
                    "args": ["-conf", "/etc/coredns/Corefile"],
                    "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
                    "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
                    "securityContext": {"runAsUser": USER, "readOnlyRootFilesystem": true},
                }],
                "volumes": [{"name": "config", "configMap": {"name": NAME}}],
            }),
        ),
    ]
}

fn metrics_server(node_selector: &Value) -> Vec<Value> {
    const NAME: &str = "metrics-server";
    let role = "system:metrics-server";
    vec![
        account(NAME),
        cluster_role(
            role,
            &json!([
                {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
                {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]},
            ]),
        ),
        binding(role, NAME, role),
        binding("metrics-server:system:auth-delegator", NAME, "system:auth-delegator"),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": meta("metrics-server-auth-reader"),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "extension-apiserver-authentication-reader"},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": meta(NAME),
            "spec": {"selector": {"k8s-app": NAME}, "ports": [{"port": 443, "targetPort": 10250}]},
        }),
        json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": "v1beta1.metrics.k8s.io"},
            "spec": {
                "group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
                "service": {"name": NAME, "namespace": NAMESPACE},
                "insecureSkipTLSVerify": true,
            },
        }),
        deployment(
            NAME,
            &json!({
                "serviceAccountName": NAME,
                "nodeSelector": node_selector,
                "containers": [{
                    "name": NAME,
                    "image": catalog::METRICS_SERVER,
                    "args": [
                        "--secure-port=10250",
                        "--cert-dir=/tmp",
                        "--kubelet-preferred-address-types=InternalIP",
                        // Kubelets here have certificates of the cluster's own authority.
                        "--kubelet-certificate-authority=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt",
                        // The shortest that it accepts; the kubelet's timeout must be shorter still, and by default is not.
                        "--metric-resolution=10s",
                        "--kubelet-request-timeout=5s",
                    ],
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                    "securityContext": {"runAsUser": USER, "readOnlyRootFilesystem": true},
                }],
                "volumes": [{"name": "tmp", "emptyDir": {}}],
            }),
        ),
    ]
}
