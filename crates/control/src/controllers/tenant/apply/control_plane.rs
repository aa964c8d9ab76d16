//! Starting the tenant's components, and what needs its API server.

use super::{
    super::{
        build::{bootstrap, host_objects, service_range},
        context::TenantContext,
        datastore_usage::ObservedUsage,
        error::{TenantError, in_step},
        fetch::ObservedNodes,
        manifests::ObservedManifests,
        own_endpoints,
        target::Tenant,
    },
    ControlPlane, Prepared, argo_cd,
    bootstrap_objects::apply_bootstrap_objects,
    bootstrapping,
    components::{Running, run_component, run_components, stop_components},
    dns, enforce,
    issuers::{self, Issuers, ObservedIssuers, Rendered},
    keys, kubeconfig, leases, manifests, metrics_api, stored_access, upgrade,
    usage::{is_unknown, observe_host_usage, observe_usage, published_usage},
};
use crate::{
    apply::Applier,
    control_plane::{
        API_SERVER, Component, ControlPlaneInput, DatastoreInput, DnsInput, Endpoints, Leaf, render_components,
    },
    error::{FirstError, ReconcileError},
    runtime::ComponentState,
};
use berth_api::{DatastoreUsage, HostUsage, SleepState, TenantAuthentication, conditions::SYNCER_READY};
use berth_pki::Usage;
use jiff::Timestamp;
use kube::ResourceExt;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::time::Instant;

/// Pause before a syncer that is not ready yet is probed again.
const SYNCER_PROBE: Duration = Duration::from_millis(200);
/// For how long it is probed so often. One that does not become ready is probed whenever its tenant is reconciled: there may be as many as tenants.
const SYNCER_STARTS_WITHIN: Duration = Duration::from_mins(2);
/// Time for the probe of a syncer.
const SYNCER_PROBE_LIMIT: Duration = Duration::from_secs(3);

/// A tenant whose API server was started.
pub(crate) struct Started {
    pub(crate) api_server: ApiServer,
    /// Whether every API server has the version of the settings. Observed only during an upgrade.
    pub(in super::super) has_rolled_out: bool,
    /// With which issuers the API server was rendered.
    pub(super) issuers: Issuers,
    /// What is known of them.
    pub(in super::super) authentication: ObservedIssuers,
    /// Why no API server starts as it was rendered, while the one before answers.
    pub(in super::super) stuck: Option<String>,
    /// What the tenant stores, as far as that is known.
    pub(crate) datastore: ObservedUsage,
    /// Whether that is measured only now that the components run.
    pub(super) is_unmeasured: bool,
    pub(super) components: Vec<Component>,
    pub(super) dns: Option<DnsInput>,
    /// What was written into the Secret with the kubeconfig. Nothing else depends on that Secret: it is in the team's namespace.
    pub(crate) kubeconfig: Result<String, TenantError>,
}

impl Started {
    /// Whether the tenant has a component of this name.
    pub(super) fn is_rendered(&self, name: &str) -> bool {
        self.components.iter().any(|component| component.name == name)
    }
}

/// Whether the API server answers.
pub(crate) enum ApiServer {
    /// It does.
    Answers(Arc<Applier>),
    /// It does, but has not written its default roles and priority classes yet. What needs none of them is done meanwhile; nobody uses the
    /// tenant before.
    Bootstrapping(Arc<Applier>),
    /// It was started and does not answer yet.
    Starting,
    /// It does not run, for the given reason.
    Down(String),
}

impl ApiServer {
    /// What writes to it, if it answers and is complete.
    pub(super) fn applier(&self) -> Option<&Applier> {
        match self {
            Self::Answers(applier) => Some(applier),
            Self::Bootstrapping(_) | Self::Starting | Self::Down(_) => None,
        }
    }
}

/// What runs with the API server.
pub(crate) struct Serving {
    /// None while the API server does not answer or is not complete.
    pub(crate) running: Option<Running>,
    pub(crate) syncer: SyncerState,
}

/// What was observed of a tenant that is served, also when a step failed.
#[derive(Default)]
pub(crate) struct Observed {
    pub(in super::super) manifests: ObservedManifests,
    /// What the tenant has on the host, as far as that is known.
    pub(in super::super) host_usage: Option<HostUsage>,
}

impl Serving {
    /// Whether the API server answers, every component runs, and the syncer has listed both sides.
    pub(super) fn is_complete(&self) -> bool {
        self.running.as_ref().is_some_and(Running::is_complete) && self.syncer == SyncerState::Ready
    }
}

/// The state that the syncer reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SyncerState {
    /// It has listed both sides.
    Ready,
    /// It is starting, as the message says.
    Starting(String),
    /// It does not run, for the given reason.
    Down(String),
}

/// Starts the API server and publishes the kubeconfig. The team may keep the latter from being written; the tenant is started all the same.
pub(super) async fn start(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    nodes: &ObservedNodes,
) -> Result<Started, TenantError> {
    let tenant = &prepared.accepted.tenant;
    let server = prepared.endpoints.api_server.https_url();
    let remote = context.remote.as_ref();
    let connection = &tenant.memory.connection;
    enforce::expect_rules(prepared);
    tenant.memory.note_stopped(false);
    let (authorities, waits) = (&prepared.authorities, (&context.queue, &tenant.key()));
    stored_access::revoke_stored_access(context, prepared)
        .await
        .map_err(in_step(TenantError::Datastore))?;
    // One that has run before finds the default roles in its datastore.
    let connected = connection
        .ready(remote, &server, authorities, have_run(tenant), waits)
        .await
        .map_err(TenantError::Connection)?;
    let applier = connected.as_ref().map(|connected| &connected.applier);
    let dns = dns::prepare_dns(context, prepared, applier)
        .await
        .map_err(in_step(TenantError::Dns))?;
    // Of a new tenant nothing is known, and its metrics are a few megabytes: what waits for its API server comes first.
    let is_unmeasured = applier.is_some() && published_usage(tenant).is_none() && is_unknown(tenant);
    let datastore = if is_unmeasured {
        ObservedUsage::default()
    } else {
        observe_usage(context, prepared, applier.map(Arc::as_ref)).await
    };
    let usage = datastore.usage.unwrap_or_default();
    let Rendered { components, issuers } = issuers::render(context, prepared, dns.as_ref(), usage)
        .await
        .map_err(in_step(TenantError::Certificates))?;
    let state = run_component(context, tenant, &components, API_SERVER)
        .await
        .map_err(in_step(TenantError::ApiServer))?;
    issuers::follow(context, prepared, issuers, &state)
        .await
        .map_err(in_step(TenantError::ApiServer))?;
    let has_rolled_out = connected.is_some()
        && upgrade::has_rolled_out(context, tenant, &components, issuers)
            .await
            .map_err(in_step(TenantError::ApiServer))?;
    apply_syncer_identity(context, prepared, nodes)
        .await
        .map_err(in_step(TenantError::SyncerIdentity))?;
    let kubeconfig = kubeconfig::apply_kubeconfig(context, prepared)
        .await
        .map_err(in_step(TenantError::Kubeconfig));
    Ok(Started {
        issuers,
        authentication: match &connected {
            Some(_) => {
                let has_issuers = !prepared.accepted.settings.authentication.rules.jwt.is_empty();
                ObservedIssuers::of(has_issuers, issuers, &state)
            }
            None => ObservedIssuers::Unknown,
        },
        stuck: match &state {
            ComponentState::Down(why) if connected.is_some() && issuers != Issuers::Tried => Some(why.clone()),
            _ => None,
        },
        api_server: match (connected, state) {
            (Some(connected), _) if connected.is_complete => ApiServer::Answers(connected.applier),
            (Some(connected), _) => ApiServer::Bootstrapping(connected.applier),
            (None, ComponentState::Running) => ApiServer::Starting,
            (None, ComponentState::Down(why)) => ApiServer::Down(why),
        },
        has_rolled_out,
        datastore,
        is_unmeasured,
        components,
        dns,
        kubeconfig,
    })
}

/// Stops everything of a tenant that sleeps. Its certificates and its kubeconfig stay valid meanwhile.
pub(super) async fn keep_asleep(context: &TenantContext, prepared: &Prepared<'_>) -> ControlPlane {
    if let Err(error) = stop(context, prepared).await {
        return ControlPlane::NotStarted(error);
    }
    let written = kubeconfig::apply_kubeconfig(context, prepared).await;
    ControlPlane::Asleep {
        kubeconfig: written.map(drop).map_err(in_step(TenantError::Kubeconfig)),
    }
}

/// Stops the components of a tenant, deletes the endpoints that nobody keeps up to date any more, and renews its certificates.
async fn stop(context: &TenantContext, prepared: &Prepared<'_>) -> Result<(), TenantError> {
    let tenant = &prepared.accepted.tenant;
    let stopped = stop_components(context, tenant).await;
    // Also if one of them is on a node that does not answer. Its pods have ended, and their addresses are free.
    let closed = own_endpoints::delete_all(&context.client, &tenant.id).await;
    stopped.map_err(in_step(TenantError::Components))?;
    closed.map_err(in_step(TenantError::OwnEndpoints))?;
    let dns = dns::prepare_dns(context, prepared, None)
        .await
        .map_err(in_step(TenantError::Dns))?;
    // Only for the certificates in it: what is rendered runs when the tenant wakes.
    render_control_plane(
        context,
        prepared,
        &prepared.accepted.settings.authentication.rules,
        dns.as_ref(),
        published_usage(tenant).unwrap_or_default(),
    )
    .await
    .map_err(in_step(TenantError::Certificates))?;
    Ok(())
}

/// Applies the objects and runs the components that need the API server, if it answers. Then probes the syncer. A step that fails keeps no other
/// from being tried, as the tenant's admins may cause it; the first error is the result.
pub(super) async fn serve(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    started: &Started,
) -> (Result<Serving, TenantError>, Observed) {
    let begun = Instant::now();
    let tenant = &prepared.accepted.tenant;
    let mut observed = Observed::default();
    let mut failed = FirstError::default();
    let running = match &started.api_server {
        ApiServer::Answers(applier) => run_with_objects(context, prepared, started, applier, &mut failed).await,
        ApiServer::Bootstrapping(applier) => {
            let serving = bootstrapping::begin(context, prepared, started, applier).await;
            let is_ready = |serving: &Serving| serving.syncer == SyncerState::Ready;
            tenant.memory.note_syncer(serving.as_ref().is_ok_and(is_ready));
            return (serving, observed);
        }
        ApiServer::Starting | ApiServer::Down(_) => None,
    };
    let is_reachable = prepared
        .public
        .as_ref()
        .is_none_or(super::endpoint::PublicState::is_reachable);
    if is_reachable && running.as_ref().is_some_and(Running::is_complete) {
        let written = write_kubeconfig_file(context, prepared, started);
        failed.note(written.map_err(in_step(TenantError::Kubeconfig)));
    }
    let syncer = match &running {
        Some(Running {
            syncer: ComponentState::Down(why),
            components: _,
        }) => SyncerState::Down(why.clone()),
        // It may be ready before the API server is complete, see `bootstrapping`. But a status that says so means that everything has run.
        None if !have_run(tenant) => SyncerState::Starting("the API server does not answer yet".into()),
        _ => probe_syncer(context, tenant, &prepared.endpoints).await,
    };
    tenant.memory.note_syncer(syncer == SyncerState::Ready);
    // An API that is registered and does not answer keeps namespaces from being deleted. Services need the syncer.
    if let (ApiServer::Answers(applier), SyncerState::Ready) = (&started.api_server, &syncer) {
        let authority = prepared.authorities.kubelet.cert_pem();
        let registration = metrics_api::apply_metrics_api(applier, authority);
        let registered = Box::pin(tenant.write_in_rest(begun, registration)).await;
        failed.note(registered.map_err(in_step(TenantError::MetricsApi)));
        observed.manifests = Box::pin(manifests::keep_manifests(context, prepared.accepted, applier)).await;
    }
    let runs_syncer = |running: &Running| running.syncer == ComponentState::Running;
    if syncer == SyncerState::Ready && running.as_ref().is_some_and(runs_syncer) {
        Box::pin(enforce::observe(context, prepared, started)).await;
    }
    if syncer == SyncerState::Ready {
        observed.host_usage = observe_host_usage(context, prepared).await;
    }
    let serving = failed.into_result().map(|()| Serving { running, syncer });
    (serving, observed)
}

/// Applies the objects, and runs the components. A tenant that refuses the objects, such as one that stores as much as it may, still gets
/// upgrades and certificates of the components that it has. None: nothing was run, and `failed` says why.
async fn run_with_objects(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    started: &Started,
    applier: &Applier,
    failed: &mut FirstError<TenantError>,
) -> Option<Running> {
    let tenant = &prepared.accepted.tenant;
    failed.note(apply_bootstrap_objects(context, prepared, started, applier).await);
    if !have_run(tenant) && !failed.is_none() {
        return None;
    }
    let memory = &tenant.memory;
    let have_ended = is_waking(tenant) || memory.has_leases_of_snapshot.load(Ordering::Relaxed);
    if have_ended && context.runtime.uses_pods() {
        leases::release(tenant, applier.client(), context.clock.now()).await;
    }
    let running = run_components(context, prepared, started).await;
    let running = failed.note(running.map_err(in_step(TenantError::Components)));
    if running.is_some() {
        memory.has_leases_of_snapshot.store(false, Ordering::Relaxed);
    }
    if failed.is_none() {
        memory.have_components_run.store(true, Ordering::Relaxed);
    }
    running
}

/// Whether the tenant is being woken.
fn is_waking(tenant: &Tenant) -> bool {
    tenant.cluster.sleep_state() == SleepState::Waking
}

/// Whether the tenant has slept, and its API server is started again: because it is woken, or to enforce its class.
pub(super) fn is_started_again(tenant: &Tenant) -> bool {
    is_waking(tenant) || tenant.cluster.sleep_state() == SleepState::Enforcing
}

/// Whether the components have run after all objects were applied, as this process or the status remembers. Those of a tenant that has slept
/// have: webhooks of its own may refuse every write until its pods run.
pub(super) fn have_run(tenant: &Tenant) -> bool {
    let conditions = tenant.cluster.status.iter().flat_map(|status| &status.conditions);
    let mut was_ready = conditions.filter(|condition| condition.type_ == SYNCER_READY && condition.status == "True");
    let was_restored = tenant
        .cluster
        .status
        .as_ref()
        .is_some_and(|status| status.restore.is_some());
    is_started_again(tenant)
        || was_restored
        || tenant.memory.have_components_run.load(Ordering::Relaxed)
        || was_ready.next().is_some()
}

/// Renders the control plane with the stored certificates and stores those that are new. `authentication` has the issuers of its API server.
pub(super) async fn render_control_plane(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    authentication: &TenantAuthentication,
    dns: Option<&DnsInput>,
    datastore_usage: DatastoreUsage,
) -> Result<Vec<Component>, ReconcileError> {
    let (tenant, settings) = (&prepared.accepted.tenant, &prepared.accepted.settings);
    let mut leaves = keys::load_certificates(context, tenant, Timestamp::now()).await?;
    let datastore = DatastoreInput {
        endpoints: context.datastore.endpoints().to_vec(),
        ca_pem: context.datastore.ca_cert().to_owned(),
    };
    let input = ControlPlaneInput {
        tenant: &tenant.id,
        version: &settings.version,
        class: settings.class_name(),
        scheduling: settings.scheduling,
        policy: &settings.sync,
        withdrawn_storage: &settings.withdrawn_storage,
        limits: &settings.limits,
        datastore_usage,
        limits_users: context.stores.limits_users(&tenant.cluster),
        authentication,
        max_token_seconds: settings.max_token_seconds,
        audit: settings.audit.as_ref(),
        form: context.runtime.form(settings.replicas),
        network: &prepared.limits,
        endpoints: &prepared.endpoints,
        service_range: &prepared.service_range,
        reserved_service_addresses: &service_range::reserved_addresses(prepared.host_ranges.all()),
        datastore: &datastore,
        host: &context.syncer_host,
        dns,
    };
    let components = render_components(&input, &prepared.authorities, &mut leaves)?;
    leaves.issue(&prepared.authorities.client, "admin", &admin_leaf())?;
    if argo_cd::is_registered(context, settings) {
        argo_cd::issue_certificate(&prepared.authorities, &mut leaves)?;
    }
    keys::store_certificates(tenant, leaves).await?;
    Ok(components)
}

/// Applies the syncer's ServiceAccount and what it may do on the host.
async fn apply_syncer_identity(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    nodes: &ObservedNodes,
) -> Result<(), ReconcileError> {
    let Tenant {
        cluster, id, memory, ..
    } = &prepared.accepted.tenant;
    let rules = context.kinds.syncer_rules(&prepared.accepted.settings.sync).await?;
    let (account, roles) = host_objects::syncer_identity(cluster, id, &rules);
    memory.host.apply(&account).await?;
    for (role, binding) in &roles {
        memory.host.apply(role).await?;
        memory.host.apply(binding).await?;
    }
    let nodes = nodes.owned.iter().map(|node| node.name_any()).collect();
    let (role, binding) = host_objects::syncer_cluster_role(cluster, id, nodes);
    memory.host.apply(&role).await?;
    memory.host.apply(&binding).await?;
    Ok(())
}

/// The certificate of the team's kubeconfig.
pub(super) fn admin_leaf() -> Leaf {
    Leaf::new("tenant-admin", Usage::Client).organizations(vec![bootstrap::ADMIN_GROUP.into()])
}

/// Publishes the kubeconfig where the runtime has a place for it beside the Secret. Only one that works is published there.
fn write_kubeconfig_file(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    started: &Started,
) -> Result<(), ReconcileError> {
    let Ok(kubeconfig) = &started.kubeconfig else {
        return Ok(());
    };
    let cluster = &prepared.accepted.tenant.cluster;
    let namespace = cluster.namespace().unwrap_or_default();
    Ok(context
        .runtime
        .publish_kubeconfig(&namespace, &cluster.name_any(), kubeconfig)?)
}

/// Probes the syncer. If it is not ready yet, the tenant is soon reconciled again.
pub(super) async fn probe_syncer(context: &TenantContext, tenant: &Tenant, endpoints: &Endpoints) -> SyncerState {
    let probe = context.remote.probe_syncer(&endpoints.syncer_admin);
    let state = match tenant.slot.lend(SYNCER_PROBE_LIMIT, probe).await {
        Some(Ok(answer)) if answer.is_ready => {
            tenant.memory.note_probe(true, Instant::now());
            return SyncerState::Ready;
        }
        Some(Ok(answer)) => SyncerState::Starting(format!("the syncer is {}", answer.text)),
        Some(Err(_)) | None => SyncerState::Starting("the syncer does not answer yet".into()),
    };
    if tenant.memory.note_probe(false, Instant::now()) < SYNCER_STARTS_WITHIN {
        context.queue.add_after(tenant.key(), SYNCER_PROBE);
    }
    state
}
