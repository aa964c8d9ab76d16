//! What the tenant's API server connects to on behalf of the team: webhooks and proxies to its own pods and Services, and
//! nothing else; the team gets a message that says why.

use crate::{
    pods::{IMAGE, SOON, Space, only, pod, server, with},
    teams::{speech, vision},
};
use base64::Engine as _;
use berth_pki::{CertificateAuthority, LeafRequest, Usage};
use berth_tests::{test_cluster::TestCluster, wait::until};
use k8s_openapi::api::{admissionregistration::v1::ValidatingWebhookConfiguration, core::v1::ConfigMap};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

const DAY: Duration = Duration::from_hours(24);

/// A webhook for ConfigMaps with a label, called at `client`.
fn webhook(name: &str, client: &Value) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
    "metadata": {"name": name},
    "webhooks": [{
        "name": format!("{name}.example.com"), "clientConfig": client, "admissionReviewVersions": ["v1"],
        "sideEffects": "None", "failurePolicy": "Fail", "timeoutSeconds": 10,
        "objectSelector": {"matchLabels": {"ask": name}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
    }]})
}

/// Creates a ConfigMap that a webhook validates; returns the error that the team gets.
async fn call_webhook(space: &Space, name: &str) -> Result<(), String> {
    let maps: Api<ConfigMap> = space.api();
    let map = serde_json::from_value(json!({"metadata": {"generateName": "asked-", "labels": {"ask": name}}})).unwrap();
    let result = maps.create(&PostParams::default(), &map).await;
    result.map(|_| ()).map_err(|error| error.to_string())
}

/// Creates a webhook, waits until the answer of a call contains `message`, and deletes it.
async fn answers(space: &Space, name: &str, client: Value, message: &str) {
    space.apply(webhook(name, &client)).await;
    until(
        &format!("the webhook {name} says {message}"),
        SOON,
        async || match call_webhook(space, name).await {
            Err(said) if said.contains(message) => Ok(()),
            other => Err(other),
        },
    )
    .await;
    let hooks: Api<ValidatingWebhookConfiguration> = Api::all(space.client.clone());
    hooks.delete(name, &DeleteParams::default()).await.unwrap();
}

pub(crate) async fn pods_serve_webhooks_and_are_proxied_to(host: Arc<TestCluster>) {
    let space = Space::new(vision(&host).await, "reach-pods").await;
    let kubectl = space.kubectl();
    let authority = CertificateAuthority::create("hooks", DAY).unwrap();
    let mut request = LeafRequest::new(Usage::Server, DAY);
    request.common_name = "hook".into();
    request.dns_names = vec!["hook.reach-pods.svc".into()];
    let certificate = authority.issue(&request).unwrap();
    space
        .apply(
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hook"},
            "stringData": {"tls.crt": certificate.cert_pem, "tls.key": certificate.key_pem}}),
        )
        .await;
    let labelled = |name: &str, app: &str, spec: Value| {
        with(
            pod(name, spec),
            json!({"metadata": {"name": name, "labels": {"app": app}}}),
        )
    };
    let container = json!({
        "name": "main", "image": IMAGE, "ports": [{"name": "hooks", "containerPort": 8443}],
        "args": ["webhook", "--tls-cert-file=/tls/tls.crt", "--tls-private-key-file=/tls/tls.key", "--port=8443"],
        "readinessProbe": {"tcpSocket": {"port": 8443}, "periodSeconds": 1},
        "volumeMounts": [{"name": "tls", "mountPath": "/tls"}],
    });
    let spec = json!({"containers": [container], "volumes": [{"name": "tls", "secret": {"secretName": "hook"}}]});
    space.apply(labelled("hook", "hook", spec)).await;
    space.apply(labelled("web", "web", only(server()))).await;
    for (name, port) in [
        ("hook", json!({"port": 443, "targetPort": "hooks"})),
        ("web", json!({"port": 80, "targetPort": 8080})),
    ] {
        space
            .apply(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"selector": {"app": name}, "ports": [port]}}))
            .await;
    }
    space.ready("hook").await;
    space.ready("web").await;
    let bundle = base64::engine::general_purpose::STANDARD.encode(authority.cert_pem());
    let service =
        json!({"service": {"name": "hook", "namespace": space.name, "path": "/always-deny"}, "caBundle": bundle});
    answers(&space, "by-service", service, "this webhook denies all requests").await;
    let by_name = json!({"url": "https://hook.reach-pods.svc/always-deny", "caBundle": bundle});
    answers(&space, "by-name", by_name, "this webhook denies all requests").await;

    let raw = async |path: &str| {
        kubectl
            .run(&[
                "get",
                "--raw",
                &format!("/api/v1/namespaces/{}/{path}/hostname", space.name),
            ])
            .await
    };
    for path in [
        "pods/web:8080/proxy",
        "services/web:80/proxy",
        "services/http:web:/proxy",
    ] {
        // The API server learns of endpoints a moment after the pod is ready.
        until(&format!("{path} is answered"), SOON, async || {
            let said = raw(path).await;
            if said.out == "web" { Ok(()) } else { Err(said) }
        })
        .await;
    }
    let said = raw("pods/web:9999/proxy").await;
    assert!(!said.success && said.err.contains("does not answer"), "{said:?}");
}

pub(crate) async fn webhooks_reach_nothing_but_the_tenants_own(host: Arc<TestCluster>) {
    let space = Space::new(vision(&host).await, "reach-others").await;
    let other = Space::new(speech(&host).await, "reach-others").await;
    other.create("web", only(server())).await;
    let foreign = other.ready("web").await.status.unwrap().pod_ip.unwrap();
    let own = "is no address of your pods or Services";
    for (name, url, message) in [
        (
            "metadata",
            "https://169.254.169.254/latest".to_owned(),
            "is a link-local address",
        ),
        ("host", host.server(), "code 403"),
        ("kubernetes", "https://10.96.0.1/".to_owned(), own),
        ("foreign-pod", format!("https://{foreign}:8080/"), own),
        (
            "outside",
            "https://example.com/".to_owned(),
            "nor a host that your class lists",
        ),
    ] {
        answers(&space, name, json!({"url": url}), message).await;
    }
    // A Service whose endpoints the tenant has written itself, and one of type ExternalName.
    space
        .apply(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "by-hand"}, "spec": {"ports": [{"port": 443}]}}))
        .await;
    space
        .apply(
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "by-hand-1", "labels": {"kubernetes.io/service-name": "by-hand"}},
            "ports": [{"name": "", "port": 8080}], "endpoints": [{"addresses": [foreign]}]}),
        )
        .await;
    space
        .apply(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a-name"}, "spec": {"type": "ExternalName", "externalName": "example.com"}}))
        .await;
    for (name, message) in [
        ("by-hand", "no endpoint that is ready and one of your pods"),
        ("a-name", "nor a host that your class lists"),
    ] {
        answers(
            &space,
            name,
            json!({"service": {"name": name, "namespace": space.name}}),
            message,
        )
        .await;
    }
    // The server of an API is reached like that of a webhook.
    space
        .apply(
            json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.stolen.example.com"},
            "spec": {"group": "stolen.example.com", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1,
                "insecureSkipTLSVerify": true, "service": {"name": "by-hand", "namespace": space.name}}}),
        )
        .await;
    let kind = GroupVersionKind::gvk("apiregistration.k8s.io", "v1", "APIService");
    let services: Api<DynamicObject> = Api::all_with(space.client.clone(), &ApiResource::from_gvk(&kind));
    until("the API is not available, and why", SOON, async || {
        let service = services
            .get("v1.stolen.example.com")
            .await
            .map_err(|error| error.to_string())?;
        let condition = service.data["status"]["conditions"][0].clone();
        let why = condition["message"].as_str().unwrap_or_default();
        let refused = condition["status"] == "False" && why.contains("no endpoint that is ready and one of your pods");
        if refused { Ok(()) } else { Err(condition.to_string()) }
    })
    .await;
    // No namespace can be deleted while an API of the cluster does not answer, and other tests share this one.
    services
        .delete("v1.stolen.example.com", &DeleteParams::default())
        .await
        .unwrap();
    // The proxy to a Service uses the endpoints that the tenant has written.
    let said = space
        .kubectl()
        .run(&[
            "get",
            "--raw",
            "/api/v1/namespaces/reach-others/services/by-hand:443/proxy/",
        ])
        .await;
    // Whether the API server finds the endpoint itself depends on its version; where it does, the broker refuses.
    let refused = [own, "no endpoints available"]
        .iter()
        .any(|message| said.err.contains(message));
    assert!(!said.success && refused, "{said:?}");
}
