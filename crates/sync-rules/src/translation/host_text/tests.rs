use super::*;
use crate::model::{resource::host_name, store::Stored, tenant::test_tenant};
use crate::registry;
use serde_json::json;

fn cache() -> Cache {
    let cache = registry::new_cache(test_tenant());
    let name = Name::new("research", "train-0");
    let host = json!({"metadata": {"name": host_name(KindId::Pod, &name), "resourceVersion": "1"}});
    cache.stores.host(KindId::Pod).written(name, Stored::new(&host));
    for node in ["n1", "n2"] {
        let object = json!({"metadata": {"name": node, "resourceVersion": "1"}});
        cache
            .stores
            .host(KindId::Node)
            .written(Name::new("", node), Stored::new(&object));
    }
    cache
}

#[test]
fn host_names_become_the_tenants() {
    let cache = cache();
    let name = Name::new("research", "train-0");
    let host = host_name(KindId::Pod, &name);
    let text = format!("pods \"{host}\" in berth-vision-aaaaaaaaaaaaa: see other-aaaaaaaaaaaaa");
    assert_eq!(
        to_tenant_names(&cache, &name, &text),
        "pods \"train-0\" in research: see other-aaaaaaaaaaaaa"
    );
}

#[test]
fn texts_without_host_names_are_not_copied() {
    let cache = cache();
    let name = Name::new("research", "train-0");
    let host = host_name(KindId::Pod, &name);
    for (text, has_names) in [
        ("Running", false),
        ("2026-11-24T03:50:00Z", false),
        ("Back-off pulling image \"registry.example.com/train:1\"", false),
        (host.as_str(), true),
        ("in berth-vision-aaaaaaaaaaaaa.", true),
        ("berth-vision-aaaaaaaaaaaaa-cp", true),
        ("berth-speech-bbbbbbbbbbbbb-cp", true),
        ("0/3 nodes are available: 3 node(s) had untolerated taint(s).", true),
    ] {
        assert_eq!(may_have_host_names(&cache, text), has_names, "{text}");
        let mut mapped = text.to_owned();
        map_to_tenant_names(&cache, &name, &mut mapped);
        let expected = to_tenant_names(&cache, &name, text);
        assert_eq!((&mapped, has_names), (&expected, expected != text));
    }
}

#[test]
fn absent_objects_that_a_pod_names_keep_their_tenant_name_in_messages() {
    let cache = cache();
    let (pod, absent) = (Name::new("research", "train-0"), Name::new("research", "gpu"));
    let target = crate::model::references::Target {
        kind: KindId::ResourceClaimTemplate,
        name: absent.clone(),
    };
    cache.references().set(&KindId::Pod.key(pod.clone()), [target].into());
    let host = host_name(KindId::ResourceClaimTemplate, &absent);
    let text = format!("resource claim template \"{host}\" not found");
    assert_eq!(
        to_tenant_names(&cache, &pod, &text),
        "resource claim template \"gpu\" not found"
    );
}

#[test]
fn claims_that_the_host_made_have_their_names_in_the_tenant() {
    let cache = cache();
    let host = KindId::GeneratedClaim.key(Name::new("", "train-0-abcdefghijklm-gpu-12345"));
    let mirrored = KindId::GeneratedClaim.key(Name::new("research", "train-0-gpu-12345"));
    cache.mirror_sources().set(&host, vec![mirrored]);
    let text = "claim train-0-abcdefghijklm-gpu-12345 is not ready";
    assert_eq!(
        to_tenant_names(&cache, &Name::new("research", "train-0"), text),
        "claim train-0-gpu-12345 is not ready"
    );
}

#[test]
fn scheduling_messages_count_the_tenants_nodes_only() {
    let cache = cache();
    let name = Name::new("research", "train-0");
    let text = "0/40 nodes are available: 30 node(s) didn't match Pod's node affinity/selector, 2 Insufficient nvidia.com/gpu, \
                8 node(s) had untolerated taint {berth.dev/tenant: other}. preemption: 0/40 nodes are available: 40 Preemption is not helpful for scheduling.";
    assert_eq!(
        to_tenant_names(&cache, &name, text),
        "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    );
    let text = "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity].";
    assert_eq!(
        to_tenant_names(&cache, &name, text),
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match the pod's node selector, affinity and tolerations."
    );
    let text = "0/40 nodes are available: 40 node(s) didn't match Pod's node affinity/selector.";
    assert_eq!(
        to_tenant_names(&cache, &name, text),
        "0/2 nodes are available: no node matches the pod's node selector, affinity and tolerations."
    );
}

#[test]
fn reasons_about_all_nodes_leave_none() {
    let cache = cache();
    let name = Name::new("research", "train-0");
    for text in [
        "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
        "0/2 nodes are available: 1 Insufficient cpu, 2 Insufficient memory.",
    ] {
        let host = text.replace("0/2", "0/40");
        assert_eq!(to_tenant_names(&cache, &name, &host), text);
    }
}

#[test]
fn texts_name_no_other_tenants() {
    let cache = cache();
    let name = Name::new("research", "train-0");
    for (text, expected) in [
        (
            "Conflicts with HTTPRoute berth-speech-bbbbbbbbbbbbb/web-ccccccccccccc.",
            "Conflicts with HTTPRoute another namespace.",
        ),
        (
            "berth-speech-bbbbbbbbbbbbb/gateway/web.example, and \"berth-speech-bbbbbbbbbbbbb-cp\"",
            "another namespace, and \"another namespace\"",
        ),
        ("berth-speech-bbbbbbbbbbbbb: in use", "another namespace: in use"),
        (
            "berth-vision-aaaaaaaaaaaaa/web of berth-vision-aaaaaaaaaaaaa-cp",
            "research/web of the platform",
        ),
    ] {
        assert_eq!(to_tenant_names(&cache, &name, text), expected);
        assert!(may_have_host_names(&cache, text), "{text}");
    }
    // Its own object has a name like that.
    let own = Name::new("research", "berth-speech");
    let host = host_name(KindId::Pod, &own);
    assert!(names::is_like_tenant_namespace(&host));
    let object = json!({"metadata": {"name": host, "resourceVersion": "1"}});
    cache.stores.host(KindId::Pod).written(own, Stored::new(&object));
    assert_eq!(to_tenant_names(&cache, &name, &host), "berth-speech");
}

#[test]
fn errors_name_no_ingresses_of_others() {
    let cache = cache();
    let name = Name::new("research", "train-0");
    let own = format!("ingress berth-vision-aaaaaaaaaaaaa/{}", host_name(KindId::Pod, &name));
    let denied = |place: &str| {
        format!(
            "admission webhook \"validate.nginx.ingress.kubernetes.io\" denied the request: \
             host \"grafana.apps.example.com\" and path \"/\" is already defined in {place}"
        )
    };
    for (ingress, expected) in [
        (
            "ingress berth-speech-bbbbbbbbbbbbb/web-ccccccccccccc",
            "an Ingress of another namespace",
        ),
        ("ingress monitoring/grafana", "an Ingress of another namespace"),
        (
            "ingress monitoring/grafana.v2. Choose another",
            "an Ingress of another namespace. Choose another",
        ),
        (own.as_str(), "ingress research/train-0"),
    ] {
        assert_eq!(sanitize_error(&cache, &name, &denied(ingress)), denied(expected));
    }
}

#[test]
fn other_texts_stay() {
    let cache = cache();
    let name = Name::new("research", "train-0");
    for text in [
        "no matches for kind \"Job\" in version \"batch/v1\"",
        "Back-off pulling image \"registry.example.com/berth/train:1\"",
        "metadata.annotations: nginx.ingress.kubernetes.io/rewrite-target is not valid",
        "exec: \"/usr/bin/berth-train/run\": no such file or directory",
        "berth-vision, berth-train-5d4f8b9c6d-x2x4z and berth-train-0123456789abc/data",
        "ingress class monitoring/grafana is not known",
        "cluster role berth-syncer-vision-aaaaaaaaaaaaa",
    ] {
        assert_eq!(to_tenant_names(&cache, &name, text), text);
        assert_eq!(sanitize_error(&cache, &name, text), text);
    }
}

#[test]
fn errors_carry_no_addresses() {
    let cache = cache();
    let name = Name::new("research", "train-0");
    let text =
        "Post \"https://10.1.2.3:6443/api\": dial tcp 10.1.2.3:6443: User \"system:serviceaccount:x:syncer\" denied";
    assert_eq!(
        sanitize_error(&cache, &name, text),
        "Post (address) dial tcp (address) User the syncer denied"
    );
}
