//! Everything that a syncer creates besides pods.

use super::{StolenCredential, expect_denied, rbac, wait_until_served, with};
use berth_api::labels;
use berth_tests::wait::{SOON, until, until_true};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolumeClaim},
    scheduling::v1::PriorityClass,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

pub(super) async fn metadata_and_secrets(credential: &StolenCredential) {
    let object = |kind: &str, metadata: &Value| credential.object("v1", kind, &json!({"metadata": metadata}));
    let owner = |more: &Value| {
        let owner = with(
            &json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}),
            more,
        );
        json!({"ownerReferences": [owner]})
    };
    credential.expect_allowed(&object("ConfigMap", &json!({}))).await;
    credential.expect_allowed(&object("Secret", &owner(&json!({})))).await;
    for (message, denied) in [
        (
            "berth.dev/tenant",
            object("ConfigMap", &json!({"labels": {labels::TENANT: "other"}})),
        ),
        (
            "berth.dev/managed-by",
            object("ConfigMap", &json!({"labels": {labels::MANAGED_BY: null}})),
        ),
        (
            "berth.dev/origin-name",
            object("ConfigMap", &json!({"annotations": {labels::ORIGIN_NAME: null}})),
        ),
        (
            "berth.dev/origin-namespace",
            object("Secret", &json!({"annotations": {labels::ORIGIN_NAMESPACE: ""}})),
        ),
        ("metadata.ownerReferences", object("ConfigMap", &owner(&json!({})))),
        (
            "metadata.ownerReferences",
            object("Secret", &owner(&json!({"blockOwnerDeletion": true}))),
        ),
        (
            "metadata.finalizers",
            object("Secret", &json!({"finalizers": ["example.com/forever"]})),
        ),
        // Those that the host puts on other kinds: nobody would remove them.
        (
            "metadata.finalizers",
            object("ConfigMap", &json!({"finalizers": ["kubernetes.io/pvc-protection"]})),
        ),
        (
            "metadata.finalizers",
            object("ConfigMap", &json!({"finalizers": ["kueue.x-k8s.io/managed"]})),
        ),
        (
            "metadata.finalizers",
            object(
                "ConfigMap",
                &json!({"finalizers": ["scheduling.k8s.io/podgroup-protection"]}),
            ),
        ),
        (
            "metadata.finalizers",
            with(
                &credential.pod(&json!({})),
                &json!({"metadata": {"finalizers": ["kueue.x-k8s.io/managed"]}}),
            ),
        ),
        (
            "token of the host",
            with(
                &object(
                    "Secret",
                    &json!({"annotations": {"kubernetes.io/service-account.name": "default"}}),
                ),
                &json!({"type": "kubernetes.io/service-account-token"}),
            ),
        ),
    ] {
        credential.expect_denied(message, &denied).await;
    }
    let managed =
        json!({"metadata": {"finalizers": ["kueue.x-k8s.io/managed"], "labels": {"kueue.x-k8s.io/managed": "true"}}});
    credential
        .expect_allowed(&with(&credential.pod(&json!({})), &managed))
        .await;
    // Objects that the host's controllers keep in the namespace.
    let maps: Api<k8s_openapi::api::core::v1::ConfigMap> =
        Api::namespaced(credential.client.clone(), &credential.namespace);
    let mine = json!({"metadata": {"labels": {labels::TENANT: credential.slug, labels::MANAGED_BY: "syncer"}}, "data": {"ca.crt": "mine"}});
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    expect_denied(
        "may not change objects",
        maps.patch("kube-root-ca.crt", &params, &Patch::Merge(mine)).await,
    );
}

/// Keys of ConfigMaps and Secrets become variables of containers.
pub(super) async fn sources_of_variables(credential: &StolenCredential) {
    for kind in ["ConfigMap", "Secret"] {
        let with_key = |key: &str| credential.object("v1", kind, &json!({"data": {key: "YWxs", "mode": "ZmFzdA=="}}));
        // Those of applications, and the one that the class gives.
        for key in [
            "NVIDIA_API_KEY",
            "NVIDIA_DRIVER_CAPABILITIES",
            "NVIDIA_GDS",
            "HIP_VISIBLE_DEVICES",
        ] {
            credential.expect_allowed(&with_key(key)).await;
        }
        for key in [
            "NVIDIA_VISIBLE_DEVICES",
            "NVIDIA_MOFED",
            "DOCKER_RESOURCE_GPU",
            "CUDA_VERSION",
            "NEW_VENDOR_VISIBLE_DEVICES",
            "VISIBLE_DEVICES",
        ] {
            credential.expect_denied("may not choose devices", &with_key(key)).await;
        }
    }
}

pub(super) async fn services_and_endpoints(credential: &StolenCredential, admin: &Client) {
    let service = |spec: &Value| {
        credential.object(
            "v1",
            "Service",
            &json!({"spec": with(&json!({"ports": [{"port": 1}]}), spec)}),
        )
    };
    let external = |name: &str| service(&json!({"type": "ExternalName", "externalName": name}));
    for allowed in [service(&json!({})), service(&json!({"type": "NodePort"}))] {
        credential.expect_allowed(&allowed).await;
    }
    for (message, denied) in [
        ("spec.externalIPs", service(&json!({"externalIPs": ["203.0.113.7"]}))),
        (
            "spec.loadBalancerIP",
            service(&json!({"loadBalancerIP": "203.0.113.7"})),
        ),
        ("spec.type", service(&json!({"type": "LoadBalancer"}))),
        ("spec.type", external("db.example.com")),
        ("spec.type", external("kubernetes.default.svc")),
    ] {
        credential.expect_denied(message, &denied).await;
    }
    let marked = json!({"metadata": {"labels": {"endpointslice.kubernetes.io/managed-by": "syncer.berth.dev"}}});
    let base = json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.1.1.1"]}]});
    let slice = |more: &Value| {
        credential.object(
            "discovery.k8s.io/v1",
            "EndpointSlice",
            &with(&with(&base, &marked), more),
        )
    };
    credential.expect_allowed(&slice(&json!({}))).await;
    let endpoints = |count: usize| -> Vec<Value> {
        let address = |n: usize| format!("10.1.{}.{}", n / 250, n % 250 + 1);
        (0..count).map(|n| json!({"addresses": [address(n)]})).collect()
    };
    let largest = slice(&json!({"endpoints": endpoints(500), "ports": [{"name": "a", "port": 65_535}]}));
    credential.expect_allowed(&largest).await;
    let pod = json!({"kind": "Pod", "name": "p", "namespace": "kube-system"});
    for (message, denied) in [
        (
            "own controllers",
            slice(
                &json!({"metadata": {"labels": {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}}}),
            ),
        ),
        (
            "addressType",
            slice(&json!({"addressType": "FQDN", "endpoints": [{"addresses": ["a.example.com"]}]})),
        ),
        (
            "endpoints[].targetRef",
            slice(&json!({"endpoints": [{"addresses": ["10.1.1.1"], "targetRef": pod}]})),
        ),
        (
            "ports must be",
            slice(&json!({"ports": [{"name": "a", "port": 65_536}]})),
        ),
        ("ports must be", slice(&json!({"ports": [{"name": "a", "port": 0}]}))),
        ("at most 500 addresses", slice(&json!({"endpoints": endpoints(501)}))),
    ] {
        credential.expect_denied(message, &denied).await;
    }
    // The class offers every network; these are closed even so.
    let nodes: Api<Node> = Api::all(admin.clone());
    let nodes = nodes.list(&ListParams::default()).await.unwrap().items;
    let addresses = nodes.iter().filter_map(|node| node.status.as_ref()?.addresses.as_ref());
    let mut addresses = addresses.flatten().filter(|address| address.type_ == "InternalIP");
    let node = addresses.next().map(|address| address.address.as_str());
    for address in ["10.96.0.1", "100.100.100.200", "168.63.129.16"]
        .into_iter()
        .chain(node)
    {
        let mixed = slice(&json!({"endpoints": [{"addresses": ["10.1.1.1"]}, {"addresses": [address]}]}));
        credential
            .expect_denied("endpoints[].addresses may not hold addresses of the host", &mixed)
            .await;
    }
    ipv6_endpoints(credential, &slice).await;
    // The API server's own rule.
    for address in ["169.254.169.254", "127.0.0.1"] {
        let refused = credential
            .create(&slice(&json!({"endpoints": [{"addresses": [address]}]})))
            .await;
        assert!(
            matches!(refused, Err(kube::Error::Api(status)) if status.code == 422),
            "{address}"
        );
    }
}

/// Endpoints with IPv6 addresses.
async fn ipv6_endpoints(credential: &StolenCredential, slice: &impl Fn(&Value) -> Value) {
    let with_address = |address: &str| slice(&json!({"addressType": "IPv6", "endpoints": [{"addresses": [address]}]}));
    credential.expect_allowed(&with_address("2606:4700::1")).await;
    // 169.254.169.254 and the first Service of the host behind translators.
    for address in [
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::a60:1",
        "2002:a9fe:a9fe::1",
        "2001:0:1::1",
    ] {
        credential
            .expect_denied("IPv6 forms of IPv4 addresses", &with_address(address))
            .await;
    }
}

/// The host puts a finalizer on each new group, and its scheduler goes by the priority of a group.
pub(super) async fn groups_of_pods(credential: &StolenCredential, admin: &Client) {
    // As for a class that lists the kind.
    let syncer = rbac::service_account(&format!("{}-cp", credential.namespace), "syncer");
    let rules = json!([{"apiGroups": ["scheduling.k8s.io"], "resources": ["podgroups"], "verbs": ["create"]}]);
    rbac::grant(admin, &credential.namespace, "groups-of-pods", &syncer, &rules).await;
    let group = |more: &Value| {
        let spec = with(&json!({"schedulingPolicy": {"gang": {"minCount": 2}}}), more);
        credential.object("scheduling.k8s.io/v1beta1", "PodGroup", &json!({"spec": spec}))
    };
    let of_class = |name: &str| group(&json!({"priorityClassName": name}));
    wait_until_served(credential, &of_class("berth-policies-3-never")).await;
    let classes: Api<PriorityClass> = Api::all(admin.clone());
    let urgent = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "platform-urgent"}, "value": 1_000_000});
    let params = PatchParams::apply("berth-tests");
    classes
        .patch("platform-urgent", &params, &Patch::Apply(&urgent))
        .await
        .unwrap();
    let urgent = of_class("platform-urgent");
    // An API server that does not know the class yet says so itself.
    until_true("the API server knows the class", SOON, async || {
        let refusal = credential.create(&urgent).await.unwrap_err();
        !refusal.to_string().contains("no PriorityClass")
    })
    .await;
    for denied in [
        urgent,
        // The host's default priority.
        group(&json!({})),
        // The tenant has a shared pool, where others' pods are.
        of_class("berth-policies-3"),
    ] {
        credential.expect_denied("spec.priorityClassName", &denied).await;
    }
}

/// What controllers of the host write into a claim instructs drivers, and stays as they wrote it.
pub(super) async fn annotations_of_claims(credential: &StolenCredential, admin: &Client) {
    const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
    let annotated = |value: &str| json!({"metadata": {"annotations": {PROVISIONER: value}}});
    let claim = json!({"metadata": {"name": "claim"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "fast"}});
    let claim = credential.object("v1", "PersistentVolumeClaim", &claim);
    let claims = |client: &Client| Api::<PersistentVolumeClaim>::namespaced(client.clone(), &credential.namespace);
    let (own, admins) = (claims(&credential.client), claims(admin));
    own.create(&PostParams::default(), &serde_json::from_value(claim).unwrap())
        .await
        .unwrap();
    let hosts = Patch::Merge(annotated("disks.example.com"));
    admins.patch("claim", &PatchParams::default(), &hosts).await.unwrap();
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let other = Patch::Merge(annotated("other.example.com"));
    expect_denied("storage drivers", own.patch("claim", &dry_run, &other).await);
    let labelled = json!({"metadata": {"labels": {"berth.dev/x": "y"}}});
    own.patch("claim", &dry_run, &Patch::Merge(labelled)).await.unwrap();
    own.delete("claim", &DeleteParams::default()).await.unwrap();
}

/// Kubernetes lets the class of a claim be chosen later, if it has none.
pub(super) async fn classes_of_claims(credential: &StolenCredential, admin: &Client) {
    let claim = json!({"metadata": {"name": "without-class"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    let claim = credential.object("v1", "PersistentVolumeClaim", &claim);
    let claims = |client: &Client| Api::<PersistentVolumeClaim>::namespaced(client.clone(), &credential.namespace);
    let (own, admins) = (claims(&credential.client), claims(admin));
    admins
        .create(&PostParams::default(), &serde_json::from_value(claim).unwrap())
        .await
        .unwrap();
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let chosen = Patch::Merge(json!({"spec": {"storageClassName": "other"}}));
    let changed = own.patch("without-class", &dry_run, &chosen).await;
    expect_denied("spec.storageClassName", changed);
    admins.delete("without-class", &DeleteParams::default()).await.unwrap();
}

/// A driver of node-local volumes makes a volume on the node that an annotation names.
pub(super) async fn nodes_of_claims(credential: &StolenCredential, admin: &Client) {
    let claim = |node: &str| {
        let annotations = json!({"volume.kubernetes.io/selected-node": node});
        let claim = json!({"metadata": {"annotations": annotations}, "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "fast"}});
        credential.object("v1", "PersistentVolumeClaim", &claim)
    };
    let nodes: Api<Node> = Api::all(admin.clone());
    let others = nodes.list(&ListParams::default()).await.unwrap().items;
    for node in others
        .iter()
        .map(ResourceExt::name_any)
        .chain(["no-such-node".to_owned()])
    {
        credential.expect_denied("selected-node", &claim(&node)).await;
    }
    // As control lists nodes that are assigned to the tenant.
    let name = format!("{}-own-node", credential.slug);
    let rules =
        json!([{"apiGroups": ["metrics.k8s.io"], "resources": ["nodes"], "resourceNames": ["own"], "verbs": ["get"]}]);
    let syncer = rbac::service_account(&format!("{}-cp", credential.namespace), "syncer");
    rbac::grant(admin, "", &name, &syncer, &rules).await;
    until("the role holds", SOON, async || credential.create(&claim("own")).await).await;
    credential.expect_denied("selected-node", &claim("other")).await;
    rbac::revoke(admin, &name).await;
}

/// Programs of the host (volume populators) follow references to other kinds with rights of their own, and read from other namespaces.
pub(super) async fn sources_of_claims(credential: &StolenCredential) {
    let base = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "fast"});
    let claim = |spec: &Value| credential.object("v1", "PersistentVolumeClaim", &json!({"spec": with(&base, spec)}));
    let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "monday"});
    let own = json!({"kind": "PersistentVolumeClaim", "name": "own"});
    for source in [&snapshot, &own] {
        for field in ["dataSource", "dataSourceRef"] {
            credential.expect_allowed(&claim(&json!({field: source}))).await;
        }
    }
    let kinds = "may name PersistentVolumeClaims and VolumeSnapshots only";
    for (group, kind) in [
        ("cdi.kubevirt.io", "VolumeImportSource"),
        ("populators.example.com", "PersistentVolumeClaim"),
        ("snapshot.storage.k8s.io", "VolumeSnapshotContent"),
    ] {
        let source = json!({"apiGroup": group, "kind": kind, "name": "theirs"});
        credential
            .expect_denied(kinds, &claim(&json!({"dataSourceRef": source})))
            .await;
        // API servers drop it, or ask the policy.
        match credential.create(&claim(&json!({"dataSource": source}))).await {
            Ok(created) => assert_without_source(&created.data),
            refused => expect_denied(kinds, refused),
        }
    }
    // A controller of the host would make this claim, which no policy would see.
    let source = json!({"apiGroup": "cdi.kubevirt.io", "kind": "VolumeImportSource", "name": "theirs"});
    let template = json!({"spec": with(&base, &json!({"dataSourceRef": source}))});
    let volume = json!({"name": "v", "ephemeral": {"volumeClaimTemplate": template}});
    let pod = credential.pod(&json!({"volumes": [volume]}));
    credential.expect_denied("spec.volumes may not reach", &pod).await;
    // Those without the feature CrossNamespaceVolumeDataSource drop it.
    let elsewhere = with(&own, &json!({"namespace": "default"}));
    match credential.create(&claim(&json!({"dataSourceRef": elsewhere}))).await {
        Ok(created) => assert_without_source(&created.data),
        refused => expect_denied("spec.dataSourceRef must be in the same namespace", refused),
    }
}

/// Asserts that nothing fills the volume of a claim.
fn assert_without_source(claim: &Value) {
    for field in ["dataSource", "dataSourceRef"] {
        assert!(claim["spec"][field].is_null(), "{claim}");
    }
}

pub(super) async fn storage_and_devices(credential: &StolenCredential) {
    let base = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "fast"});
    let claim = |spec: &Value| credential.object("v1", "PersistentVolumeClaim", &json!({"spec": with(&base, spec)}));
    credential.expect_allowed(&claim(&json!({}))).await;
    let instructed = json!({"metadata": {"annotations": {"example.com/import-volume": "theirs"}}});
    for (message, denied) in [
        ("spec.storageClassName", claim(&json!({"storageClassName": "other"}))),
        ("spec.storageClassName", claim(&json!({"storageClassName": ""}))),
        ("spec.volumeName", claim(&json!({"volumeName": "theirs"}))),
        (
            "spec.selector",
            claim(&json!({"selector": {"matchLabels": {"a": "b"}}})),
        ),
        ("storage drivers", with(&claim(&json!({})), &instructed)),
    ] {
        credential.expect_denied(message, &denied).await;
    }
    let snapshot = |spec: &Value| {
        let base = json!({"source": {"persistentVolumeClaimName": "c"}, "volumeSnapshotClassName": "daily"});
        credential.object(
            "snapshot.storage.k8s.io/v1",
            "VolumeSnapshot",
            &json!({"spec": with(&base, spec)}),
        )
    };
    wait_until_served(credential, &snapshot(&json!({}))).await;
    let content = json!({"source": {"persistentVolumeClaimName": null, "volumeSnapshotContentName": "theirs"}});
    credential
        .expect_denied("volumeSnapshotContentName", &snapshot(&content))
        .await;
    credential
        .expect_denied(
            "volumeSnapshotClassName",
            &snapshot(&json!({"volumeSnapshotClassName": "other"})),
        )
        .await;

    let request =
        |more: &Value| json!({"requests": [{"name": "r", "exactly": with(&json!({"deviceClassName": "gpu"}), more)}]});
    let config = |driver: &str| {
        let opaque = json!({"driver": driver, "parameters": {"a": 1}});
        with(&request(&json!({})), &json!({"config": [{"opaque": opaque}]}))
    };
    let either = json!({"requests": [{"name": "r", "firstAvailable": [
        {"name": "a", "deviceClassName": "gpu"}, {"name": "b", "deviceClassName": "other"}]}]});
    let everything = json!({"tolerations": [{"operator": "Exists"}]});
    let as_claim = |devices: &Value| {
        credential.object(
            "resource.k8s.io/v1",
            "ResourceClaim",
            &json!({"spec": {"devices": devices}}),
        )
    };
    let as_template = |devices: &Value| {
        let spec = json!({"spec": {"spec": {"devices": devices}}});
        credential.object("resource.k8s.io/v1", "ResourceClaimTemplate", &spec)
    };
    for allowed in [json!({}), request(&json!({})), config("gpu.example.com")] {
        credential.expect_allowed(&as_claim(&allowed)).await;
        credential.expect_allowed(&as_template(&allowed)).await;
    }
    for (message, devices) in [
        ("deviceClassName", request(&json!({"deviceClassName": "other"}))),
        ("deviceClassName", either),
        ("tolerations", request(&everything)),
        ("config", config("other.example.com")),
    ] {
        credential.expect_denied(message, &as_claim(&devices)).await;
        credential.expect_denied(message, &as_template(&devices)).await;
    }
}
