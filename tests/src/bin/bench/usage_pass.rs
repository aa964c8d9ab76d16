//! Passes over what the tenants of a large fleet use: how long one takes, and how many requests it makes. The objects are as the watches of control keep
//! them, and an API server of this process answers all writes. Nothing else runs.

use crate::report::{Report, figure_of, milliseconds, percentile};
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{Method, StatusCode},
    response::IntoResponse,
};
use berth_api::{HostNodePool, Project, TenantCluster, labels, names::TenantId};
use berth_control::{
    clock::Clock,
    controllers::{
        USAGE_RETENTION_MONTHS,
        usage::{UsageContext, UsageState, reconcile},
    },
    metered_use::{ClaimUse, Using},
    metrics::UsageMetrics,
    stores::Stores,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Client, Resource,
    runtime::{
        reflector::{self, store::Writer},
        watcher::Event,
    },
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::net::TcpListener;

const POOL: &str = "h100";
/// TenantClusters of a Project.
const TENANTS_OF_PROJECT: usize = 10;
/// Volumes of a tenant.
const CLAIMS_OF_TENANT: usize = 50;
/// Minutes that are measured: each tenant has its turn twice.
const MINUTES: i64 = 30;

/// How large the fleet is.
#[derive(Clone, Copy, clap::Args)]
pub(crate) struct Options {
    /// Nodes, all of which serve tenants.
    #[arg(long, default_value_t = Options::default().nodes)]
    nodes: usize,
    /// TenantClusters.
    #[arg(long, default_value_t = Options::default().tenants)]
    tenants: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: 10_000,
            tenants: 200,
        }
    }
}

/// The requests to the API server.
#[derive(Default)]
struct Requests {
    reads: AtomicUsize,
    writes: AtomicUsize,
}

impl Requests {
    /// Reads and writes so far.
    fn count(&self) -> [usize; 2] {
        [&self.reads, &self.writes].map(|counter| counter.load(Ordering::Relaxed))
    }
}

/// Answers like an API server without any record that takes all that it is sent.
async fn answer(State(requests): State<Arc<Requests>>, method: Method, body: Bytes) -> impl IntoResponse {
    let answer = if method == Method::GET {
        requests.reads.fetch_add(1, Ordering::Relaxed);
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": "UsageRecordList", "metadata": {}, "items": []})
    } else {
        let version = requests.writes.fetch_add(1, Ordering::Relaxed) + 1;
        let mut object: Value = serde_json::from_slice(&body).unwrap();
        // Sums of a tenant are operations on its status, in place of an object.
        if object.is_array() {
            object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "changed"}, "spec": {}});
        }
        object["metadata"]["resourceVersion"] = version.to_string().into();
        object
    };
    (
        StatusCode::OK,
        [("content-type", "application/json")],
        answer.to_string(),
    )
}

/// A client of an API server that counts its requests.
async fn serve(requests: Arc<Requests>) -> Client {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().fallback(answer).with_state(requests);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap()
}

fn uid(tenant: usize) -> String {
    format!("uid-{tenant}")
}

fn slug(tenant: usize) -> String {
    TenantId::new(&format!("tenant-{tenant}"), &uid(tenant))
        .slug()
        .to_owned()
}

fn namespace(tenant: usize) -> String {
    format!("team-{}", tenant / TENANTS_OF_PROJECT)
}

fn cluster(tenant: usize, created: Timestamp) -> Value {
    let group = json!({"name": "train", "poolName": POOL, "mode": "Dynamic", "maxReplicas": 1000});
    json!({
        "metadata": {"name": format!("tenant-{tenant}"), "namespace": namespace(tenant), "uid": uid(tenant), "creationTimestamp": created.to_string()},
        "spec": {"nodeGroups": [group]},
        "status": {"controlPlaneNamespace": format!("control-plane-{tenant}"), "className": "gold"},
    })
}

/// A node with eight GPUs that serves a tenant since a time of its own.
fn node(number: usize, tenant: usize, since: Timestamp) -> Value {
    let state = labels::NODE_STATE_ASSIGNED;
    json!({"metadata": {
        "name": format!("node-{number:05}"),
        "creationTimestamp": since.to_string(),
        "labels": {"pool": POOL, labels::TENANT: slug(tenant), labels::NODE_STATE: state, labels::POOL: POOL, labels::NODE_GROUP: "train"},
        "annotations": {
            labels::OWNER_UID: uid(tenant), labels::NODE_STATE: state, labels::STATE_SINCE: since.to_string(),
            labels::ASSIGNED_SINCE: since.to_string(), labels::RECORDED_GPUS: "nvidia.com/gpu=8",
        },
    }})
}

/// A fleet as the watches know it.
fn stores(options: Options, clock: &Clock) -> Stores {
    let (tenants, mut of_tenants) = reflector::store::<TenantCluster>();
    let (pools, mut of_pools) = reflector::store::<HostNodePool>();
    let (projects, mut of_projects) = reflector::store::<Project>();
    let (nodes, mut of_nodes) = reflector::store::<Node>();
    let now = Timestamp::from_second(clock.now().as_second()).unwrap();
    let ago = |seconds: usize| now - SignedDuration::from_secs(i64::try_from(seconds).unwrap());
    fill(
        &mut of_tenants,
        (0..options.tenants).map(|tenant| cluster(tenant, ago(86_400))),
    );
    let spec = json!({"nodeSelector": {"pool": POOL}, "gpuResourceName": "nvidia.com/gpu", "gpuProduct": "H100"});
    fill(
        &mut of_pools,
        [json!({"metadata": {"name": POOL, "uid": POOL}, "spec": spec})],
    );
    let project = |number: usize| {
        let spec = json!({"namespaces": [format!("team-{number}")], "organizationName": "research"});
        json!({"metadata": {"name": format!("project-{number}"), "uid": format!("project-{number}")}, "spec": spec})
    };
    fill(
        &mut of_projects,
        (0..options.tenants.div_ceil(TENANTS_OF_PROJECT)).map(project),
    );
    fill(
        &mut of_nodes,
        (0..options.nodes).map(|at| node(at, at % options.tenants, ago(at))),
    );
    let stores = Stores {
        tenants,
        pools,
        projects,
        nodes,
        ..Stores::empty(clock.clone())
    };
    for claim in 0..options.tenants * CLAIMS_OF_TENANT {
        let tenant = claim % options.tenants;
        let using = Using {
            tenant: slug(tenant),
            amount: ClaimUse {
                class: Some("fast".into()),
                mebibytes: 102_400,
            },
            since: ago(claim),
        };
        stores
            .metered
            .claims
            .put(&format!("{}/data-{claim}", namespace(tenant)), Some(using), now);
    }
    stores
}

fn fill<K>(writer: &mut Writer<K>, objects: impl IntoIterator<Item = Value>)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + 'static,
{
    writer.apply_watcher_event(&Event::Init);
    for object in objects {
        let object: K = serde_json::from_value(object).unwrap();
        writer.apply_watcher_event(&Event::InitApply(object));
    }
    writer.apply_watcher_event(&Event::InitDone);
}

/// One pass, and its reads and writes.
async fn pass(context: &UsageContext, requests: &Requests) -> (Duration, [usize; 2]) {
    let before = requests.count();
    let begun = Instant::now();
    reconcile(context).await.unwrap();
    let took = begun.elapsed();
    let [reads, writes] = requests.count();
    (took, [reads - before[0], writes - before[1]])
}

pub(crate) async fn run(options: Options) {
    let requests = Arc::new(Requests::default());
    let clock = Clock::default();
    let context = UsageContext {
        client: serve(Arc::clone(&requests)).await,
        stores: stores(options, &clock),
        clock: clock.clone(),
        retention_months: USAGE_RETENTION_MONTHS,
        metrics: UsageMetrics::default(),
        state: UsageState::default(),
    };
    let (first, of_first) = pass(&context, &requests).await;
    let (mut writing, mut quiet, mut sums) = (Vec::new(), Vec::new(), [0, 0]);
    for minute in 1..=MINUTES {
        clock.set_ahead(minute * 60);
        let (took, made) = pass(&context, &requests).await;
        writing.push(milliseconds(took));
        // What was due is written: this one counts, and asks for nothing.
        clock.set_ahead(minute * 60 + 1);
        let (took, besides) = pass(&context, &requests).await;
        quiet.push(milliseconds(took));
        for (sum, made) in sums.iter_mut().zip([made[0] + besides[0], made[1] + besides[1]]) {
            *sum += made;
        }
    }
    let [each_reads, each_writes] = sums.map(|sum| figure_of(sum) / f64::from(i32::try_from(MINUTES).unwrap()));
    let mut report = Report::new("usage-pass");
    report.add("nodes", figure_of(options.nodes), "");
    report.add("tenants", figure_of(options.tenants), "");
    report.add("the first pass, which writes all records", milliseconds(first), "ms");
    report.add("its reads; once for each start of control", figure_of(of_first[0]), "");
    report.add("its writes", figure_of(of_first[1]), "");
    report.add("a pass in which nothing is due, median", percentile(&quiet, 50.0), "ms");
    report.add("the longest", percentile(&quiet, 100.0), "ms");
    report.add("a pass with its writes, median", percentile(&writing, 50.0), "ms");
    report.add("reads each minute", each_reads, "");
    report.add("writes each minute", each_writes, "");
    report.note("the API server is a part of this process, so a pass with its writes has the time of both");
    report.finish();
}
