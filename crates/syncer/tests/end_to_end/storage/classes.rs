//! Classes of the host in the tenant: mirrored, not offered, and taken back.

use super::{
    CLAIM, CLASS, CSI_DRIVER, SNAPSHOT_CLASS, VOLUME, claim, field, is_bound, make, merge, mounting, on_host,
    provisioner::DRIVER, remove, tenants,
};
use crate::{
    objects::{create, events, eventually, is_phase, origin, pod},
    setup::{Clusters, Syncer},
};
use berth_api::StorageOffer;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::json;

pub(super) async fn classes_are_mirrored(clusters: &Clusters) {
    let classes = tenants(clusters, CLASS);
    eventually("the offered classes", async || {
        let mut names: Vec<String> = classes
            .list(&ListParams::default())
            .await
            .unwrap()
            .iter()
            .map(ResourceExt::name_any)
            .collect();
        names.sort();
        names == ["fast", "late"]
    })
    .await;
    assert_eq!(field(&classes, "fast", "/parameters").await, None);
    eventually("driver and snapshot class", async || {
        field(&tenants(clusters, CSI_DRIVER), DRIVER, "/spec/attachRequired").await == Some(false.into())
            && field(&tenants(clusters, SNAPSHOT_CLASS), "daily", "/driver").await == Some(DRIVER.into())
    })
    .await;
    merge(&classes, "fast", json!({"allowVolumeExpansion": false})).await;
    eventually("the change is undone, with an Event", async || {
        field(&classes, "fast", "/allowVolumeExpansion").await == Some(true.into())
            && !events(clusters, "fast", "ReadOnly").await.is_empty()
    })
    .await;
    remove(&classes, "late").await;
    eventually("it is back", async || {
        field(&classes, "late", "/provisioner").await.is_some()
    })
    .await;
    let own = json!({"metadata": {"name": "own"}, "provisioner": "example.com/own"});
    make(&classes, CLASS, own).await;
    eventually("an Event reports the team's own class", async || {
        !events(clusters, "own", "NotSynced").await.is_empty()
    })
    .await;
}

pub(super) async fn classes_that_are_not_offered_are_reported(clusters: &Clusters) {
    let claims = tenants(clusters, CLAIM);
    make(&claims, CLAIM, claim("greedy", &json!({"storageClassName": "hidden"}))).await;
    make(&claims, CLAIM, claim("chosen", &json!({"volumeName": "theirs"}))).await;
    let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": "greedy"}});
    create(&clusters.tenant_api::<Pod>(), pod("hopeful", &mounting(&volume))).await;
    for (about, text) in [
        ("greedy", "the class hidden is not offered: use one of fast, late"),
        ("chosen", "spec.volumeName: volumes are made for claims"),
        ("hopeful", "it needs the PersistentVolumeClaim greedy, which is denied"),
    ] {
        eventually(&format!("{about}: {text}"), async || {
            let messages = events(clusters, about, "FieldDenied").await;
            messages.iter().any(|message| message.contains(text))
        })
        .await;
    }
    for name in ["greedy", "chosen"] {
        assert!(on_host(clusters, CLAIM, name).await.is_none());
    }
    assert!(clusters.host_pods().await.iter().all(|pod| origin(pod) != "hopeful"));
    let own = json!({"metadata": {"name": "disk"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "nfs": {"server": "10.0.0.1", "path": "/"}}});
    make(&tenants(clusters, VOLUME), VOLUME, own).await;
    eventually("an Event reports the team's own volume", async || {
        !events(clusters, "disk", "NotSynced").await.is_empty()
    })
    .await;
    let pods = clusters.tenant_api::<Pod>();
    pods.delete("hopeful", &DeleteParams::default()).await.unwrap();
}

/// Whether an Event denies a pod something of which this text speaks.
async fn is_denied(clusters: &Clusters, pod: &str, text: &str) -> bool {
    let messages = events(clusters, pod, "FieldDenied").await;
    messages.iter().any(|message| message.contains(text))
}

/// What runs with a class that is taken back goes on until that is withdrawn, nothing new mounts it, and the data stays.
pub(super) async fn a_class_is_taken_back_and_offered_again(clusters: &mut Clusters, syncer: Syncer) -> Syncer {
    const CLAIM_OF_CLASS: &str = "cache-db-0";
    const DENIED: &str = "the StorageClass late";
    let pods = clusters.tenant_api::<Pod>();
    syncer.stop().await;
    let offered = clusters.policy.clone();
    clusters.policy.storage.classes = vec!["fast".into()];
    let syncer = clusters.syncer().await;
    let before = pods.get("db-0").await.unwrap().uid();
    let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": CLAIM_OF_CLASS}});
    create(&pods, pod("late-comer", &mounting(&volume))).await;
    eventually("a new pod is denied", async || {
        is_denied(clusters, "late-comer", DENIED).await
    })
    .await;
    assert!(is_phase(&pods, "db-0", "Running").await);
    assert_eq!(pods.get("db-0").await.unwrap().uid(), before);
    pods.delete("late-comer", &DeleteParams::default()).await.unwrap();

    syncer.stop().await;
    clusters.withdrawn_storage = [StorageOffer::StorageClass("late".into())].into();
    let syncer = clusters.syncer().await;
    eventually("the pod ends, and the next one is denied", async || {
        let now = pods.get_opt("db-0").await.unwrap();
        now.is_some_and(|now| now.uid() != before)
            && is_denied(clusters, "db-0", DENIED).await
            && clusters.host_pods().await.iter().all(|pod| origin(pod) != "db-0")
    })
    .await;
    assert!(is_bound(clusters, CLAIM_OF_CLASS).await, "the data stays");
    assert!(on_host(clusters, CLAIM, CLAIM_OF_CLASS).await.is_some());

    syncer.stop().await;
    clusters.policy = offered;
    clusters.withdrawn_storage.clear();
    let syncer = clusters.syncer().await;
    eventually("it runs again", async || is_phase(&pods, "db-0", "Running").await).await;
    syncer
}

/// The same of a VolumeAttributesClass and of a CSI driver of inline volumes.
pub(super) async fn attributes_and_a_driver_are_taken_back_and_offered_again(
    clusters: &mut Clusters,
    syncer: Syncer,
) -> Syncer {
    let pods = clusters.tenant_api::<Pod>();
    let claims = tenants(clusters, CLAIM);
    make(
        &claims,
        CLAIM,
        claim("tuned", &json!({"volumeAttributesClassName": "gold"})),
    )
    .await;
    eventually("it is bound", async || is_bound(clusters, "tuned").await).await;
    let of_claim = json!({"name": "data", "persistentVolumeClaim": {"claimName": "tuned"}});
    let inline = json!({"name": "data", "csi": {"driver": DRIVER}});
    let kinds = [
        (
            "tuned",
            &of_claim,
            "the VolumeAttributesClass gold",
            "VolumeAttributesClassWithdrawn",
        ),
        ("inline", &inline, DRIVER, "InlineDriverWithdrawn"),
    ];
    let mut before = Vec::new();
    for (name, volume, ..) in kinds {
        create(&pods, pod(name, &mounting(volume))).await;
        eventually(&format!("{name} runs"), async || is_phase(&pods, name, "Running").await).await;
        before.push(pods.get(name).await.unwrap().uid());
    }

    syncer.stop().await;
    let offered = clusters.policy.clone();
    clusters.policy.storage.attributes_classes.clear();
    clusters.policy.storage.inline_drivers.clear();
    let syncer = clusters.syncer().await;
    for ((name, volume, denied, _), uid) in kinds.into_iter().zip(&before) {
        let new = format!("{name}-new");
        create(&pods, pod(&new, &mounting(volume))).await;
        eventually(&format!("{new} is denied"), async || {
            is_denied(clusters, &new, denied).await
        })
        .await;
        assert!(is_phase(&pods, name, "Running").await, "{name}");
        assert_eq!(pods.get(name).await.unwrap().uid(), *uid);
        pods.delete(&new, &DeleteParams::default()).await.unwrap();
    }

    syncer.stop().await;
    let withdrawn = ["VolumeAttributesClass/gold".to_owned(), format!("CSIDriver/{DRIVER}")];
    clusters.withdrawn_storage = withdrawn.map(|offer| offer.parse().unwrap()).into();
    let syncer = clusters.syncer().await;
    for (name, _, _, reason) in kinds {
        eventually(&format!("{name} ends and says why"), async || {
            let messages = events(clusters, name, "DeletionByPlatform").await;
            messages.iter().any(|message| message.contains(reason))
                && pods.get_opt(name).await.unwrap().is_none()
                && clusters.host_pods().await.iter().all(|pod| origin(pod) != name)
        })
        .await;
    }
    assert!(is_bound(clusters, "tuned").await, "the data stays");
    assert!(on_host(clusters, CLAIM, "tuned").await.is_some());

    syncer.stop().await;
    clusters.policy = offered;
    clusters.withdrawn_storage.clear();
    let syncer = clusters.syncer().await;
    for (name, volume, ..) in kinds {
        let again = format!("{name}-again");
        create(&pods, pod(&again, &mounting(volume))).await;
        eventually(&format!("{again} runs"), async || {
            is_phase(&pods, &again, "Running").await
        })
        .await;
        pods.delete(&again, &DeleteParams::default()).await.unwrap();
    }
    syncer
}
