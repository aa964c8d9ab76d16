//! Where the class gives a capability, a policy takes the place of the host's own check of the Pod Security level `baseline`.

use super::{StolenCredential, with};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

const CONTAINERS: [&str; 2] = ["containers", "initContainers"];

/// A pod with one container in this list.
fn of_list(list: &str, more: &Value) -> Value {
    json!({list: [with(&json!({"name": "d", "image": "i"}), more)]})
}

pub(super) async fn baseline_with_a_capability(credential: &StolenCredential, admin: &Client) {
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    let namespace = namespaces.get(&credential.namespace).await.unwrap();
    assert_eq!(namespace.labels()["pod-security.kubernetes.io/enforce"], "privileged");

    for allowed in [
        json!({"securityContext": {"capabilities": {"add": ["IPC_LOCK", "CHOWN"], "drop": ["ALL"]}}}),
        json!({"securityContext": {"privileged": false, "procMount": "Default", "seLinuxOptions": {"type": "container_t"},
            "seccompProfile": {"type": "RuntimeDefault"}, "appArmorProfile": {"type": "RuntimeDefault"}}}),
        json!({"ports": [{"containerPort": 80}]}),
    ] {
        for list in CONTAINERS {
            credential
                .expect_allowed(&credential.pod(&of_list(list, &allowed)))
                .await;
        }
    }
    let context = |more: Value| json!({"securityContext": more});
    for (message, container) in [
        (
            "capabilities.add",
            context(json!({"capabilities": {"add": ["SYS_ADMIN"]}})),
        ),
        (
            "capabilities.add",
            context(json!({"capabilities": {"add": ["NET_RAW"]}})),
        ),
        (
            "capabilities.add",
            context(json!({"capabilities": {"add": ["CAP_IPC_LOCK"]}})),
        ),
        (
            "capabilities.add",
            context(json!({"capabilities": {"add": ["CAP_CHOWN"]}})),
        ),
        ("capabilities.add", context(json!({"capabilities": {"add": ["ALL"]}}))),
        ("securityContext", context(json!({"privileged": true}))),
        (
            "securityContext",
            context(json!({"seccompProfile": {"type": "Unconfined"}})),
        ),
        (
            "securityContext",
            context(json!({"appArmorProfile": {"type": "Unconfined"}})),
        ),
        ("securityContext", context(json!({"seLinuxOptions": {"type": "spc_t"}}))),
        ("securityContext", context(json!({"seLinuxOptions": {"user": "u"}}))),
        ("securityContext", context(json!({"seLinuxOptions": {"role": "r"}}))),
        ("hostPort", json!({"ports": [{"containerPort": 80, "hostPort": 80}]})),
    ] {
        for list in CONTAINERS {
            credential
                .expect_denied(message, &credential.pod(&of_list(list, &container)))
                .await;
        }
    }
    hosts_of_handlers(credential).await;
    // Other values of procMount need a user namespace.
    let unmasked = with(
        &of_list("containers", &context(json!({"procMount": "Unmasked"}))),
        &json!({"hostUsers": false}),
    );
    credential.expect_denied("procMount", &credential.pod(&unmasked)).await;
    for (message, spec) in [
        ("spec.hostNetwork", json!({"hostNetwork": true})),
        ("spec.hostNetwork", json!({"hostPID": true})),
        ("spec.hostNetwork", json!({"hostIPC": true})),
        (
            "spec.securityContext",
            context(json!({"seccompProfile": {"type": "Unconfined"}})),
        ),
        (
            "spec.securityContext",
            context(json!({"appArmorProfile": {"type": "Unconfined"}})),
        ),
        (
            "spec.securityContext",
            context(json!({"seLinuxOptions": {"role": "r"}})),
        ),
        (
            "sysctls",
            context(json!({"sysctls": [{"name": "kernel.msgmax", "value": "1"}]})),
        ),
    ] {
        credential.expect_denied(message, &credential.pod(&spec)).await;
    }
    let safe = context(json!({"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]}));
    credential.expect_allowed(&credential.pod(&safe)).await;
}

/// A kubelet would connect from the node.
async fn hosts_of_handlers(credential: &StolenCredential) {
    let http = json!({"httpGet": {"host": "169.254.169.254", "port": 80}});
    let tcp = json!({"tcpSocket": {"host": "169.254.169.254", "port": 80}});
    for call in [http, tcp] {
        for (handler, own) in [
            ("livenessProbe", call.clone()),
            ("readinessProbe", call.clone()),
            ("startupProbe", call.clone()),
            ("lifecycle", json!({"preStop": call})),
            ("lifecycle", json!({"postStart": call})),
        ] {
            let pod = credential.pod(&of_list("containers", &json!({handler: own})));
            credential.expect_denied("hostPort", &pod).await;
            // Of init containers, sidecars have handlers.
            let sidecar = json!({"restartPolicy": "Always", handler: own});
            let pod = credential.pod(&of_list("initContainers", &sidecar));
            credential.expect_denied("hostPort", &pod).await;
        }
    }
    let calls_itself = json!({"lifecycle": {"preStop": {"httpGet": {"port": 80}}}});
    credential
        .expect_allowed(&credential.pod(&of_list("containers", &calls_itself)))
        .await;
}
