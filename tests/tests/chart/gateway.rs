//! What the chart renders of the gateway.

use crate::render::{find, named, template};
use serde_json::{Value, json};

#[tokio::test]
async fn the_gateway_and_control_agree_on_names() {
    let gateway = json!({"enabled": true, "domain": "clusters.example.com", "port": 8443});
    let all = template(&json!({"gateway": gateway})).await.unwrap();
    let args = |name: &str| find(&all, name).unwrap()["spec"]["template"]["spec"]["containers"][0]["args"].clone();
    let has = |args: &Value, flag: &str| args.as_array().unwrap().iter().any(|arg| arg == flag);
    let control = args("Deployment/berth-control");
    assert!(has(&control, "--gateway-domain=clusters.example.com") && has(&control, "--gateway-port=8443"));
    assert!(has(&args("Deployment/berth-gateway"), "--domain=clusters.example.com"));
    assert_eq!(
        find(&all, "Service/berth-gateway").unwrap()["spec"]["ports"][0]["port"],
        8443
    );
}

/// A pod that ends accepts connections until load balancers know, and ends only after its connections. A new one is known before.
#[tokio::test]
async fn the_gateway_ends_after_load_balancers_know_and_its_connections_have_ended() {
    for (delay, expected) in [(json!(null), 30), (json!(0), 0), (json!(90), 90)] {
        let gateway = json!({"enabled": true, "domain": "example.com", "drainTimeout": 600, "shutdownDelay": delay});
        let all = template(&json!({"gateway": gateway})).await.unwrap();
        let deployment = find(&all, "Deployment/berth-gateway").unwrap();
        let pod = &deployment["spec"]["template"]["spec"];
        let args = pod["containers"][0]["args"].as_array().unwrap();
        assert!(
            args.contains(&format!("--shutdown-delay={expected}").into()),
            "{args:?}"
        );
        assert_eq!(pod["terminationGracePeriodSeconds"], expected + 610);
        assert_eq!(deployment["spec"]["minReadySeconds"], expected);
    }
}

/// Of the Services it may read those of API servers alone, and no Secret. Its right to patch is for one annotation, which only the admission
/// policy says.
#[tokio::test]
async fn the_gateway_may_patch_only_with_the_policy_that_confines_it() {
    for (policies, verbs) in [
        (true, json!(["list", "watch", "patch"])),
        (false, json!(["list", "watch"])),
    ] {
        let gateway = json!({"enabled": true, "domain": "clusters.example.com"});
        let values = json!({"gateway": gateway, "admissionPolicies": {"enabled": policies}});
        let all = template(&values).await.unwrap();
        let rules = json!([
            {"apiGroups": ["berth.dev"], "resources": ["tenantclusters"], "verbs": verbs},
            {"apiGroups": [""], "resources": ["services"], "resourceNames": ["kube-apiserver"], "verbs": ["list", "watch"]},
        ]);
        assert_eq!(find(&all, "ClusterRole/berth-gateway").unwrap()["rules"], rules);
        if policies {
            let (outside, _) = berth_control::install::manifests::gateway_role();
            assert_eq!(
                json!(outside.rules),
                rules,
                "a gateway that is no pod has the same rights"
            );
        }
        assert_eq!(
            find(&all, "ValidatingAdmissionPolicy/berth-gateway").is_some(),
            policies
        );
        assert_eq!(
            find(&all, "ValidatingAdmissionPolicyBinding/berth-gateway").is_some(),
            policies
        );
    }
}

#[tokio::test]
async fn replicas_of_the_gateway_are_spread_and_drained_one_after_the_other() {
    let gateway = |replicas: u32| json!({"gateway": {"enabled": true, "domain": "example.com", "replicas": replicas}});
    let all = template(&gateway(3)).await.unwrap();
    let budget = &find(&all, "PodDisruptionBudget/berth-gateway").unwrap()["spec"];
    assert_eq!(budget["maxUnavailable"], 1);
    assert_eq!(budget["unhealthyPodEvictionPolicy"], "AlwaysAllow");
    let pod = &find(&all, "Deployment/berth-gateway").unwrap()["spec"]["template"]["spec"];
    assert_eq!(
        pod["topologySpreadConstraints"][0]["topologyKey"],
        "topology.kubernetes.io/zone"
    );
    let apart =
        "/affinity/podAntiAffinity/preferredDuringSchedulingIgnoredDuringExecution/0/podAffinityTerm/topologyKey";
    assert_eq!(pod.pointer(apart).unwrap(), "kubernetes.io/hostname");
    let one = template(&gateway(1)).await.unwrap();
    assert!(
        one.iter()
            .all(|document| named(document) != "PodDisruptionBudget/berth-gateway")
    );
}

#[tokio::test]
async fn a_tls_route_leads_all_names_to_the_gateway() {
    let parents = json!([{"name": "edge", "namespace": "networking", "sectionName": "tls"}]);
    let route = json!({"enabled": true, "parentRefs": parents});
    let gateway = json!({"enabled": true, "domain": "clusters.example.com", "port": 8443, "tlsRoute": route});
    let all = template(&json!({"gateway": gateway})).await.unwrap();
    let route = find(&all, "TLSRoute/berth-gateway").unwrap();
    assert_eq!(route["apiVersion"], "gateway.networking.k8s.io/v1");
    let expected = json!({"parentRefs": parents, "hostnames": ["*.clusters.example.com"],
        "rules": [{"backendRefs": [{"name": "berth-gateway", "port": 8443}]}]});
    assert_eq!(route["spec"], expected);
    // Without it, and with the values of an older release, there is none.
    for route in [json!({"enabled": false, "parentRefs": parents}), json!(null)] {
        let gateway =
            json!({"enabled": true, "domain": "clusters.example.com", "tlsRoute": route, "wakeTimeout": null});
        let all = template(&json!({"gateway": gateway})).await.unwrap();
        assert!(all.iter().all(|document| document["kind"] != "TLSRoute"));
    }
}

/// The values of an older release do not have the gateway at all.
#[tokio::test]
async fn without_a_gateway_nothing_of_it_is_installed() {
    for values in [json!({}), json!({"gateway": null})] {
        for document in template(&values).await.unwrap() {
            // The policies are the same in all installations: that of the gateway is about an account that does not exist here.
            if named(&document).starts_with("ValidatingAdmissionPolicy") {
                continue;
            }
            assert!(!named(&document).contains("gateway"), "{}", named(&document));
            assert!(!document.to_string().contains("--gateway-"), "{}", named(&document));
        }
    }
}
