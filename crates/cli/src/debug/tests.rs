use super::*;
use crate::user_config::cluster::Cluster;
use crate::user_config::document;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_pki::CertificateAuthority;
use flate2::read::GzDecoder;
use http::{Request, Response};
use kube::client::Body;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::time::Duration;

const TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.CANARYsignature";

/// The last lines of a log that a request asks for.
fn tail(log: &str, uri: &http::Uri) -> String {
    let mut parameters = uri.query().unwrap_or_default().split('&');
    let lines = parameters.find_map(|parameter| parameter.strip_prefix("tailLines="));
    let lines: usize = lines.map_or(usize::MAX, |lines| lines.parse().unwrap());
    let all: Vec<&str> = log.split_inclusive('\n').collect();
    all[all.len().saturating_sub(lines)..].concat()
}

/// A client whose API server has one pod, the container of which, of this name, has started twice and logged this.
fn client(container: &'static str, log: String) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = if request.uri().path().ends_with("/log") {
            tail(&log, request.uri())
        } else {
            let status = json!({"containerStatuses": [
                {"name": container, "restartCount": 1, "ready": true, "image": "x", "imageID": "x"}]});
            json!({"metadata": {}, "items": [{"metadata": {"name": "pod"}, "status": status}]}).to_string()
        };
        async move { Ok::<_, std::convert::Infallible>(Response::new(Body::from(answer.into_bytes()))) }
    });
    Client::new(service, "default")
}

/// The files of an archive.
fn unpack(archive: &[u8]) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(GzDecoder::new(archive));
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (entry.path().unwrap().display().to_string(), text)
    });
    entries.collect()
}

#[tokio::test]
async fn logs_of_pods_have_no_token_key_or_kubeconfig() {
    let authority = CertificateAuthority::create("canary", Duration::from_secs(3600)).unwrap();
    let key = STANDARD.encode(authority.key_pem());
    let user = json!({"token": TOKEN, "client-key-data": key});
    let kubeconfig = Cluster::default().kubeconfig("me", &user, None);
    let yaml = document::render(&kubeconfig).unwrap();
    let encoded = STANDARD.encode(&yaml);
    let log = [
        "the first line".to_owned(),
        format!("sends Authorization: Bearer {TOKEN}"),
        "refresh_token=CANARYrefresh&grant_type=refresh_token".to_owned(),
        authority.key_pem().to_owned(),
        format!("{{\"key\":{}}}", json!(authority.key_pem())),
        yaml.clone(),
        kubeconfig.to_string(),
        format!("{{\"message\":{}}}", json!(yaml)),
        format!("data:\n  value: {encoded}"),
        // What a server of a tenant has answered.
        "it denies: \u{1b}[2J".to_owned(),
        "the last line".to_owned(),
    ];
    let lines_of_key = authority.key_pem().lines().filter(|line| !line.starts_with("---"));
    let canaries: Vec<&str> = lines_of_key
        .chain(["CANARY", &key, &encoded[..40], &key[..40]])
        .collect();
    assert!(canaries.iter().all(|canary| log.join("\n").contains(canary)));

    let mut bundle = Bundle {
        archive: Archive::new(MOST_BYTES),
        failures: Vec::new(),
        client: client("main", log.join("\n")),
    };
    bundle.collect_logs("berth-system").await;
    let files = unpack(&bundle.finish().unwrap());
    let expected =
        ["main.log", "main.previous.log"].map(|name| format!("berth-debug/namespaces/berth-system/logs/pod/{name}"));
    assert_eq!(files.keys().cloned().collect::<Vec<_>>(), expected);
    for text in files.values() {
        assert!(
            text.starts_with("the first line\n") && text.ends_with("the last line"),
            "{text}"
        );
        assert!(text.contains("it denies: \u{fffd}[2J\n"), "{text}");
        for canary in &canaries {
            assert!(!text.contains(canary), "{canary} is in\n{text}");
        }
    }
}

#[tokio::test]
async fn what_an_audit_log_says_of_users_is_left_out() {
    let event = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Request","user":{"username":"CANARY"}}"#;
    // More than the lines of other logs that are read.
    let events = format!("{event}\n").repeat(6000);
    // The part that is read begins in an event.
    let log = format!("CANARY\"}}}}\nthe first line\n{event}\nfailed: {{\"kind\":\"Event\"}}\n{events}the last line\n");
    let mut bundle = Bundle {
        archive: Archive::new(MOST_BYTES),
        failures: Vec::new(),
        client: client(API_SERVER, log),
    };
    bundle.collect_logs("berth-vision-abc-cp").await;
    let files = unpack(&bundle.finish().unwrap());
    assert_eq!(files.len(), 2);
    for text in files.values() {
        let expected =
            "[6002 lines of the audit log are left out]\nthe first line\nfailed: {\"kind\":\"Event\"}\nthe last line\n";
        assert_eq!(text, expected);
    }
}

#[tokio::test]
async fn a_bundle_about_one_tenant_does_not_say_what_others_used() {
    let record = |name: &str| json!({"metadata": {"name": name}, "spec": {"tenant": {"uid": name}}});
    let project =
        |name: &str, namespace: &str| json!({"metadata": {"name": name}, "spec": {"namespaces": [namespace]}});
    let snapshot =
        |name: &str, tenant: &str| json!({"metadata": {"name": name}, "spec": {"tenantClusterName": tenant}});
    let event = |name: &str, kind: &str, about: &str| {
        let object = json!({"kind": kind, "name": about});
        json!({"metadata": {"name": name}, "message": format!("password={TOKEN}"), "involvedObject": object})
    };
    let service = tower::service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default();
        let is_about = |kind: &str| query.contains(kind);
        let items = match request.uri().path() {
            "/api/v1/namespaces/team/events" if is_about("TenantCluster") => json!([
                event("own-event", "TenantCluster", "a"),
                event("canary-event", "TenantCluster", "b")
            ]),
            "/api/v1/namespaces/team/events" if is_about("TenantSnapshot") => json!([
                event("own-end", "TenantSnapshot", "own-snapshot"),
                event("canary-end", "TenantSnapshot", "canary-snapshot")
            ]),
            "/apis/berth.dev/v1alpha1/usagerecords" => json!([record("own-record"), record("canary-record")]),
            "/apis/berth.dev/v1alpha1/projects" => json!([
                project("own-project", "team"),
                project("canary-project", "others"),
                project("canary-rest", "*")
            ]),
            "/apis/berth.dev/v1alpha1/ratecards" => json!([{"metadata": {"name": "canary-card"}}]),
            "/apis/berth.dev/v1alpha1/tenantclasses" => json!([{"metadata": {"name": "gold"}}]),
            "/apis/berth.dev/v1alpha1/namespaces/team/tenantsnapshots" => {
                json!([snapshot("own-snapshot", "a"), snapshot("canary-snapshot", "b")])
            }
            _ => json!([]),
        };
        let answer = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}).to_string();
        async move { Ok::<_, std::convert::Infallible>(Response::new(Body::from(answer.into_bytes()))) }
    });
    let tenant: TenantCluster = serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
        "metadata": {"name": "a", "namespace": "team", "uid": "own-record"}, "spec": {},
    }))
    .unwrap();
    let collect = async |is_all| {
        let mut bundle = Bundle {
            archive: Archive::new(MOST_BYTES),
            failures: Vec::new(),
            client: Client::new(service, "default"),
        };
        bundle.collect(std::slice::from_ref(&tenant), is_all).await;
        let files = unpack(&bundle.finish().unwrap());
        files.into_values().collect::<String>()
    };
    let own = [
        "own-record",
        "own-project",
        "gold",
        "own-snapshot",
        "own-event",
        "own-end",
    ];
    let others = [
        "canary-record",
        "canary-project",
        "canary-rest",
        "canary-card",
        "canary-snapshot",
        "canary-event",
        "canary-end",
    ];
    let of_one = collect(false).await;
    assert!(own.iter().all(|name| of_one.contains(name)), "{of_one}");
    assert!(!others.iter().any(|name| of_one.contains(name)), "{of_one}");
    let of_all = collect(true).await;
    assert!(own.iter().chain(&others).all(|name| of_all.contains(name)), "{of_all}");
    assert!(!of_all.contains(TOKEN), "{of_all}");
}

#[test]
fn workload_namespaces_are_not_collected() {
    let tenant: TenantCluster = serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "a", "namespace": "team"},
        "spec": {}, "status": {"controlPlaneNamespace": "berth-a-x-cp", "workloadNamespace": "berth-a-x"},
    }))
    .unwrap();
    let tenants = [tenant];
    let own: Vec<String> = own_namespaces(&tenants).into_iter().collect();
    assert_eq!(own, ["berth-a-x-cp", "berth-system"]);
    assert_eq!(team_namespaces(&tenants), BTreeSet::from(["team".to_owned()]));
}

#[test]
fn the_last_whole_lines_of_a_log_are_kept() {
    let log = "first\nsecönd\nthird\n";
    assert_eq!(keep_end(log, 100), log);
    assert_eq!(keep_end(log, log.len()), log);
    assert_eq!(keep_end(log, log.len() - 1), "secönd\nthird\n");
    assert_eq!(keep_end(log, 12), "third\n");
    assert_eq!(keep_end(log, 10), "third\n");
    assert_eq!(keep_end("one long line", 4), "line");
    assert_eq!(keep_end("", 4), "");
}
