//! From an accepted spec to a running tenant. Each stage is a type that only the stage before it can make, so that nothing runs
//! before its isolation exists:
//!
//! [`Accepted`] → [`Prepared`] → [`Started`] → [`Running`]
//!
//! [`Outcome`] says which of them was reached; the status follows from it and from nothing else.

mod absent_syncer;
mod argo_cd;
mod bootstrap_objects;
mod bootstrapping;
mod components;
mod control_plane;
mod datastore_identity;
mod definitions;
mod dns;
mod encryption;
mod endpoint;
mod enforce;
mod host_side;
mod issuers;
mod keys;
mod kubeconfig;
mod leases;
mod manifests;
mod metrics_api;
mod prepare;
mod published_authorities;
mod restore;
mod restore_check;
mod restore_pause;
mod restore_replace;
mod restore_request;
mod restore_saved;
mod restore_task;
mod rewrite;
mod rotation;
mod stored_access;
mod tenant_nodes;
mod tenant_schedule;
mod upgrade;
mod usage;

pub(super) use argo_cd::delete_registration;
pub(super) use control_plane::{ApiServer, Observed, Serving, Started, SyncerState};
pub(super) use endpoint::PublicState;
pub(super) use host_side::HostSide;
pub(super) use issuers::ObservedIssuers;
pub(super) use prepare::Prepared;

use super::{
    argo_cd::ObservedRegistration,
    context::TenantContext,
    encryption::ObservedEncryption,
    error::{TenantError, in_step},
    fetch::ObservedNodes,
    rotation::ObservedRotation,
    settings::Settings,
    target::Tenant,
};
use berth_api::{ScheduleState, SleepState};
use host_side::OnHost;
use std::collections::BTreeMap;
use tokio::time::Instant;

/// A tenant with the settings that it was accepted with, now or earlier.
pub(super) struct Accepted {
    pub(super) tenant: Tenant,
    pub(super) settings: Settings,
    /// What its schedules let it do now.
    pub(super) schedule: ScheduleState,
    /// Beyond which amounts it may not grow, because a quota was lowered, by the names of the host's `ResourceQuota`. None: quotas are
    /// not decided yet, so that its limits stay as they are.
    pub(super) ceilings: Option<BTreeMap<String, u64>>,
}

impl Accepted {
    pub(super) fn new(
        tenant: &Tenant,
        settings: Settings,
        schedule: ScheduleState,
        ceilings: Option<BTreeMap<String, u64>>,
    ) -> Self {
        Self {
            tenant: tenant.clone(),
            settings,
            schedule,
            ceilings,
        }
    }
}

/// The stage that a reconcile reached.
pub(super) enum Outcome<'a> {
    /// The tenant was never accepted: nothing is created for it.
    NeverAccepted,
    /// The settings that it was accepted with cannot be read.
    SettingsUnknown(TenantError),
    /// Nothing was started.
    NotPrepared(TenantError),
    /// Everything exists that must exist before a component runs.
    Prepared {
        prepared: Box<Prepared<'a>>,
        control_plane: Box<ControlPlane>,
        /// Whether the tenant's nodes were published.
        nodes: Result<(), TenantError>,
        /// Whether its schedule was published.
        schedule: Result<(), TenantError>,
        /// Whether Argo CD knows it. A failure fails nothing else.
        argo_cd: ObservedRegistration,
        /// The rotation of its credentials. A failure fails nothing else.
        rotation: Box<ObservedRotation>,
        /// The encryption of what it stores. A failure fails nothing else.
        encryption: Box<ObservedEncryption>,
    },
}

/// What runs.
pub(super) enum ControlPlane {
    /// The API server could not be started.
    NotStarted(TenantError),
    /// The tenant sleeps: nothing runs, or nothing but what enforces its class.
    Asleep {
        /// Whether its kubeconfig was written.
        kubeconfig: Result<(), TenantError>,
    },
    /// The API server was started, and if it answers, the components that need it.
    Started {
        started: Box<Started>,
        serving: Result<Serving, TenantError>,
        observed: Observed,
    },
}

impl Outcome<'_> {
    /// The steps that failed.
    pub(super) fn errors(&self) -> Vec<&TenantError> {
        match self {
            Self::NeverAccepted => Vec::new(),
            Self::SettingsUnknown(error) | Self::NotPrepared(error) => vec![error],
            Self::Prepared {
                prepared,
                control_plane,
                nodes,
                schedule,
                argo_cd: _,
                rotation: _,
                encryption: _,
            } => {
                let of_host = [&prepared.external, &prepared.withdrawn_kinds];
                let of_host = of_host.into_iter().filter_map(|result| result.as_ref().err());
                let failed = match control_plane.as_ref() {
                    ControlPlane::NotStarted(error) => [Some(error), None],
                    ControlPlane::Asleep { kubeconfig } => [kubeconfig.as_ref().err(), None],
                    ControlPlane::Started {
                        started,
                        serving,
                        observed: _,
                    } => [started.kubeconfig.as_ref().err(), serving.as_ref().err()],
                };
                let published = [nodes, schedule].into_iter().filter_map(|result| result.as_ref().err());
                of_host.chain(failed.into_iter().flatten()).chain(published).collect()
            }
        }
    }

    /// The first step that failed, as the result of the reconcile.
    pub(super) fn into_result(self) -> Result<(), TenantError> {
        match self {
            Self::NeverAccepted => Ok(()),
            Self::SettingsUnknown(error) | Self::NotPrepared(error) => Err(error),
            Self::Prepared {
                prepared,
                control_plane,
                nodes,
                schedule,
                argo_cd: _,
                rotation: _,
                encryption: _,
            } => {
                let ran = match *control_plane {
                    ControlPlane::NotStarted(error) => Err(error),
                    ControlPlane::Asleep { kubeconfig } => kubeconfig,
                    ControlPlane::Started {
                        started,
                        serving,
                        observed: _,
                    } => started.kubeconfig.map(drop).and(serving.map(drop)),
                };
                let Prepared {
                    external,
                    withdrawn_kinds,
                    ..
                } = *prepared;
                external.and(ran).and(nodes).and(schedule).and(withdrawn_kinds)
            }
        }
    }
}

/// Runs the control plane of a tenant that is awake, and stops that of one that sleeps, or runs what enforces its class.
async fn run_control_plane(context: &TenantContext, prepared: &Prepared<'_>, nodes: &ObservedNodes) -> ControlPlane {
    match prepared.accepted.tenant.cluster.sleep_state() {
        SleepState::Sleeping => return control_plane::keep_asleep(context, prepared).await,
        SleepState::Enforcing => return Box::pin(enforce::enforce(context, prepared, nodes)).await,
        SleepState::Awake | SleepState::FallingAsleep | SleepState::Waking => {}
    }
    match control_plane::start(context, prepared, nodes).await {
        Ok(mut started) => {
            let (serving, observed) = control_plane::serve(context, prepared, &started).await;
            usage::measure_new(context, prepared, &mut started).await;
            ControlPlane::Started {
                serving,
                observed,
                started: Box::new(started),
            }
        }
        Err(error) => ControlPlane::NotStarted(error),
    }
}

/// Does what can be done now. What it waits for puts the tenant back into the queue. The nodes of a tenant are published even
/// if its control plane fails.
pub(super) async fn apply<'a>(context: &TenantContext, nodes: &ObservedNodes, host: HostSide<'a>) -> Outcome<'a> {
    let Some(OnHost { prepared, schedule }) = host.finish().await else {
        return Outcome::NeverAccepted;
    };
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return Outcome::NotPrepared(error),
    };
    let begun = Instant::now();
    let control_plane = run_control_plane(context, &prepared, nodes).await;
    let applier = match &control_plane {
        ControlPlane::Started { started, .. } => started.api_server.applier(),
        ControlPlane::NotStarted(_) | ControlPlane::Asleep { .. } => None,
    };
    let writer = applier.map(|applier| argo_cd::Writer { applier, begun });
    let argo_cd = Box::pin(argo_cd::keep_registration(context, &prepared, writer)).await;
    let rotation = Box::pin(rotation::follow_rotation(context, &prepared, &control_plane, &argo_cd)).await;
    let encryption = Box::pin(encryption::follow_encryption(context, &prepared, &control_plane)).await;
    let published = tenant_nodes::publish_nodes(context, prepared.accepted, nodes).await;
    Outcome::Prepared {
        prepared,
        control_plane: Box::new(control_plane),
        nodes: published.map_err(in_step(TenantError::TenantNodes)),
        schedule,
        argo_cd,
        rotation: Box::new(rotation),
        encryption: Box::new(encryption),
    }
}
