//! Which images the chart names, and what `helm test` runs.

use crate::render::template;
use berth_local::images::catalog::for_installation;
use berth_tests::files::{binary, documents};
use serde_json::{Value, json};
use std::{collections::BTreeSet, process::Command};
use tempfile::TempDir;

const KUBERNETES: &str = berth_kubernetes_versions::KUBERNETES_DEFAULT;

/// Images of pods that the chart renders, of pods that control starts, and of the control planes of tenants.
fn images(rendered: &[Value]) -> BTreeSet<String> {
    let mut images = BTreeSet::new();
    for document in rendered {
        for path in ["/spec/template/spec", "/spec/jobTemplate/spec/template/spec"] {
            let containers = document.pointer(path).and_then(|pod| pod["containers"].as_array());
            for container in containers.into_iter().flatten() {
                images.insert(container["image"].as_str().unwrap().to_owned());
                let args = container["args"].as_array().into_iter().flatten();
                let flags = args
                    .filter_map(Value::as_str)
                    .filter_map(|arg| arg.split_once("-image="));
                images.extend(flags.map(|(_, image)| image.to_owned()));
            }
        }
        if let Some(settings) = document.pointer("/data/settings.json").and_then(Value::as_str) {
            images.extend(control_plane_images(settings));
        }
    }
    images
}

/// Images of a tenant, as control names them with these settings.
fn control_plane_images(settings: &str) -> Vec<String> {
    use berth_control::{
        control_plane::{API_SERVER, CONTROLLER_MANAGER, SCHEDULER},
        runtime::cluster::ClusterSettings,
    };
    let settings: ClusterSettings = serde_json::from_str(settings).unwrap();
    let mut images = vec![
        settings.syncer_image.clone(),
        settings.upstream_image("coredns/", "coredns", berth_kubernetes_versions::COREDNS),
    ];
    for component in [API_SERVER, CONTROLLER_MANAGER, SCHEDULER] {
        images.push(settings.upstream_image("", component, KUBERNETES));
    }
    images
}

fn with_gateway(mut values: Value) -> Value {
    values["gateway"]["enabled"] = true.into();
    values["gateway"]["domain"] = "clusters.example.com".into();
    values
}

/// `berth images list` shows the same.
#[tokio::test]
async fn default_values_name_the_images_that_are_listed() {
    let all = template(&with_gateway(json!({}))).await.unwrap();
    let listed = for_installation(&[KUBERNETES]).into_iter().map(|image| image.reference);
    assert_eq!(images(&all), listed.collect());
}

#[tokio::test]
async fn one_value_replaces_the_registry_of_all_images() {
    for registry in ["registry.example.com", "registry.example.com:5000/mirror/"] {
        let values = with_gateway(json!({"global": {"imageRegistry": registry}}));
        let all = template(&values).await.unwrap();
        let registry = registry.trim_end_matches('/');
        let expected: BTreeSet<String> = for_installation(&[KUBERNETES])
            .into_iter()
            .map(|image| format!("{registry}/{}", image.reference.split_once('/').unwrap().1))
            .collect();
        assert_eq!(images(&all), expected);
    }
    // A repository without a registry keeps its whole path.
    let values =
        json!({"global": {"imageRegistry": "r.example.com"}, "control": {"image": {"repository": "berth/control"}}});
    let all = template(&values).await.unwrap();
    assert!(images(&all).contains(&format!("r.example.com/berth/control:{}", env!("CARGO_PKG_VERSION"))));
}

#[tokio::test]
async fn every_image_can_have_a_digest() {
    let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
    let image = json!({"digest": digest});
    let of_tenants: serde_json::Map<String, Value> = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"]
        .iter()
        .map(|name| format!("{name}:{KUBERNETES}"))
        .chain([format!("coredns:{}", berth_kubernetes_versions::COREDNS)])
        .map(|image| (image, json!(digest)))
        .collect();
    let values = with_gateway(json!({
        "control": {"image": image},
        "tenants": {"syncerImage": image, "imageDigests": of_tenants},
        "nodes": {"scrubImage": image, "placeholderImage": image},
        "datastore": {"etcd": {"image": image}},
        "gateway": {"image": image},
    }));
    let all = template(&values).await.unwrap();
    let expected: BTreeSet<String> = for_installation(&[KUBERNETES])
        .into_iter()
        .map(|image| format!("{}@{digest}", image.reference))
        .collect();
    assert_eq!(images(&all), expected);
    for wrong in [json!("latest"), json!("sha256:12"), json!(format!("{digest}0"))] {
        let refusal = template(&json!({"control": {"image": {"digest": wrong}}}))
            .await
            .unwrap_err();
        assert!(refusal.contains("/control/image/digest"), "{refusal}");
    }
}

/// `berth images list` makes these values of a list with digests, and names the images as the chart does.
#[tokio::test]
async fn listed_digests_are_values_for_every_image() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("images.txt");
    let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
    let lines: Vec<String> = for_installation(&[KUBERNETES])
        .into_iter()
        .map(|image| format!("{}@{digest}\n", image.reference))
        .collect();
    std::fs::write(&file, lines.concat()).unwrap();
    let list = |format: &str| {
        let listed = Command::new(binary("berth"))
            .args([
                "images",
                "list",
                "--registry=registry.example.com/mirror",
                "-o",
                format,
                "--digests",
            ])
            .arg(&file)
            .output()
            .unwrap();
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        String::from_utf8(listed.stdout).unwrap()
    };
    let values = documents(&list("values")).remove(0);
    let all = template(&with_gateway(values)).await.unwrap();
    let names: BTreeSet<String> = list("name").lines().map(str::to_owned).collect();
    assert_eq!(names.len(), lines.len());
    assert_eq!(images(&all), names);
}

/// The values of an older release do not have what came later.
#[tokio::test]
async fn values_of_an_older_release_render() {
    let values = json!({
        "global": null,
        "tenants": {"imageDigests": null, "syncerImage": {"digest": null}},
        "control": {"image": {"digest": null}},
        "datastore": {"etcd": {"image": {"digest": null}}},
        "nodes": {"scrubImage": {"digest": null}, "placeholderImage": {"digest": null}},
    });
    let listed = for_installation(&[KUBERNETES]).into_iter().map(|image| image.reference);
    let expected: BTreeSet<String> = listed.filter(|image| !image.contains("gateway")).collect();
    assert_eq!(images(&template(&values).await.unwrap()), expected);
}

#[tokio::test]
async fn helm_test_runs_the_check_of_control() {
    let all = template(&json!({})).await.unwrap();
    let hook = |document: &&Value| document["metadata"]["annotations"]["helm.sh/hook"] == "test";
    let tests: Vec<&Value> = all.iter().filter(hook).collect();
    assert_eq!(tests.len(), 1);
    let pod = &tests[0]["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], "berth-control");
    assert_eq!(pod["containers"][0]["args"][0], "check-installation");
}
