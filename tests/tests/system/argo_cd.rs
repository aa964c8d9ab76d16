//! Argo CD on the host delivers into tenants. Its controllers are the programs of upstream, which `make test-argo-cd` builds; other runs
//! leave this test out. It starts control anew with the namespace of Argo CD, so it needs the cluster for itself.

use crate::sleep_use::{Requests, count};
use berth_api::{HostNodePool, RotationPhase, SleepState, conditions, labels};
use berth_sleep::activity::ARGO_CD_READS_SCHEMA;
use berth_tests::{
    argo_cd::{ArgoCd, judge_health},
    files::documents,
    git::{BRANCH, GitServer},
    objects::apply,
    sleep::{fall_asleep, request, until_state},
    tenant::{Tenant, cluster, ensure_namespace},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Secret},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};
use std::{path::Path, sync::Arc};

/// Namespaces and tenant of `examples/gitops/argo-cd.yaml`, its Application, and where its repository is.
const ARGO_CD: &str = "argocd";
const NAMESPACE: &str = "team-vision";
const NAME: &str = "vision";
const APPLICATION: &str = "base-vision";
const GIT_HOST: &str = "https://git.example.com";
const REPOSITORY: &str = "team-vision/base.git";
/// Namespace in the tenant.
const INTO: &str = "default";
const DEPLOYMENT: &str = "web";
const SETTINGS: &str = "settings";
/// By which Argo CD deletes what an Application delivered.
const FINALIZER: &str = "resources-finalizer.argocd.argoproj.io";

/// What the test looks at.
struct Scene {
    host: Arc<TestCluster>,
    argo_cd: ArgoCd,
    git: GitServer,
    tenant: Tenant,
}

pub(crate) async fn the_example_of_argo_cd_is_applied_in_tenants(host: Arc<TestCluster>) {
    for namespace in [ARGO_CD, NAMESPACE] {
        ensure_namespace(&host.client, namespace).await;
    }
    host.stop_control("first").await;
    host.start_control_with("first", &[format!("--argo-cd-namespace={ARGO_CD}")])
        .await;
    let git = GitServer::start(REPOSITORY);
    git.push(&[
        ("base/web.yaml", Some(&deployment(1))),
        ("base/settings.yaml", Some(&settings())),
    ]);
    let argo_cd = ArgoCd::start(&host, ARGO_CD).await;
    apply_the_example(&host, &git).await;
    let tenant = Tenant::ready(&host, NAMESPACE, NAME).await;
    let scene = Scene {
        host,
        argo_cd,
        git,
        tenant,
    };

    scene.the_health_of_berths_kinds_is_known().await;
    scene.the_application_is_delivered().await;
    scene.changes_are_delivered_and_drift_is_corrected().await;
    scene.what_argo_cd_reads_is_no_use().await;
    scene.no_application_reaches_a_tenant_of_another_team().await;
    scene.it_goes_on_after_a_rotation_of_all_credentials().await;
    scene.it_goes_on_after_a_sleep().await;
    scene.application_and_cluster_go_with_the_tenant().await;

    let Scene { host, argo_cd, .. } = scene;
    delete(&argo_cd, "ApplicationSet", "team-vision-base").await;
    delete(&argo_cd, "AppProject", NAMESPACE).await;
    host.stop_control("first").await;
    host.start_control("first").await;
}

/// Everything in the file, with the test's repository, and with a node for the Deployment.
async fn apply_the_example(host: &TestCluster, git: &GitServer) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/gitops/argo-cd.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    for mut document in documents(&text.replace(GIT_HOST, &git.url)) {
        if document["kind"] == "TenantCluster" {
            document["spec"]["nodeGroups"] = json!([{"name": "train", "poolName": "h100", "replicas": 1}]);
            // Its use is counted.
            document["spec"]["sleep"] = json!({"afterIdle": "30m"});
        }
        apply(&host.client, "", &document).await.unwrap();
    }
}

impl Scene {
    fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.tenant.client.clone(), INTO)
    }

    /// Waits until an Application has these states.
    async fn until_application(&self, what: &str, is_expected: impl Fn(&Value) -> bool) -> DynamicObject {
        let applications = self.argo_cd.objects("Application");
        until(what, SOON, async || match applications.get_opt(APPLICATION).await {
            Ok(Some(found)) if is_expected(&found.data["status"]) => Ok(found),
            Ok(other) => Err(other.map(|found| found.data["status"].to_string()).unwrap_or_default()),
            Err(error) => Err(error.to_string()),
        })
        .await
    }

    async fn until_delivered(&self) -> DynamicObject {
        self.until_application("the Application is synced and healthy", |status| {
            status["sync"]["status"] == "Synced" && status["health"]["status"] == "Healthy"
        })
        .await
    }

    async fn until_replicas(&self, deployments: &Api<Deployment>, replicas: i32) {
        until("the Deployment is in the tenant", SOON, async || {
            let found = deployments
                .get_opt(DEPLOYMENT)
                .await
                .map_err(|error| error.to_string())?;
            match found.and_then(|deployment| deployment.spec.replicas) {
                Some(found) if found == replicas => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// By the example of its settings, of objects that are on the host and of some that are not.
    async fn the_health_of_berths_kinds_is_known(&self) {
        let settings = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/gitops/argo-cd-health.yaml");
        let tenant = self.host.tenants(NAMESPACE).get(NAME).await.unwrap();
        let pools: Api<HostNodePool> = Api::all(self.host.client.clone());
        let pool = pools.get("h100").await.unwrap();
        let mut changed = tenant.clone();
        changed.metadata.generation = changed.metadata.generation.map(|generation| generation + 1);
        let unready = |reason: &str| {
            let mut unready = tenant.clone();
            for condition in &mut unready.status.as_mut().unwrap().conditions {
                let is_rejected = reason == "UnknownPool" && condition.type_ == conditions::ACCEPTED;
                if is_rejected || condition.type_ == conditions::READY {
                    condition.status = "False".into();
                    condition.reason = reason.into();
                }
            }
            json!(unready)
        };
        let mut empty = pool.clone();
        empty.status = None;
        let snapshot = |phase: &str, status: &str, reason: &str| {
            let completed = json!({"type": "Completed", "status": status, "reason": reason, "message": "why",
                "lastTransitionTime": "2026-11-30T00:00:00Z"});
            json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot", "metadata": {"name": "nightly", "namespace": NAMESPACE},
                "spec": {"tenantClusterName": NAME}, "status": {"phase": phase, "conditions": [completed]}})
        };
        for (object, expected) in [
            (json!(tenant), "Healthy"),
            (json!(changed), "Progressing"),
            (unready("Sleeping"), "Suspended"),
            (unready("NotRunning"), "Degraded"),
            (unready("InsufficientCapacity"), "Progressing"),
            (unready("UnknownPool"), "Degraded"),
            (json!(pool), "Healthy"),
            (json!(empty), "Progressing"),
            (snapshot("Completed", "True", "Completed"), "Healthy"),
            (snapshot("Running", "False", "Running"), "Progressing"),
            (snapshot("Failed", "False", "StoreError"), "Degraded"),
        ] {
            let judged = judge_health(&settings, &object).await;
            assert!(
                judged.contains(&format!("STATUS: {expected}")),
                "not {expected}: {judged}\n{object}"
            );
        }
    }

    async fn the_application_is_delivered(&self) {
        let application = self.until_delivered().await;
        assert_eq!(application.data["spec"]["project"], NAMESPACE);
        let delivered = self.deployments().get(DEPLOYMENT).await.unwrap();
        let tracking = &delivered.annotations()["argocd.argoproj.io/tracking-id"];
        assert!(tracking.starts_with(&format!("{APPLICATION}:")), "{tracking}");
        // It is in the tenant, and not on the host.
        let on_host: Api<Deployment> = Api::namespaced(self.host.client.clone(), INTO);
        assert!(on_host.get_opt(DEPLOYMENT).await.unwrap().is_none());
    }

    async fn changes_are_delivered_and_drift_is_corrected(&self) {
        let deployments = self.deployments();
        self.git
            .push(&[("base/web.yaml", Some(&deployment(2))), ("base/settings.yaml", None)]);
        self.until_replicas(&deployments, 2).await;
        let maps: Api<ConfigMap> = Api::namespaced(self.tenant.client.clone(), INTO);
        until_true("what is no longer in the repository is pruned", SOON, async || {
            matches!(maps.get_opt(SETTINGS).await, Ok(None))
        })
        .await;

        let before = deployments.get(DEPLOYMENT).await.unwrap().uid();
        deployments.delete(DEPLOYMENT, &DeleteParams::default()).await.unwrap();
        until("a deleted object returns", SOON, async || {
            match deployments.get_opt(DEPLOYMENT).await {
                Ok(Some(found)) if found.uid() != before && found.metadata.deletion_timestamp.is_none() => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        let scale = Patch::Merge(json!({"spec": {"replicas": 0}}));
        deployments
            .patch(DEPLOYMENT, &PatchParams::default(), &scale)
            .await
            .unwrap();
        self.until_replicas(&deployments, 2).await;
        self.until_delivered().await;
    }

    /// Argo CD lists everything again and again. A tenant that nobody uses falls asleep all the same.
    async fn what_argo_cd_reads_is_no_use(&self) {
        let schema = format!("flow_schema=\"{ARGO_CD_READS_SCHEMA}\"");
        let reads = |requests: &Requests| -> f64 {
            let counts = requests.others.iter();
            counts
                .filter(|(name, _)| name.contains(&schema))
                .map(|(_, count)| count)
                .sum()
        };
        // The API server follows a new FlowSchema some time after it is stored.
        let before = until("reads of Argo CD are counted apart", SOON, async || {
            let requests = count(&self.tenant).await;
            if reads(&requests) > 0.0 {
                Ok(requests)
            } else {
                Err(requests)
            }
        })
        .await;
        let after = until("Argo CD has listed everything again", SOON, async || {
            let requests = count(&self.tenant).await;
            if reads(&requests) > reads(&before) + 100.0 {
                Ok(requests)
            } else {
                Err(reads(&requests))
            }
        })
        .await;
        assert_eq!(before.used, after.used);
    }

    /// The AppProject of the example allows only clusters that belong to it.
    async fn no_application_reaches_a_tenant_of_another_team(&self) {
        const OTHERS: &str = "team-speech";
        let mut theirs = cluster("speech", &[]);
        theirs.spec.class_name = Some("gitops".into());
        theirs.spec.integrations = serde_json::from_value(json!({"argoCD": {}})).unwrap();
        let theirs = Tenant::create(&self.host, OTHERS, &theirs).await;
        self.until_registered(&theirs).await;
        let server = self.server_of(&theirs).await;
        for (name, destination) in [
            ("by-name", json!({"name": "speech.team-speech", "namespace": INTO})),
            ("by-server", json!({"server": server, "namespace": INTO})),
        ] {
            let intruder = self.application(name, &destination, "base");
            apply(&self.host.client, ARGO_CD, &intruder).await.unwrap();
            let applications = self.argo_cd.objects("Application");
            until("Argo CD refuses the Application", SOON, async || {
                let found = applications.get(name).await.map_err(|error| error.to_string())?;
                let conditions = &found.data["status"]["conditions"];
                let mut all = conditions.as_array().into_iter().flatten();
                if all.any(|condition| condition["type"] == "InvalidSpecError") {
                    Ok(())
                } else {
                    Err(found.data["status"].to_string())
                }
            })
            .await;
            delete(&self.argo_cd, "Application", name).await;
        }
        let deployments: Api<Deployment> = Api::namespaced(theirs.client.clone(), INTO);
        assert!(deployments.get_opt(DEPLOYMENT).await.unwrap().is_none());
        theirs.delete(&self.host).await;
    }

    async fn it_goes_on_after_a_rotation_of_all_credentials(&self) {
        let tenants = self.host.tenants(NAMESPACE);
        request(&self.host, &self.tenant, labels::CREDENTIALS_ROTATION_REQUESTED_AT).await;
        until("the rotation is completed", SOON, async || {
            let status = tenants.get(NAME).await.map_err(|error| error.to_string())?.status;
            match status.unwrap_or_default().credentials {
                Some(credentials) if credentials.phase == RotationPhase::Completed => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        // The kubeconfig of before is refused.
        let rotated = Tenant::ready(&self.host, NAMESPACE, NAME).await;
        let deployments: Api<Deployment> = Api::namespaced(rotated.client, INTO);
        // A tenant with pods does not fall asleep.
        self.git.push(&[("base/web.yaml", Some(&deployment(0)))]);
        self.until_replicas(&deployments, 0).await;
        self.until_delivered().await;
    }

    async fn it_goes_on_after_a_sleep(&self) {
        fall_asleep(&self.host, &self.tenant).await;
        self.git.push(&[("base/web.yaml", Some(&deployment(1)))]);
        request(&self.host, &self.tenant, labels::WAKE_REQUESTED_AT).await;
        until_state(&self.host, &self.tenant, SleepState::Awake).await;
        let awake = Tenant::ready(&self.host, NAMESPACE, NAME).await;
        let deployments: Api<Deployment> = Api::namespaced(awake.client, INTO);
        self.until_replicas(&deployments, 1).await;
        self.until_delivered().await;
    }

    /// Applications have finalizers, and none waits for the tenant that is gone. One that no ApplicationSet made stays until it is deleted.
    async fn application_and_cluster_go_with_the_tenant(&self) {
        const OWN: &str = "own";
        let own = self.application(
            OWN,
            &json!({"name": format!("{NAME}.{NAMESPACE}"), "namespace": INTO}),
            "own",
        );
        self.git.push(&[("own/settings.yaml", Some(&settings()))]);
        apply(&self.host.client, ARGO_CD, &own).await.unwrap();
        let applications = self.argo_cd.objects("Application");
        until_true("the other Application is synced", SOON, async || {
            let found = applications.get(OWN).await;
            found.is_ok_and(|found| found.data["status"]["sync"]["status"] == "Synced")
        })
        .await;
        let application = applications.get(APPLICATION).await.unwrap();
        let finalizers = application.finalizers();
        assert!(finalizers.iter().any(|name| name == FINALIZER), "{finalizers:?}");
        self.tenant.delete(&self.host).await;
        let secrets: Api<Secret> = Api::namespaced(self.host.client.clone(), ARGO_CD);
        let secret = secrets.get_opt(&self.tenant.id.argo_cd_secret()).await;
        assert!(secret.unwrap().is_none());
        until("the Application is gone", SOON, async || {
            match applications.get_opt(APPLICATION).await {
                Ok(None) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        delete(&self.argo_cd, "Application", OWN).await;
    }

    /// An Application of the team with a folder of the repository.
    fn application(&self, name: &str, destination: &Value, path: &str) -> Value {
        json!({
            "apiVersion": "argoproj.io/v1alpha1", "kind": "Application",
            "metadata": {"name": name, "finalizers": [FINALIZER]},
            "spec": {
                "project": NAMESPACE, "destination": destination, "syncPolicy": {"automated": {}},
                "source": {"repoURL": format!("{}/{REPOSITORY}", self.git.url), "targetRevision": BRANCH, "path": path},
            },
        })
    }

    async fn until_registered(&self, tenant: &Tenant) {
        let tenants = self.host.tenants(&tenant.namespace);
        until_true("the tenant is registered", SOON, async || {
            let found = tenants.get(&tenant.name).await.ok();
            let status = found.and_then(|found| found.status).unwrap_or_default();
            conditions::is_true(&status.conditions, conditions::ARGO_CD_REGISTERED)
        })
        .await;
    }

    /// The server by which Argo CD knows a tenant.
    async fn server_of(&self, tenant: &Tenant) -> String {
        let secrets: Api<Secret> = Api::namespaced(self.host.client.clone(), ARGO_CD);
        let secret = secrets.get(&tenant.id.argo_cd_secret()).await.unwrap();
        String::from_utf8(secret.data.unwrap()["server"].0.clone()).unwrap()
    }
}

/// Deletes an object of Argo CD, and waits until it is gone.
async fn delete(argo_cd: &ArgoCd, kind: &str, name: &str) {
    let objects = argo_cd.objects(kind);
    objects.delete(name, &DeleteParams::default()).await.unwrap();
    until_true(&format!("{kind} {name} is gone"), SOON, async || {
        matches!(objects.get_opt(name).await, Ok(None))
    })
    .await;
}

fn deployment(replicas: u32) -> String {
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": DEPLOYMENT, "namespace": INTO},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "registry.example.com/web:1"}]},
        }},
    });
    deployment.to_string()
}

fn settings() -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": SETTINGS, "namespace": INTO}}).to_string()
}
