//! New issuers of people are tried apart from every other change of an API server.
//!
//! An API server does not start with some issuers, and nobody but an API server knows with which: Berth does not compile CEL. Where control planes are
//! pods, the one before goes on meanwhile. It must not be one with earlier rules of the class, or with credentials that were replaced. So everything
//! else is rolled out first, with the issuers with which an API server of the tenant has started before. docs/adr/0073 says why.

use super::{
    super::{build::host_objects, context::TenantContext, target::Tenant},
    Prepared,
    control_plane::render_control_plane,
};
use crate::{
    apply::optional,
    authentication::{are_proven, keep_proven},
    control_plane::{API_SERVER, AUTHENTICATION_FILE, Component, DnsInput},
    error::{ReconcileError, api},
    runtime::ComponentState,
};
use berth_api::{
    DatastoreUsage, JwtAuthenticator, TenantAuthentication, TenantClusterStatus,
    conditions::{AUTHENTICATION_APPLIED, ConditionUpdate},
    names,
};
use berth_runtime::locks::lock;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use std::time::Duration;

/// Name of the ConfigMap in the control-plane namespace with the issuers with which an API server has started.
const RECORD: &str = "issuers";
/// Its one key.
const KEY: &str = "jwt.json";
/// Pause before an API server that is being replaced is looked at again: one that was replaced quickly wakes nobody.
const POLL: Duration = Duration::from_secs(5);

/// With which issuers an API server was rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Issuers {
    /// Those of the settings. They are tried with everything else, or were tried before.
    All,
    /// Those of the settings that were tried before: everything else is rolled out with them.
    Proven,
    /// Those of the settings, of which some are tried: nothing else is new.
    Tried,
}

/// A control plane as it is to run now.
pub(super) struct Rendered {
    pub(super) components: Vec<Component>,
    pub(super) issuers: Issuers,
}

/// Renders the control plane with the issuers that its API server is to have now.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn render(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    dns: Option<&DnsInput>,
    usage: DatastoreUsage,
) -> Result<Rendered, ReconcileError> {
    let tenant = &prepared.accepted.tenant;
    let wanted = &prepared.accepted.settings.authentication.rules;
    let components = render_control_plane(context, prepared, wanted, dns, usage).await?;
    let rendered = |issuers, components| Rendered { components, issuers };
    forget_others(tenant, &components);
    let proven = if wanted.jwt.is_empty() {
        Vec::new()
    } else {
        load(context, tenant).await?
    };
    if proven == wanted.jwt {
        return Ok(rendered(Issuers::All, components));
    }
    if is_rolled_out(context, tenant, &components).await? {
        record(tenant, wanted.jwt.clone()).await?;
        lock(&tenant.memory.issuers).others_rolled_out = None;
        return Ok(rendered(Issuers::All, components));
    }
    if are_proven(&proven, &wanted.jwt) {
        return Ok(rendered(Issuers::All, components));
    }
    if lock(&tenant.memory.issuers).others_rolled_out.is_some() {
        return Ok(rendered(Issuers::Tried, components));
    }
    let others = hash_of_others(&components);
    let goes_on = context.runtime.keeps_previous(&tenant.id, API_SERVER).await?;
    if !goes_on {
        lock(&tenant.memory.issuers).others_rolled_out = Some(others);
        return Ok(rendered(Issuers::All, components));
    }
    let with = async |jwt: &[JwtAuthenticator]| {
        let rules = TenantAuthentication {
            jwt: jwt.to_vec(),
            ..wanted.clone()
        };
        render_control_plane(context, prepared, &rules, dns, usage).await
    };
    let before = with(&proven).await?;
    if is_rolled_out(context, tenant, &before).await? {
        lock(&tenant.memory.issuers).others_rolled_out = Some(others);
        return Ok(rendered(Issuers::Tried, components));
    }
    // First, so that what the team takes away and adds again by turns does not make another API server each time.
    let kept = keep_proven(&proven, &wanted.jwt);
    if kept != proven {
        record(tenant, kept.clone()).await?;
    }
    Ok(rendered(Issuers::Proven, with(&kept).await?))
}

/// Looks at an API server that was just applied, as `state` says: when to look again, and whether the one before must lose issuers that the team has removed
/// or changed, because this one does not start.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn follow(
    context: &TenantContext,
    prepared: &Prepared<'_>,
    issuers: Issuers,
    state: &ComponentState,
) -> Result<(), ReconcileError> {
    let tenant = &prepared.accepted.tenant;
    match (issuers, state) {
        (Issuers::All, _) => {}
        (Issuers::Proven, _) | (Issuers::Tried, ComponentState::Running) => {
            context.queue.add_after(tenant.key(), POLL);
        }
        (Issuers::Tried, ComponentState::Down(_)) => {
            let proven = load(context, tenant).await?;
            let kept = keep_proven(&proven, &prepared.accepted.settings.authentication.rules.jwt);
            if kept != proven {
                record(tenant, kept).await?;
                lock(&tenant.memory.issuers).others_rolled_out = None;
                context.queue.add(tenant.key());
            }
        }
    }
    Ok(())
}

/// What was observed of a tenant's issuers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum ObservedIssuers {
    /// Nothing: its API server does not answer.
    Unknown,
    /// It has none.
    NoIssuers,
    /// What the condition says.
    Condition(ConditionUpdate),
}

impl ObservedIssuers {
    /// What follows from how the API server was rendered, and from its `state`. `has_issuers`: the tenant has some.
    pub(super) fn of(has_issuers: bool, issuers: Issuers, state: &ComponentState) -> Self {
        if has_issuers {
            Self::Condition(condition(issuers, state))
        } else {
            Self::NoIssuers
        }
    }

    /// The condition; none if there is none, or if it stays as it is.
    pub(in super::super) fn condition(&self) -> Option<ConditionUpdate> {
        match self {
            Self::Unknown | Self::NoIssuers => None,
            Self::Condition(condition) => Some(condition.clone()),
        }
    }

    /// Takes the condition of earlier issuers out of a status.
    pub(in super::super) fn write_to(&self, status: &mut TenantClusterStatus) {
        if *self == Self::NoIssuers {
            status.conditions.retain(|known| known.type_ != AUTHENTICATION_APPLIED);
        }
    }
}

fn condition(issuers: Issuers, state: &ComponentState) -> ConditionUpdate {
    let pending = |message: &str| ConditionUpdate::mark_false(AUTHENTICATION_APPLIED, "Pending", message);
    match (issuers, state) {
        (Issuers::All, _) => ConditionUpdate::mark_true(
            AUTHENTICATION_APPLIED,
            "Applied",
            "the API server has the issuers of the tenant",
        ),
        (Issuers::Proven, _) => pending(
            "the API server is replaced for another reason, with the issuers with which one has started before; new and changed ones follow",
        ),
        (Issuers::Tried, ComponentState::Running) => {
            pending("an API server with new or changed issuers is being started")
        }
        (Issuers::Tried, ComponentState::Down(why)) => ConditionUpdate::mark_false(
            AUTHENTICATION_APPLIED,
            "NotStarted",
            format!(
                "no API server starts with the issuers in spec.authentication.jwt, or in the default of the class; those with which one has \
                 started before stay, as far as they are still listed. Correct the issuer that the error names: {why}"
            ),
        ),
    }
}

/// Whether every API server that runs is as it was rendered.
async fn is_rolled_out(
    context: &TenantContext,
    tenant: &Tenant,
    components: &[Component],
) -> Result<bool, ReconcileError> {
    match components.iter().find(|component| component.name == API_SERVER) {
        Some(api_server) => Ok(context.runtime.is_rolled_out(tenant.owner(), api_server).await?),
        None => Ok(false),
    }
}

/// Forgets what is known of the API servers that run, if others are wanted now.
fn forget_others(tenant: &Tenant, wanted: &[Component]) {
    let mut memory = lock(&tenant.memory.issuers);
    let is_other = |known: &String| *known != hash_of_others(wanted);
    if memory.others_rolled_out.as_ref().is_some_and(is_other) {
        memory.others_rolled_out = None;
    }
}

/// Hash of everything in an API server but its issuers.
fn hash_of_others(components: &[Component]) -> String {
    let api_server = components.iter().find(|component| component.name == API_SERVER);
    let others = api_server.cloned().map(|mut api_server| {
        api_server.files.remove(AUTHENTICATION_FILE);
        format!("{api_server:?}")
    });
    names::hash(&[others.unwrap_or_default().as_str()])
}

/// The issuers with which an API server has started; none if none is recorded.
async fn load(context: &TenantContext, tenant: &Tenant) -> Result<Vec<JwtAuthenticator>, ReconcileError> {
    if let Some(known) = lock(&tenant.memory.issuers).proven.clone() {
        return Ok(known);
    }
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), &tenant.id.control_plane_namespace());
    let map = optional(maps.get(RECORD).await).map_err(api("read with which issuers the API server has started"))?;
    let text = map.and_then(|map| map.data?.remove(KEY));
    // What cannot be read is nothing: they are tried again.
    let proven: Vec<JwtAuthenticator> = text
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    lock(&tenant.memory.issuers).proven = Some(proven.clone());
    Ok(proven)
}

async fn record(tenant: &Tenant, proven: Vec<JwtAuthenticator>) -> Result<(), ReconcileError> {
    // It cannot fail: there are only texts and lists.
    let text = serde_json::to_string(&proven).unwrap_or_default();
    let map = host_objects::config_map(&tenant.cluster, &tenant.id, RECORD, [(KEY.to_owned(), text)].into());
    tenant.memory.host.apply(&map).await?;
    lock(&tenant.memory.issuers).proven = Some(proven);
    Ok(())
}
