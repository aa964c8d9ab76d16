//! Server-side request forgery: what a tenant can make its API server connect to. The tests call the broker as the API server
//! does, with its certificate, which no tenant has.

use crate::{objects::say, shared::attacker_and_victim};
use base64::Engine as _;
use berth_control::control_plane::{API_SERVER, SYNCER};
use berth_tests::{
    scrape::flag,
    tenant::Tenant,
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use kube::{
    Api, Error,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// A file of one of the tenant's components.
fn file(host: &TestCluster, tenant: &Tenant, component: &str, name: &str) -> Vec<u8> {
    let folder = host.home().tenants().join(tenant.id.hash()).join(component);
    std::fs::read(folder.join(name)).unwrap()
}

/// Certificate and key of a tenant's API server towards its broker.
fn identity(host: &TestCluster, tenant: &Tenant) -> (Vec<u8>, Vec<u8>) {
    let part = |name| file(host, tenant, API_SERVER, name);
    (part("egress.crt"), part("egress.key"))
}

/// A busy broker closes the connection without an answer, and is called again.
const NO_ANSWER: &str = "nothing";

/// The address of clouds' metadata services.
const METADATA: &str = "169.254.169.254:80";

const PROBE: &[u8] = b"CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

pub(crate) async fn only_the_api_server_may_use_the_egress_broker(host: Arc<TestCluster>) {
    let (a, b) = attacker_and_victim(&host).await;
    let address = flag(&host, &a, "egress-address").expect("the syncer has a broker");
    let authority = file(&host, &a, SYNCER, "egress-ca.crt");
    let kubeconfig: Value = serde_saphyr::from_str(&a.kubeconfig).unwrap();
    let pem = |field: &str| {
        let text = kubeconfig["users"][0]["user"][field].as_str().unwrap();
        base64::engine::general_purpose::STANDARD.decode(text).unwrap()
    };
    let admin = (pem("client-certificate-data"), pem("client-key-data"));
    let part = |name| file(&host, &a, API_SERVER, name);
    let for_kubelets = (part("kubelet-client.crt"), part("kubelet-client.key"));
    let for_admission = (part("admission.crt"), part("admission.key"));
    for (who, identity) in [
        ("a client without a certificate", None),
        ("the tenant's admin", Some(admin)),
        ("another tenant's API server", Some(identity(&host, &b))),
        ("its certificate for kubelets", Some(for_kubelets)),
        ("its certificate for admission", Some(for_admission)),
    ] {
        let identity = identity.as_ref().map(|(certificate, key)| (&**certificate, &**key));
        match say(&address, &authority, identity, PROBE).await {
            Err(_) => {}
            Ok(answer) => assert!(answer.is_empty(), "{who} is answered: {answer}"),
        }
    }
    let (certificate, key) = identity(&host, &a);
    let answer = until("its own API server is answered", SOON, async || {
        let answer = say(&address, &authority, Some((&certificate, &key)), PROBE).await;
        answer.ok().filter(|answer| !answer.is_empty()).ok_or(NO_ANSWER)
    })
    .await;
    assert!(
        answer.starts_with("HTTP/1.1 403 169.254.169.254:80 is a link-local address"),
        "{answer}"
    );
}

pub(crate) async fn connections_reach_their_target_or_nothing(host: Arc<TestCluster>) {
    let (a, b) = attacker_and_victim(&host).await;
    let address = flag(&host, &a, "egress-address").unwrap();
    let authority = file(&host, &a, SYNCER, "egress-ca.crt");
    let (certificate, key) = identity(&host, &a);
    let ask = async |text: &str| {
        say(&address, &authority, Some((&certificate, &key)), text.as_bytes())
            .await
            .unwrap_or_default()
    };
    let host_api: http::Uri = host.server().parse().unwrap();
    let port_of = |flag_name: &str| flag(&host, &b, flag_name).unwrap();
    for (target, status) in [
        (host_api.authority().unwrap().to_string(), 403),
        (format!("localhost:{}", host_api.port_u16().unwrap()), 403),
        (format!("[::ffff:127.0.0.1]:{}", host_api.port_u16().unwrap()), 403),
        (format!("0.0.0.0:{}", host_api.port_u16().unwrap()), 403),
        (format!("127.1:{}", host_api.port_u16().unwrap()), 400),
        (format!("2130706433:{}", host_api.port_u16().unwrap()), 400),
        (host.datastore().endpoint.replace("https://", ""), 403),
        (port_of("egress-address"), 403),
        (port_of("admission-address"), 403),
        (port_of("admin-address"), 403),
        (flag(&host, &a, "admin-address").unwrap(), 403),
        ("169.254.169.254:80".into(), 403),
        ("[fd00:ec2::254]:80".into(), 403),
        ("[64:ff9b::a9fe:a9fe]:80".into(), 403),
        ("metadata.google.internal:80".into(), 403),
        ("10.96.0.1:443".into(), 403),
        ("kubernetes.default.svc:443".into(), 503),
        ("h100-01:10250".into(), 403),
        ("user@169.254.169.254:80".into(), 400),
        ("169.254.169.254".into(), 400),
        ("http://169.254.169.254/".into(), 400),
        ("/".into(), 400),
        ("*".into(), 400),
    ] {
        // A host in the header changes nothing.
        for host in ["127.0.0.1", "hook.default.svc"] {
            let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            let answer = until(&format!("{target} is answered"), SOON, async || {
                Some(ask(&request).await)
                    .filter(|answer| !answer.is_empty())
                    .ok_or(NO_ANSWER)
            })
            .await;
            let line = answer.lines().next().unwrap_or_default();
            assert!(line.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {answer}");
        }
    }
    // Only CONNECT is accepted, once per connection: what follows a refused one is not a second request.
    for request in [
        "GET http://169.254.169.254/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".to_owned(),
        "CONNECT 10.0.0.1:80\r\n\r\n".to_owned(),
        "CONNECT 10.0.0.1:80 HTTP/1.1\r\n Host: x\r\n\r\n".to_owned(),
        "CONNECT a:1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\nConnection: close\r\n\r\n0\r\n\r\n".to_owned(),
        "CONNECT a\0b:1 HTTP/1.1\r\n\r\n".to_owned(),
        format!("CONNECT {}:1 HTTP/1.1\r\nConnection: close\r\n\r\n", "a".repeat(1 << 20)),
        format!("CONNECT a:1 HTTP/1.1\r\nX: {}\r\nConnection: close\r\n\r\n", "a".repeat(1 << 20)),
    ] {
        let answer = ask(&request).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    let two = format!(
        "CONNECT {METADATA} HTTP/1.1\r\n\r\n{}",
        "CONNECT 10.96.0.1:443 HTTP/1.1\r\nConnection: close\r\n\r\n"
    );
    // That it answers shows that the requests before have not stopped it.
    let answer = until("the first of two requests is answered", SOON, async || {
        Some(ask(&two).await)
            .filter(|answer| !answer.is_empty())
            .ok_or(NO_ANSWER)
    })
    .await;
    assert!(answer.starts_with(&format!("HTTP/1.1 403 {METADATA} is")), "{answer}");
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
}

/// What names a server that the API server calls, with this one: the kind, its group and the object.
fn calls_to(client: &Value) -> [(&'static str, &'static str, Value); 3] {
    const WEBHOOKS: &str = "admissionregistration.k8s.io";
    const DEFINITIONS: &str = "apiextensions.k8s.io";
    let webhooks = json!([{
        "name": "a.team.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None", "clientConfig": client,
        "rules": [{"apiGroups": ["team.example.com"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["loops"]}],
    }]);
    let configuration = |kind: &str| json!({"apiVersion": format!("{WEBHOOKS}/v1"), "kind": kind, "metadata": {"name": "loop"}, "webhooks": webhooks});
    let definition = json!({
        "apiVersion": format!("{DEFINITIONS}/v1"), "kind": "CustomResourceDefinition",
        "metadata": {"name": "loops.team.example.com"},
        "spec": {
            "group": "team.example.com", "scope": "Namespaced", "names": {"kind": "Loop", "plural": "loops"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
            "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": client}},
        },
    });
    let (mutating, validating) = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration");
    [
        (WEBHOOKS, mutating, configuration(mutating)),
        (WEBHOOKS, validating, configuration(validating)),
        (DEFINITIONS, "CustomResourceDefinition", definition),
    ]
}

/// An API server calls itself with its own credentials, not through the broker, and takes them to where a pod of the tenant redirects it.
pub(crate) async fn no_webhook_leads_to_the_api_server_itself(host: Arc<TestCluster>) {
    let (a, _) = attacker_and_victim(&host).await;
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let proxy = "/api/v1/namespaces/default/pods/a/proxy/b";
    let service = |name: &str, path: &str| json!({"service": {"name": name, "namespace": "default", "path": path}});
    for (client, is_denied) in [
        (service("kubernetes", proxy), true),
        (json!({"service": {"name": "kubernetes", "namespace": "default"}}), true),
        (json!({"url": "https://kubernetes.default.svc/a"}), true),
        (json!({"url": "HTTPS://kubernetes.default.svc:443"}), true),
        (service("kubernetes", "/apis/team.example.com/v1/reviews"), false),
        (service("web", proxy), false),
        (json!({"url": "https://kubernetes.default.svc.example.com/a"}), false),
    ] {
        for (group, kind, object) in calls_to(&client) {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
            let api: Api<DynamicObject> = Api::all_with(a.client.clone(), &resource);
            let object: DynamicObject = serde_json::from_value(object).unwrap();
            match api.create(&params, &object).await {
                Ok(_) => assert!(!is_denied, "{kind}: {client}"),
                Err(Error::Api(status)) => assert!(
                    is_denied && status.code == 403 && status.message.contains("self-calls.berth.dev"),
                    "{kind}: {client}: {status:?}"
                ),
                Err(error) => panic!("{kind}: {client}: {error}"),
            }
        }
    }
}
