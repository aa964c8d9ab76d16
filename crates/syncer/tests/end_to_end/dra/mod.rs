//! Devices by dynamic resource allocation. There is no hardware: the test publishes slices as a driver would, and the
//! host's scheduler allocates.

mod costly;
mod driver;

use crate::{
    custom,
    objects::{create, events, eventually, is_phase, origin, pod, settled},
    setup::{CONTROL_PLANE, Clusters, Setup, WORKLOADS},
};
use berth_api::TenantNode;
use berth_sync_rules::model::{
    KindId,
    resource::{Name, host_name},
};
use driver::{
    CLASS, DEVICES, NODES, PROTECTION, allocated, delete_pods, gone, install_driver, request, reserved, running,
    with_claim,
};
use k8s_openapi::api::{
    core::v1::{Namespace, Pod},
    resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_are_claimed_on_the_host_and_seen_in_the_tenant() {
    Box::pin(devices(Setup::default())).await;
}

/// A host that is older than the tenants' newest version, and a tenant without the newest rules about who may write the
/// status of a claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_with_older_versions() {
    let setup = Setup {
        host_version: "v1.36.4".into(),
        tenant_version: "v1.36.4".into(),
        emulated: Some("1.35"),
        ..Setup::default()
    };
    Box::pin(devices(setup)).await;
}

async fn devices(mut setup: Setup) {
    setup.policy.devices.classes = vec![CLASS.into()];
    setup.policy.devices.config_drivers = vec![CLASS.into()];
    setup.policy.kinds = vec![custom::kind()];
    // Before 1.36, pods have no field for the claim of an extended resource.
    let pods_say_claim = setup.emulated.is_none();
    let mut clusters = Clusters::start_as(setup).await;
    for client in [&clusters.tenant_admin, &clusters.host_admin] {
        custom::define(client).await;
    }
    install_driver(&clusters).await;
    let syncer = clusters.syncer().await;
    classes_and_slices_are_mirrored(&clusters).await;
    two_pods_share_a_claim(&clusters).await;
    a_template_makes_a_claim_for_each_pod(&clusters).await;
    the_claim_of_a_finished_pod_goes(&clusters).await;
    device_classes_that_are_not_offered_are_denied(&clusters).await;
    costly::pods_that_no_device_fits_keep_the_scheduler_from_nobody(&clusters).await;
    an_extended_resource_is_a_device(&clusters, pods_say_claim).await;
    a_template_of_the_hosts_own(&clusters).await;
    syncer.stop().await;
    after_a_restart_nothing_is_written(&clusters).await;
    what_the_class_takes_away_is_withdrawn_from_claims_that_wait(&mut clusters).await;
    let syncer = clusters.syncer().await;
    slices_go_with_their_devices(&clusters).await;
    nothing_remains(&clusters).await;
    syncer.stop().await;
}

async fn classes_and_slices_are_mirrored(clusters: &Clusters) {
    let classes: Api<DeviceClass> = Api::all(clusters.tenant_admin.clone());
    let slices: Api<ResourceSlice> = Api::all(clusters.tenant_admin.clone());
    eventually("the class and the slices are mirrored", async || {
        classes.get_opt(CLASS).await.unwrap().is_some()
            && slices.list(&ListParams::default()).await.unwrap().items.len() == NODES.len()
    })
    .await;
    assert_eq!(classes.list(&ListParams::default()).await.unwrap().items.len(), 1);
    let slice = slices.get("gpu-h100-01-slice").await.unwrap();
    assert_eq!(slice.spec.node_name.as_deref(), Some(NODES[0]));
    assert_eq!(slice.spec.devices.unwrap().len(), DEVICES);
    // Changes by the tenant are undone.
    let patch = Patch::Merge(json!({"spec": {"selectors": []}}));
    classes.patch(CLASS, &PatchParams::default(), &patch).await.unwrap();
    eventually("the class is as the host's", async || {
        let spec = classes.get(CLASS).await.unwrap().spec.unwrap();
        spec.selectors.is_some_and(|selectors| selectors.len() == 1)
    })
    .await;
}

async fn two_pods_share_a_claim(clusters: &Clusters) {
    let claims = clusters.tenant_api::<ResourceClaim>();
    let pods = clusters.tenant_api::<Pod>();
    let mut devices = request(CLASS);
    devices["config"] = json!([{"opaque": {"driver": CLASS, "parameters": {"kind": "Sharing"}}}]);
    create(
        &claims,
        json!({"metadata": {"name": "shared"}, "spec": {"devices": devices}}),
    )
    .await;
    let mut expected = Vec::new();
    for name in ["first", "second"] {
        create(&pods, with_claim(name, &json!({"resourceClaimName": "shared"}))).await;
    }
    for name in ["first", "second"] {
        let pod = running(clusters, name).await;
        expected.push((name.to_owned(), pod.metadata.uid.unwrap()));
    }
    eventually("the claim is reserved for both pods", async || {
        reserved(&claims.get("shared").await.unwrap()) == expected
    })
    .await;
    let claim = claims.get("shared").await.unwrap();
    let node = pods.get("first").await.unwrap().spec.unwrap().node_name.unwrap();
    assert_eq!(allocated(&claim), [("gpu".to_owned(), CLASS.to_owned(), node.clone())]);
    assert_eq!(pods.get("second").await.unwrap().spec.unwrap().node_name, Some(node));
    assert_eq!(claim.metadata.finalizers.unwrap_or_default(), [PROTECTION]);

    // A claim in use stays until its pods end.
    claims.delete("shared", &DeleteParams::default()).await.unwrap();
    delete_pods(clusters, &["first"]).await;
    eventually("one pod is left", async || {
        let claim = claims.get_opt("shared").await.unwrap();
        claim.is_some_and(|claim| reserved(&claim).len() == 1 && claim.metadata.deletion_timestamp.is_some())
    })
    .await;
    delete_pods(clusters, &["second"]).await;
    gone(clusters, "the shared claim").await;
}

async fn a_template_makes_a_claim_for_each_pod(clusters: &Clusters) {
    let templates = clusters.tenant_api::<ResourceClaimTemplate>();
    let claims = clusters.tenant_api::<ResourceClaim>();
    let pods = clusters.tenant_api::<Pod>();
    let huge =
        json!([{"cel": {"expression": format!("device.capacity['{CLASS}'].memory.isGreaterThan(quantity('1Ti'))")}}]);
    let devices = json!({"requests": [{"name": "gpu", "firstAvailable": [
        {"name": "huge", "deviceClassName": CLASS, "selectors": huge}, {"name": "any", "deviceClassName": CLASS}]}]});
    create(&templates, json!({"metadata": {"name": "one-gpu"}, "spec": {"metadata": {"labels": {"team": "vision"}}, "spec": {"devices": devices}}})).await;
    for name in ["a", "b"] {
        create(
            &pods,
            with_claim(name, &json!({"resourceClaimTemplateName": "one-gpu"})),
        )
        .await;
    }
    for name in ["a", "b"] {
        let pod = running(clusters, name).await;
        let statuses = pod.status.unwrap().resource_claim_statuses.unwrap();
        let claim = statuses[0].resource_claim_name.clone().unwrap();
        assert!(
            claim.starts_with(&format!("{name}-gpu-")) && claim.len() == name.len() + 10,
            "{claim}"
        );
        eventually("the claim is mirrored", async || {
            let claim = claims.get_opt(&claim).await.unwrap();
            claim.is_some_and(|claim| !reserved(&claim).is_empty())
        })
        .await;
        let claim = claims.get(&claim).await.unwrap();
        assert_eq!(allocated(&claim)[0].0, "gpu/any");
        let uid = pod.metadata.uid.unwrap();
        assert_eq!(reserved(&claim), [(name.to_owned(), uid.clone())]);
        let owner = &claim.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!((&*owner.kind, &*owner.name, &*owner.uid), ("Pod", name, &*uid));
        assert_eq!(claim.metadata.labels.unwrap()["team"], "vision");
    }
    delete_pods(clusters, &["a", "b"]).await;
    gone(clusters, "every claim of the template").await;
    templates.delete("one-gpu", &DeleteParams::default()).await.unwrap();
    eventually("the host's template is gone", async || {
        let host = clusters.host_api::<ResourceClaimTemplate>();
        host.list(&ListParams::default()).await.unwrap().items.is_empty()
    })
    .await;
}

async fn the_claim_of_a_finished_pod_goes(clusters: &Clusters) {
    let templates = clusters.tenant_api::<ResourceClaimTemplate>();
    let pods = clusters.tenant_api::<Pod>();
    // Created before its template: the pod waits in the tenant.
    let mut early = with_claim("early", &json!({"resourceClaimTemplateName": "later"}));
    early["metadata"]["annotations"] = json!({"simulation.berth.dev/run-for": "1s"});
    early["spec"]["restartPolicy"] = "Never".into();
    create(&pods, early).await;
    eventually("an Event names the missing template", async || {
        let messages = events(clusters, "early", "FailedResourceClaimCreation").await;
        messages.iter().any(|message| message.contains("\"later\""))
    })
    .await;
    assert!(clusters.host_pods().await.iter().all(|pod| origin(pod) != "early"));
    create(
        &templates,
        json!({"metadata": {"name": "later"}, "spec": {"spec": {"devices": request(CLASS)}}}),
    )
    .await;
    eventually("the pod has run", async || is_phase(&pods, "early", "Succeeded").await).await;
    gone(clusters, "the claim of the finished pod").await;
    delete_pods(clusters, &["early"]).await;
    templates.delete("later", &DeleteParams::default()).await.unwrap();
}

async fn device_classes_that_are_not_offered_are_denied(clusters: &Clusters) {
    let claims = clusters.tenant_api::<ResourceClaim>();
    let pods = clusters.tenant_api::<Pod>();
    // In its own cluster the team may grant itself everything.
    let namespaces: Api<Namespace> = Api::all(clusters.tenant_admin.clone());
    let label = Patch::Merge(json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}));
    namespaces
        .patch("default", &PatchParams::default(), &label)
        .await
        .unwrap();
    let mut admin = request(CLASS);
    admin["requests"][0]["exactly"]["adminAccess"] = true.into();
    create(
        &claims,
        json!({"metadata": {"name": "admin"}, "spec": {"devices": admin}}),
    )
    .await;
    create(
        &claims,
        json!({"metadata": {"name": "secret"}, "spec": {"devices": request("secret.example.com")}}),
    )
    .await;
    for (claim, field) in [("admin", "adminAccess"), ("secret", "deviceClassName")] {
        eventually(&format!("{claim} is denied"), async || {
            let messages = events(clusters, claim, "FieldDenied").await;
            messages.iter().any(|message| message.contains(field))
        })
        .await;
    }
    create(&pods, with_claim("hopeful", &json!({"resourceClaimName": "secret"}))).await;
    eventually("an Event says why the pod waits", async || {
        let messages = events(clusters, "hopeful", "FieldDenied").await;
        messages.iter().any(|message| message.contains("secret is denied"))
    })
    .await;
    assert!(
        clusters
            .host_api::<ResourceClaim>()
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .is_empty()
    );
    // With a claim of an offered class the pod runs.
    claims.delete("secret", &DeleteParams::default()).await.unwrap();
    create(
        &claims,
        json!({"metadata": {"name": "secret"}, "spec": {"devices": request(CLASS)}}),
    )
    .await;
    running(clusters, "hopeful").await;
    delete_pods(clusters, &["hopeful"]).await;
    for claim in ["secret", "admin"] {
        claims.delete(claim, &DeleteParams::default()).await.unwrap();
    }
    gone(clusters, "every denied claim").await;
}

async fn an_extended_resource_is_a_device(clusters: &Clusters, pods_say_claim: bool) {
    let pods = clusters.tenant_api::<Pod>();
    let claims = clusters.tenant_api::<ResourceClaim>();
    let container = json!({"name": "main", "image": "app:1", "resources": {"limits": {"example.com/gpu": "2"}}});
    create(&pods, pod("plain", &json!({"containers": [container]}))).await;
    running(clusters, "plain").await;
    eventually("the claim is mirrored", async || {
        let claims = claims.list(&ListParams::default()).await.unwrap();
        claims.iter().any(|claim| {
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            name.starts_with("plain-extended-resources-") && allocated(claim).len() == 2
        })
    })
    .await;
    if !pods_say_claim {
        return;
    }
    let extended = async || {
        pods.get("plain")
            .await
            .unwrap()
            .status
            .unwrap()
            .extended_resource_claim_status
    };
    eventually("the pod says which claim it got", async || extended().await.is_some()).await;
    let status = extended().await.unwrap();
    assert!(claims.get_opt(&status.resource_claim_name).await.unwrap().is_some());
    assert_eq!(status.request_mappings[0].resource_name, "example.com/gpu");
}

/// As a controller of the host makes one for a kind that the tenant's class names.
async fn a_template_of_the_hosts_own(clusters: &Clusters) {
    let name = host_name(KindId::ResourceClaimTemplate, &Name::new("default", "from-host"));
    let templates = clusters.host_api::<ResourceClaimTemplate>();
    create(
        &templates,
        json!({"metadata": {"name": name}, "spec": {"spec": {"devices": request(CLASS)}}}),
    )
    .await;
    let domain = json!({"claimTemplateName": "from-host"});
    custom::make(&custom::widgets(&clusters.tenant_admin, "default"), "domain", &domain).await;
    let pods = clusters.tenant_api::<Pod>();
    create(
        &pods,
        with_claim("channel", &json!({"resourceClaimTemplateName": "from-host"})),
    )
    .await;
    running(clusters, "channel").await;
    let claims = clusters.tenant_api::<ResourceClaim>();
    eventually("both claims are mirrored", async || {
        let claims = claims.list(&ListParams::default()).await.unwrap();
        claims.items.len() == 2 && claims.iter().all(|claim| !allocated(claim).is_empty())
    })
    .await;
}

async fn slices_go_with_their_devices(clusters: &Clusters) {
    let published: Api<TenantNode> = Api::namespaced(clusters.host_admin.clone(), CONTROL_PLANE);
    let none = Patch::Merge(json!({"status": {"resourceSlices": []}}));
    published
        .patch_status(NODES[0], &PatchParams::default(), &none)
        .await
        .unwrap();
    clusters.unpublish_node(NODES[1]).await;
    let slices: Api<ResourceSlice> = Api::all(clusters.tenant_admin.clone());
    eventually("no slice is mirrored", async || {
        slices.list(&ListParams::default()).await.unwrap().items.is_empty()
    })
    .await;
}

async fn versions(clusters: &Clusters) -> Vec<String> {
    let list = ListParams::default();
    let mut versions = Vec::new();
    for api in [clusters.tenant_api::<ResourceClaim>(), clusters.host_api()] {
        let claims = api.list(&list).await.unwrap();
        versions.extend(claims.into_iter().map(|claim| claim.metadata.resource_version.unwrap()));
    }
    let slices: Api<ResourceSlice> = Api::all(clusters.tenant_admin.clone());
    let slices = slices.list(&list).await.unwrap();
    versions.extend(slices.into_iter().map(|slice| slice.metadata.resource_version.unwrap()));
    versions.sort();
    versions
}

/// The host's scheduler would give devices to a claim that is there.
async fn what_the_class_takes_away_is_withdrawn_from_claims_that_wait(clusters: &mut Clusters) {
    let claims = clusters.tenant_api::<ResourceClaim>();
    let name = host_name(KindId::ResourceClaim, &Name::new("default", "later"));
    let is_on_host = async |clusters: &Clusters| {
        let claims = clusters.host_api::<ResourceClaim>();
        claims.get_opt(&name).await.unwrap().is_some()
    };
    let syncer = clusters.syncer().await;
    create(
        &claims,
        json!({"metadata": {"name": "later"}, "spec": {"devices": request(CLASS)}}),
    )
    .await;
    eventually("it is on the host", async || is_on_host(clusters).await).await;
    syncer.stop().await;
    let offered = clusters.policy.clone();
    clusters.policy.devices.classes.clear();
    let syncer = clusters.syncer().await;
    eventually("it is taken back", async || !is_on_host(clusters).await).await;
    syncer.stop().await;
    clusters.policy = offered;
    let syncer = clusters.syncer().await;
    eventually("it is back with the offer", async || is_on_host(clusters).await).await;
    claims.delete("later", &DeleteParams::default()).await.unwrap();
    eventually("it is gone", async || !is_on_host(clusters).await).await;
    syncer.stop().await;
}

async fn after_a_restart_nothing_is_written(clusters: &Clusters) {
    create(
        &clusters.tenant_api::<ResourceClaim>(),
        json!({"metadata": {"name": "last"}, "spec": {"devices": request(CLASS)}}),
    )
    .await;
    let syncer = clusters.syncer().await;
    let claims = clusters.host_api::<ResourceClaim>();
    eventually("the last claim is on the host", async || {
        claims.list(&ListParams::default()).await.unwrap().items.len() == 3
    })
    .await;
    settled("nothing changes", async || versions(clusters).await).await;
    syncer.stop().await;
    let before = versions(clusters).await;
    let syncer = clusters.syncer().await;
    // When another object arrives, the syncer has handled everything before it.
    create(
        &clusters.tenant_api::<Pod>(),
        with_claim("user", &json!({"resourceClaimName": "absent"})),
    )
    .await;
    eventually("the pod is on the host", async || clusters.host_pods().await.len() == 3).await;
    assert_eq!(versions(clusters).await, before);
    syncer.stop().await;
}

async fn nothing_remains(clusters: &Clusters) {
    delete_pods(clusters, &["plain", "channel", "user"]).await;
    clusters
        .tenant_api::<ResourceClaim>()
        .delete("last", &DeleteParams::default())
        .await
        .unwrap();
    gone(clusters, "everything").await;
    let claims: Api<ResourceClaim> = Api::namespaced(clusters.host_admin.clone(), WORKLOADS);
    assert!(claims.list(&ListParams::default()).await.unwrap().items.is_empty());
}
