//! What it costs to admit a tenant in a large organization, in three parts:
//!
//! 1. the decision alone, `berth_quota::decide`, for 10,000 tenants in 1,000 Projects, as often as there are tries;
//! 2. the API call that creates a TenantCluster, with and without Berth's admission policies, in turn, on a kube-apiserver that stores
//!    many TenantClusters;
//! 3. from the answer to that call to the reservation in the status, by control beside these TenantClusters.
//!
//! The stored TenantClusters belong to Projects with a quota of 0, so they wait and nothing is started for them. Control runs in this
//! process; the control planes of the few tenants that get quota are simulated.

use crate::{
    report::{Report, milliseconds, percentile},
    reservations::{Reservations, Step, quota, set_project},
};
use berth_api::{
    ControlPlaneServiceType, NodeGroup, Organization, OrganizationSpec, Project, ProjectSpec, TenantCluster,
    TenantLimits, TreeQuota, TreeResource,
};
use berth_quota::{Amounts, Claim, Decision, Tree, decide};
use berth_tests::{
    in_process::{Control, Parts},
    objects::apply,
    tenant::{cluster, ensure_namespace, patient, until_gone},
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use futures::{StreamExt, stream};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// Requests at the same time that create objects.
const AT_ONCE: usize = 16;
/// Objects after which a line on stderr says how many there are, and seconds between two lines of what is waited for.
const REPORT_EACH: usize = 1000;
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Tenants of a Project.
const PER_PROJECT: usize = 10;
/// Projects of an Organization, in the decision.
const PER_ORGANIZATION: usize = 10;
/// The namespace of the tenants that are measured.
const MEASURED: &str = "measured";
/// A user with the rights of a team and no others.
const USER: &str = "bench-team";
/// How often policies are removed and installed again.
const ROUNDS: usize = 3;
/// Time for control to decide about all stored tenants and to write their status; the same again for the status of their Projects.
const DECIDED_WITHIN: Duration = Duration::from_mins(10);

/// How much there is.
#[derive(Clone, Copy, clap::Args)]
pub(crate) struct Options {
    /// Tenants of the decision; ten in each Project.
    #[arg(long, default_value_t = Options::default().tenants)]
    tenants: usize,
    /// TenantClusters that the API server stores; ten in each Project.
    #[arg(long, default_value_t = Options::default().stored)]
    stored: usize,
    /// Tries of each measurement.
    #[arg(long, default_value_t = Options::default().tries)]
    tries: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tenants: 10_000,
            stored: 1000,
            tries: 60,
        }
    }
}

pub(crate) async fn run(options: Options) {
    let mut report = Report::new("tenant-admission");
    let decisions = measure_decision(options);
    let host = TestCluster::without_control("h100=1,cpu=1").await;
    let projects = store(&host, options.stored).await;
    let (with, without) = measure_calls(&host, options).await;
    let begun = Instant::now();
    let control = Control::start(&host, Parts::default());
    until_all_wait(&host, &projects, options.stored).await;
    let decided = begun.elapsed().as_secs_f64();
    let reserved = measure_reservations(&host, options.tries / ROUNDS).await;
    control.stop();

    let (tenants, stored) = (options.tenants, options.stored);
    for (what, values) in [
        (format!("one decision for {tenants} tenants"), &decisions),
        (format!("create call beside {stored}, with policies"), &with),
        (format!("create call beside {stored}, without policies"), &without),
        (format!("created -> reserved, beside {stored}"), &reserved),
    ] {
        report.add(format!("{what}, p50"), percentile(values, 50.0), "ms");
        report.add(format!("{what}, p99"), percentile(values, 99.0), "ms");
    }
    let ratio = percentile(&with, 50.0) / percentile(&without, 50.0);
    report.add("create call, with / without policies, p50", ratio, "x");
    report.add(
        format!("control started -> all {stored} say that they wait"),
        decided,
        "s",
    );
    report.note(
        "the decision is a function call; control runs in the process of the benchmark, with simulated control planes",
    );
    report.finish();
}

/// Milliseconds of decisions that find one new tenant each.
#[expect(clippy::cast_possible_wrap, reason = "a number of tenants")]
fn measure_decision(options: Options) -> Vec<f64> {
    let count = options.tenants.div_ceil(PER_PROJECT);
    let organizations: Vec<Organization> = (0..count.div_ceil(PER_ORGANIZATION))
        .map(|number| {
            let spec = OrganizationSpec {
                quotas: vec![limit(TreeResource::TenantClusters, u32::MAX)],
                ..OrganizationSpec::default()
            };
            Organization::new(&format!("o{number}"), spec)
        })
        .collect();
    let projects: Vec<Project> = (0..count)
        .map(|number| {
            let limited = TreeResource::RESERVED.into_iter();
            let limited = limited.filter(|resource| *resource != TreeResource::RequestsStorage);
            let spec = ProjectSpec {
                organization_name: Some(format!("o{}", number % organizations.len())),
                quotas: limited.map(|resource| limit(resource, u32::MAX)).collect(),
                ..ProjectSpec::default()
            };
            Project::new(&format!("p{number}"), spec)
        })
        .collect();
    let limits = TenantLimits::default();
    let requested: Amounts = TreeResource::RESERVED
        .into_iter()
        .filter_map(|resource| {
            let amount = resource
                .reserved_by(&limits, ControlPlaneServiceType::ClusterIp)?
                .min(1000);
            Some((resource, amount))
        })
        .collect();
    let mut claims: Vec<Claim> = (0..options.tenants)
        .map(|number| Claim {
            uid: format!("{number:05}"),
            name: format!("team/{number:05}"),
            created: number as i64,
            project: format!("p{}", number % count),
            requested: Some(requested.clone()),
            unlimited: BTreeSet::new(),
            reserved: Some(requested.clone()),
            at_most: Amounts::new(),
            counted: Amounts::new(),
        })
        .collect();
    let mut durations = Vec::new();
    for number in 0..options.tries.min(options.tenants) {
        claims[number].reserved = None;
        let begun = Instant::now();
        let tree = Tree::new(&organizations, &projects);
        let outcome = decide(&tree, &claims);
        durations.push(milliseconds(begun.elapsed()));
        let is_reserved = matches!(outcome.decisions[&claims[number].uid], Decision::Reserved { .. });
        assert!(is_reserved, "the new tenant has quota");
        claims[number].reserved = Some(requested.clone());
    }
    durations
}

fn limit(resource: TreeResource, nominal: u32) -> TreeQuota {
    TreeQuota {
        resource,
        pool_name: None,
        gpu_product: None,
        nominal_quota: nominal.into(),
        borrowing_limit: Some(0_u32.into()),
        lending_limit: None,
    }
}

/// Creates Projects without quota and their TenantClusters. Returns the names of the Projects, which are those of their namespaces.
async fn store(host: &TestCluster, tenants: usize) -> Vec<String> {
    let projects: Vec<String> = (0..tenants.div_ceil(PER_PROJECT))
        .map(|number| format!("stored-{number}"))
        .collect();
    create_all("Projects", projects.len(), async |number| {
        let name = &projects[number];
        ensure_namespace(&host.client, name).await;
        set_project(&host.client, name, name, &[quota("tenantclusters", None, 0)]).await;
    })
    .await;
    create_all("TenantClusters", tenants, async |number| {
        let tenants = host.tenants(&projects[number / PER_PROJECT]);
        let tenant = cluster(&format!("t{number}"), &[]);
        tenants.create(&PostParams::default(), &tenant).await.unwrap();
    })
    .await;
    projects
}

/// Creates objects by their numbers, some at the same time, and reports the progress.
async fn create_all(what: &str, count: usize, create: impl AsyncFn(usize)) {
    let created = stream::iter(0..count)
        .map(|number| create(number))
        .buffer_unordered(AT_ONCE);
    let mut created = std::pin::pin!(created.enumerate());
    while let Some((before, ())) = created.next().await {
        if (before + 1).is_multiple_of(REPORT_EACH) {
            eprintln!("{what}: {} of {count} created", before + 1);
        }
    }
}

/// Milliseconds of the calls that create a TenantCluster, with the admission policies and without them.
async fn measure_calls(host: &TestCluster, options: Options) -> (Vec<f64>, Vec<f64>) {
    let team = grant_team(host).await;
    let by_team: Api<TenantCluster> = Api::namespaced(team, MEASURED);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for is_installed in [true, false] {
            set_policies(host, &by_team, is_installed).await;
            let durations = if is_installed { &mut with } else { &mut without };
            for number in 0..options.tries.div_ceil(ROUNDS) {
                let mut tenant = cluster(&format!("c{round}-{number}"), &[]);
                // The policies ask whether the team may use the pool.
                tenant.spec.node_groups = vec![NodeGroup::private("train", "h100", 1)];
                let begun = Instant::now();
                by_team.create(&PostParams::default(), &tenant).await.unwrap();
                durations.push(milliseconds(begun.elapsed()));
                // Control does not run: there is no finalizer.
                let tenants = host.tenants(MEASURED);
                tenants
                    .delete(&tenant.name_any(), &DeleteParams::default())
                    .await
                    .unwrap();
            }
        }
    }
    set_policies(host, &by_team, true).await;
    host.tenants(MEASURED)
        .delete("probe", &DeleteParams::default())
        .await
        .unwrap();
    (with, without)
}

/// A client of a user who may write TenantClusters of one namespace, with one pool and every class.
async fn grant_team(host: &TestCluster) -> Client {
    ensure_namespace(&host.client, MEASURED).await;
    let rule =
        |resources: Value, verb: &str| json!({"apiGroups": ["berth.dev"], "resources": resources, "verbs": [verb]});
    let rbac =
        |kind: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": "team"}});
    let (mut role, mut binding) = (rbac("Role"), rbac("RoleBinding"));
    role["rules"] = json!([
        rule(json!(["tenantclusters", "tenantclusters/status"]), "*"),
        rule(json!(["tenantclasses", "hostnodepools"]), "use"),
    ]);
    binding["roleRef"] = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "team"});
    binding["subjects"] = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}]);
    for object in [&role, &binding] {
        apply(&host.client, MEASURED, object).await.unwrap();
    }
    let client = patient(&host.kubeconfig_for(USER, &[]).unwrap()).await;
    let tenants: Api<TenantCluster> = Api::namespaced(client.clone(), MEASURED);
    until("the rights hold", SOON, async || {
        tenants.create(&PostParams::default(), &cluster("probe", &[])).await
    })
    .await;
    client
}

/// Binds all of Berth's admission policies, or none, and waits until the API server acts upon it: with them, a team cannot write the status
/// of its tenant.
async fn set_policies(host: &TestCluster, by_team: &Api<TenantCluster>, is_installed: bool) {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(host.client.clone());
    for policy in berth_admission_policies::all_policies() {
        let binding = policy.build_binding();
        let name = binding.name_any();
        let result = if is_installed {
            bindings.create(&PostParams::default(), &binding).await.map(drop)
        } else {
            bindings.delete(&name, &DeleteParams::default()).await.map(drop)
        };
        // It is there already, or gone already.
        if let Err(error) = result
            && !berth_control::apply::is_status(&error, if is_installed { 409 } else { 404 })
        {
            panic!("{name}: {error}");
        }
    }
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({"status": {"version": "v1.99.0"}}));
    until("the policies apply, or do not", SOON, async || {
        let is_denied = by_team.patch_status("probe", &params, &patch).await.is_err();
        if is_denied == is_installed {
            Ok(())
        } else {
            Err(is_denied)
        }
    })
    .await;
    // The API server learns of one binding after the other.
    tokio::time::sleep(Duration::from_secs(2)).await;
}

/// Waits until every stored tenant says that it waits, and its Project counts it. A watch tells of the first: lists of many tenants, again
/// and again, would be most of the work.
async fn until_all_wait(host: &TestCluster, names: &[String], tenants: usize) {
    let reservations = Reservations::follow(Api::all(host.client.clone()));
    until_counted("stored tenants that say that they wait", tenants, async || {
        reservations.count(Step::Waiting)
    })
    .await;
    let projects: Api<Project> = Api::all(host.client.clone());
    let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    until_counted("stored tenants that Projects count", tenants, async || {
        let list = projects.list(&ListParams::default()).await.unwrap();
        let own = list
            .iter()
            .filter(|project| names.contains(project.name_any().as_str()));
        let waiting = own.filter_map(|project| project.status.as_ref()?.waiting_tenants);
        usize::try_from(waiting.sum::<u32>()).unwrap()
    })
    .await;
}

/// Waits until there are as many, and reports the progress.
async fn until_counted(what: &str, expected: usize, mut count: impl AsyncFnMut() -> usize) {
    let mut reported = Instant::now();
    until(what, DECIDED_WITHIN, async || {
        let counted = count().await;
        if reported.elapsed() >= REPORT_INTERVAL {
            eprintln!("{what}: {counted} of {expected}");
            reported = Instant::now();
        }
        if counted == expected { Ok(()) } else { Err(counted) }
    })
    .await;
}

/// Milliseconds from the answer to the creation of a tenant that has quota until its reservation is seen.
async fn measure_reservations(host: &TestCluster, tries: usize) -> Vec<f64> {
    set_project(&host.client, MEASURED, MEASURED, &[quota("tenantclusters", None, 1)]).await;
    let tenants = host.tenants(MEASURED);
    let reservations = Reservations::follow(tenants.clone());
    let mut durations = Vec::new();
    for number in 0..tries {
        let name = format!("r{number}");
        let begun = Instant::now();
        tenants
            .create(&PostParams::default(), &cluster(&name, &[]))
            .await
            .unwrap();
        let reserved = reservations.until(&name, Step::Reserved).await;
        durations.push(milliseconds(reserved.saturating_duration_since(begun)));
        tenants.delete(&name, &DeleteParams::default()).await.unwrap();
        until_gone(host, MEASURED, &name).await;
    }
    durations
}
