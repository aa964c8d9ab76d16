//! What an API server makes for itself: its limits of a tenant's datastore exempt these objects, so the list must be complete.

use berth_control::control_plane::{OwnObject, api_server_objects};
use berth_kubernetes_versions::{KUBERNETES_DEFAULT, KUBERNETES_PREVIOUS, features};
use berth_tests::{
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use k8s_openapi::{
    api::{core::v1::Service, flowcontrol::v1::FlowSchema, networking::v1::ServiceCIDR, rbac::v1::ClusterRole},
    kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};
use kube::{
    Api, Client, Error, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
    discovery::{ApiGroup, Discovery, verbs},
};
use serde_json::json;
use std::{collections::BTreeSet, sync::Arc};

/// Names under which an API server writes.
const WRITERS: [&str; 2] = ["kube-apiserver", "api-priority-and-fairness-config-producer-v1"];
/// Label of the `APIServices` that an API server makes, and its value on those that exist from its start on. The others belong to
/// `CustomResourceDefinitions`.
const MANAGED: (&str, &str) = ("kube-aggregator.kubernetes.io/automanaged", "onstart");
/// What it also makes: it starts without these, except for `IPAddresses`, which have the names of addresses.
const OTHERS: [(&str, &str); 5] = [
    ("", "configmaps"),
    ("", "events"),
    ("coordination.k8s.io", "leases"),
    ("events.k8s.io", "events"),
    ("networking.k8s.io", "ipaddresses"),
];

/// A group of another server, which the tenant's API server only forwards to.
const METRICS: &str = "metrics.k8s.io";

/// An object as text.
fn describe(object: &OwnObject<'_>) -> String {
    let OwnObject {
        group,
        resource,
        namespace,
        name,
    } = object;
    format!("{resource} of the group {group:?}, namespace {namespace:?}: {name}")
}

/// Whether an API server made an object.
fn is_made_by_api_server(object: &DynamicObject) -> bool {
    let (label, at_start) = MANAGED;
    let is_of_definition = object.labels().get(label).is_some_and(|value| value != at_start);
    let writes = object.managed_fields().iter().any(|entry| {
        entry.subresource.is_none()
            && entry
                .manager
                .as_deref()
                .is_some_and(|manager| WRITERS.contains(&manager))
    });
    writes && !is_of_definition
}

/// Every object that the API server of a tenant has made.
async fn made_by_api_server(client: &Client) -> BTreeSet<String> {
    #[expect(clippy::disallowed_methods, reason = "nobody else is in this tenant")]
    let discovery = Discovery::new(client.clone()).run().await.unwrap();
    let mut made = BTreeSet::new();
    for (kind, capabilities) in discovery.groups().flat_map(ApiGroup::resources_by_stability) {
        let is_other = kind.group == METRICS || OTHERS.contains(&(kind.group.as_str(), kind.plural.as_str()));
        if is_other || !capabilities.supports_operation(verbs::LIST) {
            continue;
        }
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
        let objects = api
            .list(&ListParams::default())
            .await
            .unwrap_or_else(|error| panic!("{}: {error}", kind.plural));
        made.extend(
            objects
                .items
                .iter()
                .filter(|object| is_made_by_api_server(object))
                .map(|object| {
                    describe(&OwnObject {
                        group: &kind.group,
                        resource: &kind.plural,
                        namespace: object.metadata.namespace.as_deref().unwrap_or_default(),
                        name: object.metadata.name.as_deref().unwrap_or_default(),
                    })
                }),
        );
    }
    made
}

/// Only the versions that enforce limits of the datastore need the list.
pub(crate) async fn objects_of_every_api_server_are_listed(host: Arc<TestCluster>) {
    let listed: BTreeSet<String> = api_server_objects().iter().map(describe).collect();
    let mut known = BTreeSet::new();
    let versions = [KUBERNETES_PREVIOUS, KUBERNETES_DEFAULT];
    for version in versions
        .into_iter()
        .filter(|version| features::static_admission_policies(version))
    {
        let name = format!("own-objects-{}", version.replace('.', "-"));
        let mut spec = cluster(&name, &[]);
        spec.spec.version = Some(version.into());
        let tenant = Tenant::create(&host, &name, &spec).await;
        let made = made_by_api_server(&tenant.client).await;
        tenant.delete(&host).await;
        let missing: Vec<&String> = made.difference(&listed).collect();
        assert!(
            missing.is_empty(),
            "add to own_objects.rs what the API server of {version} makes: {missing:#?}"
        );
        known.extend(made);
    }
    // Each name that is listed may grow.
    let stale: Vec<&String> = listed.difference(&known).collect();
    assert!(
        stale.is_empty(),
        "remove from own_objects.rs what no API server makes: {stale:#?}"
    );
}

/// An admission policy of the tenant could deny a new API server to create or correct them: it would never be ready, and the one before it
/// would go on, without the limits and authorities that are new.
pub(crate) async fn own_objects_are_kept(admin: &Client) {
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let without_effect = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let no_trace = DeleteParams {
        dry_run: true,
        ..DeleteParams::default()
    };
    let services: Api<Service> = Api::namespaced(admin.clone(), "default");
    let apis: Api<APIService> = Api::all(admin.clone());
    let roles: Api<ClusterRole> = Api::all(admin.clone());
    let levels: Api<FlowSchema> = Api::all(admin.clone());
    let denied = |what: &str, refused: Option<Error>| {
        let message = refused.unwrap_or_else(|| panic!("{what} was allowed")).to_string();
        assert!(
            message.contains("creates this object for itself") || message.contains("belongs to the platform"),
            "{what}: {message}"
        );
    };
    let api = "v1.storagemigration.k8s.io";
    denied("delete an API", apis.delete(api, &no_trace).await.err());
    denied("delete a role", roles.delete("system:heapster", &no_trace).await.err());
    denied("delete view", roles.delete("view", &no_trace).await.err());
    denied("delete a schema", levels.delete("probes", &no_trace).await.err());
    denied("delete a Service", services.delete("kubernetes", &no_trace).await.err());
    let all = roles.delete_collection(&no_trace, &ListParams::default()).await;
    denied("delete all roles", all.err());
    // By the label of the platform: without it, the syncer takes nothing away that the class no longer allows.
    denied(
        "delete the syncer's role",
        roles.delete("berth:syncer", &no_trace).await.err(),
    );
    let fewer = json!({"rules": []});
    let changed = roles.patch("system:heapster", &dry_run, &Patch::Merge(&fewer)).await;
    denied("change a role", changed.err());
    let higher = json!({"spec": {"groupPriorityMinimum": 1}});
    denied(
        "change an API",
        apis.patch(api, &dry_run, &Patch::Merge(&higher)).await.err(),
    );

    // Kubernetes leaves such a role as it is.
    let of_tenant = json!({
        "metadata": {"annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}}, "rules": [],
    });
    roles
        .patch("system:heapster", &dry_run, &Patch::Merge(&of_tenant))
        .await
        .unwrap();
    // As a migration of what is stored does.
    roles.patch("view", &dry_run, &Patch::Merge(&json!({}))).await.unwrap();
    let ranges: Api<ServiceCIDR> = Api::all(admin.clone());
    let range = until("the controller has taken the ServiceCIDR", SOON, async || {
        let range = ranges.get("kubernetes").await.map_err(|error| error.to_string())?;
        if range.finalizers().is_empty() {
            Err("it has no finalizer".to_owned())
        } else {
            Ok(range)
        }
    })
    .await;
    assert!(range.metadata.deletion_timestamp.is_none());
    denied(
        "delete a ServiceCIDR",
        ranges.delete("kubernetes", &no_trace).await.err(),
    );
    // Whoever an administrator acts as.
    let request = http::Request::patch("/apis/rbac.authorization.k8s.io/v1/clusterroles/view?dryRun=All")
        .header("content-type", "application/merge-patch+json")
        .header(
            "Impersonate-User",
            "system:serviceaccount:kube-system:clusterrole-aggregation-controller",
        )
        .header("Impersonate-Group", "system:masters");
    let unmarked = json!({"metadata": {"labels": {"kubernetes.io/bootstrapping": null}}});
    let unmarked = request.body(unmarked.to_string().into_bytes()).unwrap();
    denied(
        "take a label as a controller",
        admin.request::<ClusterRole>(unmarked).await.err(),
    );
    // An API server deletes such objects when it starts.
    let mut foreign = levels.get("probes").await.unwrap();
    foreign.metadata = ObjectMeta {
        name: Some("foreign".into()),
        annotations: Some([("apf.kubernetes.io/autoupdate-spec".to_owned(), "true".to_owned())].into()),
        ..ObjectMeta::default()
    };
    foreign.spec.matching_precedence = Some(5000);
    foreign.spec.priority_level_configuration.name = "global-default".into();
    let created = levels.create(&without_effect, &foreign).await;
    assert!(created.is_err_and(|error| error.to_string().contains("is for Kubernetes' own FlowSchemas")));

    let label = json!({"metadata": {"labels": {"team": "a"}}});
    services
        .patch("kubernetes", &dry_run, &Patch::Merge(&label))
        .await
        .unwrap();
}
