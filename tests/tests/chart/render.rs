//! What the chart renders from values.

use berth_tests::{
    files::documents,
    helm::{Helm, chart},
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Kinds of which the chart carries generated files: they are compared with the code by `make check-generated`.
const GENERATED: [&str; 6] = [
    "ClusterRole",
    "CustomResourceDefinition",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

/// What a host serves besides, as helm finds out when it installs.
const SERVED: [&str; 2] = [
    "--api-versions=monitoring.coreos.com/v1",
    "--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",
];

/// Renders the chart with values, as helm would install it.
pub(crate) async fn template(values: &Value) -> Result<Vec<Value>, String> {
    template_for(values, &SERVED).await
}

/// The same for a host that serves this besides.
async fn template_for(values: &Value, served: &[&str]) -> Result<Vec<Value>, String> {
    let home = TempDir::new().unwrap();
    let file = home.path().join("values.json");
    std::fs::write(&file, values.to_string()).unwrap();
    let helm = Helm { home: home.path() };
    let (chart, values) = (chart().display().to_string(), format!("--values={}", file.display()));
    let namespace = "--namespace=berth-system";
    let args = ["template", "berth", &chart, &values, namespace, "--kube-version=1.37.1"];
    let text = helm.run(&[&args[..], served].concat()).await?;
    Ok(documents(&text)
        .into_iter()
        .filter(|document| !document.is_null())
        .collect())
}

fn is_generated(document: &Value) -> bool {
    GENERATED.iter().any(|kind| document["kind"] == *kind)
}

pub(crate) fn named(document: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text(&document["kind"]), text(&document["metadata"]["name"]))
}

/// The document with this kind and name, such as `Service/berth-gateway`.
pub(crate) fn find<'a>(all: &'a [Value], name: &str) -> Option<&'a Value> {
    all.iter().find(|document| named(document) == name)
}

/// What differs from the rendering with the chart's own values: new and changed documents, and names of those that are gone.
async fn difference(values: Value) -> Value {
    let (default, other) = (template(&json!({})).await.unwrap(), template(&values).await.unwrap());
    let gone: Vec<String> = default
        .iter()
        .filter(|document| !other.iter().any(|there| named(there) == named(document)))
        .map(named)
        .collect();
    let changed: Vec<&Value> = other.iter().filter(|document| !default.contains(document)).collect();
    json!({"gone": gone, "changed": changed})
}

#[tokio::test]
async fn the_default_values() {
    let all = template(&json!({})).await.unwrap();
    let own: Vec<&Value> = all.iter().filter(|document| !is_generated(document)).collect();
    let dashboard = |document: &&&Value| document["metadata"]["name"] != "berth-dashboard";
    insta::assert_yaml_snapshot!(
        own.into_iter()
            .filter(|document| dashboard(&document))
            .collect::<Vec<_>>()
    );
    for name in [
        "ClusterRole/berth-control",
        "CustomResourceDefinition/tenantclusters.berth.dev",
        "ValidatingAdmissionPolicy/berth-pods",
    ] {
        assert!(all.iter().any(|document| named(document) == name), "{name} is missing");
    }
}

#[tokio::test]
async fn three_members_and_a_registry_of_ones_own() {
    let values = json!({
        "control": {"image": {"repository": "registry.example.com/berth-control", "tag": "v9"}, "replicas": 1,
            "nodeSelector": {"node-role.kubernetes.io/infra": ""}, "tolerations": [{"key": "infra", "operator": "Exists"}]},
        "imagePullSecrets": ["registry"],
        "tenants": {"versions": ["v1.37.1", "v1.36.4"], "kubernetesRegistry": "registry.example.com/k8s",
            "syncerImage": {"repository": "registry.example.com/berth-syncer"}, "hostServer": "https://10.0.0.1:6443",
            "resources": {"kube-apiserver": {"requests": {"memory": "1Gi"}}}},
        "datastore": {"etcd": {"members": 3, "quota": "512Mi", "persistence": {"storageClassName": "fast", "keep": true}}},
    });
    insta::assert_yaml_snapshot!(difference(values).await);
}

#[tokio::test]
async fn a_datastore_of_ones_own() {
    let external = json!({"endpoints": ["https://etcd-0.example.com:2379", "https://etcd-1.example.com:2379"], "authoritySecret": "etcd-ca"});
    let values = json!({"datastore": {"etcd": {"enabled": false}, "external": external}});
    insta::assert_yaml_snapshot!(difference(values).await);
}

#[tokio::test]
async fn everything_that_can_be_left_out() {
    let off = json!({"enabled": false});
    let values = json!({"admissionPolicies": off, "networkPolicies": off, "datastore": {"etcd": {"persistence": off}},
        "monitoring": {"serviceMonitor": off, "rules": off, "dashboards": off}});
    let difference = difference(values).await;
    let gone: Vec<&str> = difference["gone"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    insta::assert_yaml_snapshot!((gone, &difference["changed"]));
}

/// An older host does not know the kinds, and would refuse the whole installation.
#[tokio::test]
async fn messages_of_events_are_cut_where_the_host_can_change_requests() {
    for (served, expected) in [(&SERVED[..], true), (&SERVED[..1], false)] {
        let all = template_for(&json!({}), served).await.unwrap();
        let has = |name: &str| all.iter().any(|document| named(document) == name);
        for kind in ["MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"] {
            assert_eq!(has(&format!("{kind}/berth-event-messages")), expected, "{kind}");
        }
        assert!(
            has("ValidatingAdmissionPolicy/berth-event-sizes"),
            "all hosts have this one"
        );
    }
}

/// The values of an older release, with which a platform team may upgrade, do not have this one.
#[tokio::test]
async fn every_user_may_use_every_class_only_if_the_platform_says_so() {
    for (value, everyone) in [(json!(true), false), (json!(null), false), (json!(false), true)] {
        let all = template(&json!({"admissionPolicies": {"requireUse": value}}))
            .await
            .unwrap();
        let is_bound = all
            .iter()
            .any(|document| named(document) == "ClusterRoleBinding/berth-use-all");
        assert_eq!(is_bound, everyone, "{value}");
        assert!(
            all.iter()
                .any(|document| named(document) == "ClusterRole/berth-use-all")
        );
    }
}

#[tokio::test]
async fn definitions_stay_unless_the_platform_says_so_and_no_tenant_may_be_left() {
    for (values, kept) in [
        (json!({}), true),
        (json!({"crds": {"keep": false}}), false),
        (json!({"crds": {"keep": false}, "uninstall": {"force": true}}), true),
    ] {
        let mut all = template(&values).await.unwrap();
        all.retain(|document| document["kind"] == "CustomResourceDefinition");
        assert!(!all.is_empty(), "{values}");
        for document in all {
            let policy = &document["metadata"]["annotations"]["helm.sh/resource-policy"];
            assert_eq!(policy == "keep", kept, "{values}");
        }
    }
}

#[tokio::test]
async fn pods_have_no_more_rights_than_the_restricted_level_gives() {
    let all = json!({"datastore": {"etcd": {"members": 3}}, "gateway": {"enabled": true, "domain": "example.com"}});
    for document in template(&all).await.unwrap() {
        let pod = ["/spec/template/spec", "/spec/jobTemplate/spec/template/spec"];
        for pod in pod.iter().filter_map(|path| document.pointer(path)) {
            let name = named(&document);
            // A Service `berth-gateway` would be an environment variable BERTH_GATEWAY_PORT, which control reads.
            assert_eq!(pod["enableServiceLinks"], false, "{name}");
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{name}");
            assert_eq!(
                pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault",
                "{name}"
            );
            for container in pod["containers"].as_array().unwrap() {
                let context = &container["securityContext"];
                assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
                assert_eq!(context["readOnlyRootFilesystem"], true, "{name}");
                assert_eq!(context["capabilities"]["drop"], json!(["ALL"]), "{name}");
                assert!(!container["resources"]["limits"]["memory"].is_null(), "{name}");
            }
        }
    }
}

/// The authority of clients signs the certificates of tenants: whom it signs must be no member.
#[tokio::test]
async fn members_of_etcd_trust_an_authority_of_their_own() {
    for members in [1, 3] {
        let all = template(&json!({"datastore": {"etcd": {"members": members}}}))
            .await
            .unwrap();
        let etcd = find(&all, "StatefulSet/berth-etcd");
        let pod = &etcd.unwrap()["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let secret_of = |flag: &str| {
            let start = format!("--{flag}=");
            let command = container["command"].as_array().unwrap();
            let file = command
                .iter()
                .find_map(|part| part.as_str()?.strip_prefix(start.as_str()));
            let (folder, _) = file.unwrap().rsplit_once('/').unwrap();
            let mounts = container["volumeMounts"].as_array().unwrap();
            let mount = mounts.iter().find(|mount| mount["mountPath"] == folder).unwrap();
            let volumes = pod["volumes"].as_array().unwrap();
            let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
            volume["secret"]["secretName"].as_str().unwrap().to_owned()
        };
        assert_eq!(secret_of("trusted-ca-file"), "berth-etcd-server");
        for flag in ["peer-trusted-ca-file", "peer-cert-file", "peer-key-file"] {
            assert_eq!(secret_of(flag), "berth-etcd-peer", "{flag}");
        }
    }
}

#[tokio::test]
async fn invalid_values_are_refused_with_a_message() {
    for (values, message) in [
        (json!({"foo": 1}), "additional properties 'foo' not allowed"),
        (
            json!({"control": {"replica": 2}}),
            "additional properties 'replica' not allowed",
        ),
        (json!({"control": {"replicas": 0}}), "minimum"),
        (
            json!({"datastore": {"etcd": {"members": 2}}}),
            "/datastore/etcd/members",
        ),
        (
            json!({"datastore": {"etcd": {"quota": "lots"}}}),
            "/datastore/etcd/quota",
        ),
        (json!({"tenants": {"versions": []}}), "/tenants/versions"),
        (
            json!({"gateway": {"enabled": true}}),
            "gateway.enabled needs gateway.domain",
        ),
        (json!({"gateway": {"domain": "*.example.com"}}), "/gateway/domain"),
        (
            json!({"gateway": {"enabled": true, "domain": "example.com", "tlsRoute": {"enabled": true}}}),
            "gateway.tlsRoute.enabled needs gateway.tlsRoute.parentRefs",
        ),
        (
            json!({"gateway": {"tlsRoute": {"parentRefs": [{"section": "tls"}]}}}),
            "/gateway/tlsRoute/parentRefs",
        ),
        (json!({"tenants": {"withoutClass": "Allow"}}), "/tenants/withoutClass"),
        (
            json!({"integrations": {"argoCD": {"namespace": "Argo"}}}),
            "/integrations/argoCD/namespace",
        ),
        (
            json!({"datastore": {"etcd": {"enabled": false}}}),
            "datastore.external.endpoints",
        ),
        (
            json!({"datastore": {"external": {"endpoints": ["https://e:2379"]}}}),
            "set datastore.etcd.enabled=false",
        ),
    ] {
        let refusal = template(&values).await.unwrap_err();
        assert!(refusal.contains(message), "{values}: {refusal}");
    }
}

#[tokio::test]
async fn helm_lint_finds_nothing() {
    let home = TempDir::new().unwrap();
    let chart = chart().display().to_string();
    let helm = Helm { home: home.path() };
    helm.run(&["lint", "--strict", "--quiet", "--namespace=berth-system", &chart])
        .await
        .unwrap();
}

#[tokio::test]
async fn control_reads_the_metrics_of_gpus_where_the_values_say() {
    let url = "https://prometheus.monitoring.svc:9090";
    let values = json!({"gpuMetrics": {"url": url, "caSecret": "prometheus-ca", "tokenSecret": "prometheus-token"}});
    let all = template(&values).await.unwrap();
    let control = find(&all, "Deployment/berth-control");
    let pod = &control.unwrap()["spec"]["template"]["spec"];
    let args: Vec<&str> = pod["containers"][0]["args"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .filter(|arg| arg.starts_with("--prometheus-"))
        .collect();
    assert_eq!(
        args,
        [
            "--prometheus-url=https://prometheus.monitoring.svc:9090",
            "--prometheus-matchers=job=\"nvidia-dcgm-exporter\"",
            "--prometheus-sample-interval=60",
            "--prometheus-ca=/etc/berth/prometheus-ca/ca.crt",
            "--prometheus-token=/etc/berth/prometheus-token/token",
        ]
    );
    let secrets: Vec<&str> = pod["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|volume| volume["secret"]["secretName"].as_str())
        .collect();
    assert!(
        secrets.contains(&"prometheus-ca") && secrets.contains(&"prometheus-token"),
        "{secrets:?}"
    );
    let refused = template(&json!({"gpuMetrics": {"url": "prometheus:9090"}})).await;
    assert!(refused.is_err(), "a URL without a scheme");
    let plain = |allow: bool| {
        let url = "http://prometheus.monitoring.svc:9090";
        json!({"gpuMetrics": {"url": url, "tokenSecret": "prometheus-token", "allowInsecureToken": allow}})
    };
    let refusal = template(&plain(false)).await.unwrap_err();
    assert!(refusal.contains("gpuMetrics.allowInsecureToken=true"), "{refusal}");
    let allowed = serde_json::to_string(&template(&plain(true)).await.unwrap()).unwrap();
    assert!(allowed.contains("--prometheus-allow-insecure-token"));
    for url in ["http://127.0.0.1:9090", "http://[::1]:9090", "http://localhost"] {
        let values = json!({"gpuMetrics": {"url": url, "tokenSecret": "prometheus-token"}});
        template(&values).await.unwrap();
    }
}

#[tokio::test]
async fn integrations_are_flags_of_control() {
    let integrations = json!({"clientNamespaces": ["flux-system", "ci"], "argoCD": {"namespace": "argocd"}});
    let changed = difference(json!({ "integrations": integrations })).await;
    let changed = changed["changed"].as_array().unwrap();
    assert_eq!(
        changed.iter().map(named).collect::<Vec<_>>(),
        ["Deployment/berth-control"]
    );
    let args = changed[0]["spec"]["template"]["spec"]["containers"][0]["args"].clone();
    let has = |flag: &str| args.as_array().unwrap().iter().any(|arg| arg == flag);
    for namespace in ["flux-system", "ci"] {
        assert!(has(&format!("--api-server-client-namespace={namespace}")), "{args}");
    }
    assert!(has("--argo-cd-namespace=argocd"), "{args}");
}

/// The values of an older release do not have the value: then control has its own default.
#[tokio::test]
async fn control_keeps_records_of_usage_as_long_as_the_values_say() {
    for (metering, expected) in [
        (json!({}), Some("--usage-retention-months=13")),
        (json!({"retentionMonths": 0}), Some("--usage-retention-months=0")),
        (json!({"retentionMonths": 36}), Some("--usage-retention-months=36")),
        (json!(null), None),
    ] {
        let all = template(&json!({ "metering": metering })).await.unwrap();
        let control = find(&all, "Deployment/berth-control");
        let args = &control.unwrap()["spec"]["template"]["spec"]["containers"][0]["args"];
        let mut args = args.as_array().unwrap().iter().filter_map(Value::as_str);
        assert_eq!(args.find(|arg| arg.starts_with("--usage-")), expected, "{metering}");
    }
    for months in [json!(-1), json!(121), json!("13")] {
        let refusal = template(&json!({"metering": {"retentionMonths": months}})).await;
        assert!(refusal.unwrap_err().contains("/metering/retentionMonths"), "{months}");
    }
}

/// The environment of control and its arguments, by which it learns of the object store.
async fn snapshot_store_of_control(snapshots: Value) -> Result<(Vec<Value>, Vec<String>), String> {
    let all = template(&json!({ "snapshots": snapshots })).await?;
    let control = find(&all, "Deployment/berth-control");
    let container = &control.unwrap()["spec"]["template"]["spec"]["containers"][0];
    let of_store = |variable: &&Value| variable["name"].as_str().is_some_and(|name| name.starts_with("AWS_"));
    let environment = container["env"].as_array().unwrap().iter().filter(of_store);
    let args = container["args"].as_array().unwrap().iter().filter_map(Value::as_str);
    let args = args.filter(|arg| arg.contains("snapshot") || arg.contains("AWS"));
    Ok((environment.cloned().collect(), args.map(ToOwned::to_owned).collect()))
}

/// A user who may read Deployments, or the processes of a node, reads no credentials.
#[tokio::test]
async fn control_gets_the_object_store_of_snapshots_and_its_credentials_from_a_secret() {
    let values = json!({"url": "s3://berth-snapshots/production", "region": "eu-central-1", "endpoint": "https://objects.example.com",
        "credentialsSecret": "berth-snapshots"});
    let (environment, args) = snapshot_store_of_control(values).await.unwrap();
    assert_eq!(args, ["--snapshot-store=s3://berth-snapshots/production"]);
    let of_secret =
        |key: &str| json!({"name": key, "valueFrom": {"secretKeyRef": {"name": "berth-snapshots", "key": key}}});
    assert_eq!(
        environment,
        [
            json!({"name": "AWS_REGION", "value": "eu-central-1"}),
            json!({"name": "AWS_ENDPOINT_URL", "value": "https://objects.example.com"}),
            of_secret("AWS_ACCESS_KEY_ID"),
            of_secret("AWS_SECRET_ACCESS_KEY"),
        ]
    );
    let (environment, args) = snapshot_store_of_control(json!({"url": "s3://b"})).await.unwrap();
    assert_eq!(
        (environment, args),
        (vec![], vec!["--snapshot-store=s3://b".to_owned()])
    );
    // Without a URL nothing else counts, nor in the values of an older release.
    for values in [
        json!({"credentialsSecret": "berth-snapshots", "allowHTTP": true}),
        json!(null),
    ] {
        let found = snapshot_store_of_control(values.clone()).await.unwrap();
        assert_eq!(found, (vec![], vec![]), "{values}");
    }
}

/// It may be anywhere, and so may the datastore.
#[tokio::test]
async fn no_policy_keeps_control_from_the_object_store_of_snapshots() {
    let all = template(&json!({})).await.unwrap();
    let policies: Vec<&Value> = all.iter().filter(|object| object["kind"] == "NetworkPolicy").collect();
    assert!(!policies.is_empty());
    for policy in policies {
        let spec = &policy["spec"];
        let limits_egress = spec["policyTypes"].as_array().unwrap().contains(&json!("Egress"));
        let selected = spec["podSelector"]["matchLabels"]["app.kubernetes.io/name"].as_str();
        let is_of_others = selected.is_some_and(|name| name != "berth-control");
        assert!(!limits_egress || is_of_others, "{policy}");
    }
}

#[tokio::test]
async fn snapshots_are_sent_without_tls_only_if_the_values_say_so() {
    let plain = |allow: bool| json!({"url": "s3://b", "endpoint": "http://minio.storage.svc:9000", "allowHTTP": allow});
    let refusal = snapshot_store_of_control(plain(false)).await.unwrap_err();
    assert!(refusal.contains("snapshots.allowHTTP=true"), "{refusal}");
    let (environment, _) = snapshot_store_of_control(plain(true)).await.unwrap();
    assert!(
        environment.contains(&json!({"name": "AWS_ALLOW_HTTP", "value": "true"})),
        "{environment:?}"
    );
    for (field, value) in [
        ("url", "berth-snapshots"),
        ("url", "file:///snapshots"),
        ("url", "s3://KEY:SECRET@berth-snapshots"),
        ("url", "s3://berth-snapshots/../other"),
        ("endpoint", "objects.example.com"),
        ("endpoint", "https://KEY:SECRET@objects.example.com"),
    ] {
        let refusal = snapshot_store_of_control(json!({ field: value })).await.unwrap_err();
        assert!(refusal.contains(&format!("/snapshots/{field}")), "{value}: {refusal}");
    }
}

/// The values of an older release do not have integrations at all.
#[tokio::test]
async fn without_integrations_control_has_no_flags_for_them() {
    for values in [
        json!({}),
        json!({"integrations": null}),
        json!({"integrations": {"argoCD": null}}),
    ] {
        for document in template(&values).await.unwrap() {
            let text = document.to_string();
            assert!(
                !text.contains("--argo-cd") && !text.contains("--api-server-client"),
                "{}",
                named(&document)
            );
        }
    }
}
