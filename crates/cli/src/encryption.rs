//! `berth encryption`: with which keys tenants encrypt what they store, and a request for another key.

use std::process::ExitCode;
use std::time::Duration;

use berth_api::conditions::ENCRYPTED_AT_REST;
use berth_api::labels::ENCRYPTION_KEY_ROTATION_REQUESTED_AT;
use berth_api::{EncryptionPhase, EncryptionStatus, SnapshotPhase, TenantCluster, TenantSnapshot};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde::Serialize;

use crate::completion;
use crate::error::Error;
use crate::host::{Host, HostArguments};
use crate::output::{
    NameOnly, ObjectFormat, format_optional, format_rows, format_time, join_lines, print_named, print_note,
};
use crate::rotation;
use crate::tenant::{self, NamespacesArgument, TenantName, print_result, resource_name};
use crate::wait::parse_timeout;

/// Names of snapshots that are printed at most.
const MOST_NAMES: usize = 5;

/// What to do with keys of encryption.
#[derive(Debug, Subcommand)]
pub(crate) enum EncryptionCommand {
    /// Replace the key with which a tenant encrypts what it stores.
    ///
    /// Control makes a key, lets all API servers of the tenant write with it, has every object rewritten, and deletes the earlier key. Objects can
    /// be read and written all the time. A tenant that sleeps gets the key when it is awake. Back up the Secret `pki` of the tenant again
    /// afterwards, and keep the earlier file as long as snapshots of etcd from before. TenantSnapshots with objects that need the earlier key are
    /// named: the tenant cannot be set back to them without that file.
    #[command(after_help = "Example:\n  berth encryption rotate team-vision/vision --wait")]
    Rotate(RotateArguments),
    /// Show the key, the phase of its last change and since when, and what is not encrypted yet.
    ///
    /// Without a name, show the tenants of all namespaces that encrypt something, or those in --namespace.
    #[command(
        after_help = "Examples:\n  berth encryption status\n  berth encryption status team-vision/vision\n  berth encryption status -o json"
    )]
    Status(StatusArguments),
}

#[derive(Debug, Args)]
pub(crate) struct RotateArguments {
    /// Name of the TenantCluster, or NAMESPACE/NAME.
    #[arg(add = completion::tenant_names())]
    name: String,
    /// Wait until every object is encrypted with the new key, and print the conditions of the tenant as they change.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false", hide_default_value = true)]
    wait: bool,
    /// How long to wait. About 30 objects are rewritten in a second.
    #[arg(long, default_value = "15m", value_parser = parse_timeout, value_name = "DURATION", requires = "wait")]
    timeout: Duration,
    /// Print only resource and name.
    #[arg(short, long, value_enum, value_name = "name")]
    output: Option<NameOnly>,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArguments {
    /// Name of the TenantCluster, or NAMESPACE/NAME. [default: all tenants that encrypt something]
    #[arg(add = completion::tenant_names(), conflicts_with = "all_namespaces")]
    name: Option<String>,
    #[command(flatten)]
    namespaces: NamespacesArgument,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: ObjectFormat,
}

/// What `encryption status` prints. Programs read it: fields are only ever added.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct EncryptionView {
    tenants: Vec<TenantView>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct TenantView {
    /// `namespace/name` of the tenant.
    tenant: String,
    /// Whether every object was found encrypted with the key, and no key is missing.
    is_encrypted: bool,
    /// The reason of the condition `EncryptedAtRest`, or of `InfrastructureReady` if a key is missing; none if the tenant encrypts nothing.
    reason: Option<String>,
    message: Option<String>,
    /// What the status says of the last change; none if the tenant encrypts nothing.
    encryption: Option<EncryptionStatus>,
}

impl TenantView {
    fn of(tenant: &TenantCluster) -> Self {
        let mut conditions = tenant.status.iter().flat_map(|status| &status.conditions);
        let obstacle = tenant.encryption_obstacle();
        let condition = obstacle.or_else(|| conditions.find(|condition| condition.type_ == ENCRYPTED_AT_REST));
        Self {
            tenant: TenantName::of(tenant).to_string(),
            is_encrypted: obstacle.is_none() && condition.is_some(),
            reason: condition.map(|condition| condition.reason.clone()),
            message: condition.map(|condition| condition.message.clone()),
            encryption: status_of(tenant).cloned(),
        }
    }

    /// Whether there is something to show of a tenant that nobody has named.
    fn encrypts(&self) -> bool {
        self.reason.is_some() || self.encryption.is_some()
    }

    fn row(&self) -> [String; 6] {
        let Self {
            tenant,
            is_encrypted,
            reason,
            message: _,
            encryption,
        } = self;
        let encrypted = if *is_encrypted { "True" } else { "False" };
        let reason = format_optional(reason.as_ref());
        let of_status = encryption.as_ref().map(|status| {
            let key = format_optional(status.key_name.as_ref());
            [key, format_time(status.since.0), status.resources.join(",")]
        });
        let [key, since, resources] = of_status.unwrap_or_else(|| ["-"; 3].map(str::to_owned));
        [tenant.clone(), encrypted.to_owned(), reason, key, since, resources]
    }
}

fn status_of(tenant: &TenantCluster) -> Option<&EncryptionStatus> {
    tenant.status.as_ref()?.encryption.as_ref()
}

pub(crate) async fn run(host: &HostArguments, command: &EncryptionCommand) -> Result<ExitCode, Error> {
    match command {
        EncryptionCommand::Rotate(arguments) => rotate(host, arguments).await,
        EncryptionCommand::Status(arguments) => show(host, arguments).await,
    }
}

async fn rotate(host: &HostArguments, arguments: &RotateArguments) -> Result<ExitCode, Error> {
    let host = host.connect().await?;
    let (name, tenant) = tenant::find(&host, &arguments.name).await?;
    let last = find_last_request(&name, &tenant)?;
    warn_of_snapshots(&host, &name, &tenant).await;
    let requested_at = rotation::request(&host, &name, ENCRYPTION_KEY_ROTATION_REQUESTED_AT, last).await?;
    if !arguments.wait {
        let text = format!("gets another key; `berth encryption status {name}` shows its progress");
        print_result(&name, arguments.output, &text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let find = |tenant: &TenantCluster| find_new_key(tenant, requested_at);
    let missing = format!("not all objects of {name} are encrypted with another key yet");
    let key = rotation::wait_until(&host, (&name, &tenant), arguments.timeout, find, &missing).await?;
    let namespace = tenant.status.and_then(|status| status.control_plane_namespace);
    let text = format!(
        "stores everything encrypted with the key {key}, and the earlier key is deleted. Back up the Secret {}/pki again",
        namespace.unwrap_or_default()
    );
    print_result(&name, arguments.output, &text)?;
    Ok(ExitCode::SUCCESS)
}

/// Says on the standard error which snapshots need the key that is to be replaced. Who may not list snapshots can ask for another key all the same.
async fn warn_of_snapshots(host: &Host, name: &TenantName, tenant: &TenantCluster) {
    let snapshots: Api<TenantSnapshot> = Api::namespaced(host.client.clone(), &name.namespace);
    let warning = match snapshots.list(&ListParams::default()).await {
        Ok(found) => describe_snapshots(name, tenant, &found.items),
        Err(error) => Some(format!(
            "cannot look whether snapshots of {name} need the key that is replaced: {error}"
        )),
    };
    if let Some(warning) = warning {
        print_note(format_args!("{warning}"));
    }
}

/// Which snapshots of a tenant need the key that it has now, and what that means; none if there are none.
fn describe_snapshots(name: &TenantName, tenant: &TenantCluster, snapshots: &[TenantSnapshot]) -> Option<String> {
    let key = status_of(tenant)?.key_name.clone()?;
    let needs_key = |snapshot: &&TenantSnapshot| {
        let is_completed = snapshot.phase() == SnapshotPhase::Completed;
        let status = snapshot.status.as_ref().filter(|_| is_completed);
        status.is_some_and(|status| status.tenant_uid == tenant.uid() && status.encryption_keys.contains(&key))
    };
    let names: Vec<String> = { snapshots.iter() }
        .filter(needs_key)
        .map(ResourceExt::name_any)
        .collect();
    let mut listed = names.get(..MOST_NAMES.min(names.len()))?.join(", ");
    if listed.is_empty() {
        return None;
    }
    let more = names.len().saturating_sub(MOST_NAMES);
    if more > 0 {
        listed = format!("{listed} and {more} more");
    }
    let namespace = tenant
        .status
        .as_ref()
        .and_then(|status| status.control_plane_namespace.clone());
    Some(format!(
        "snapshots of {name} have objects that are encrypted with the key {key}, which is deleted once the tenant has another one: {listed}. The tenant cannot \
         be set back to them then, unless somebody adds the key from a backup of the Secret {}/pki: make one now, if there is none, and take a snapshot \
         afterwards",
        namespace.unwrap_or_default()
    ))
}

/// The last request that control knows; none if there was none. An error if the tenant has no key that could be replaced.
fn find_last_request(name: &TenantName, tenant: &TenantCluster) -> Result<Option<Timestamp>, Error> {
    let status = status_of(tenant).filter(|status| status.key_name.is_some());
    let status = status.ok_or_else(|| {
        Error::Failed(format!(
            "{name} has no key that could be replaced: its class encrypts nothing, or it has not been started"
        ))
    })?;
    Ok(status.requested_at.as_ref().map(|at| at.0))
}

/// The name of the key if everything is encrypted since this request, or a later one.
fn find_new_key(tenant: &TenantCluster, requested_at: Timestamp) -> Option<String> {
    let status = status_of(tenant)?;
    let is_completed = status.phase == EncryptionPhase::Completed;
    let is_carried_out = status.requested_at.as_ref().is_some_and(|at| at.0 >= requested_at);
    status.key_name.clone().filter(|_| is_completed && is_carried_out)
}

async fn show(host: &HostArguments, arguments: &StatusArguments) -> Result<ExitCode, Error> {
    let given = arguments.namespaces.given(host);
    let host = host.connect().await?;
    let tenants = if let Some(name) = &arguments.name {
        let (_, tenant) = tenant::find(&host, name).await?;
        vec![TenantView::of(&tenant)]
    } else {
        let all = tenant::list_visible(&host, given, arguments.namespaces).await?.tenants;
        let mut views: Vec<TenantView> = all.iter().map(TenantView::of).filter(TenantView::encrypts).collect();
        views.sort_by(|one, other| one.tenant.cmp(&other.tenant));
        views
    };
    let names: Vec<String> = tenants
        .iter()
        .map(|view| resource_name(view.tenant.split_once('/').map_or("", |(_, name)| name)))
        .collect();
    print_named(&EncryptionView { tenants }, &names, describe, arguments.output)?;
    Ok(ExitCode::SUCCESS)
}

/// A table, and below it what the conditions of tenants say that are not encrypted, or of the only one.
fn describe(view: &EncryptionView) -> String {
    let EncryptionView { tenants } = view;
    let heading = ["TENANT", "ENCRYPTED", "REASON", "KEY", "SINCE", "RESOURCES"];
    let Some(table) = format_rows(heading, tenants, TenantView::row) else {
        return "No tenant encrypts what it stores.".into();
    };
    let shown = tenants.iter().filter(|view| !view.is_encrypted || tenants.len() == 1);
    let messages: Vec<String> = shown
        .filter_map(|view| Some(format!("{}: {}", view.tenant, view.message.as_ref()?)))
        .collect();
    if messages.is_empty() {
        return table;
    }
    format!("{table}\n\n{}", join_lines(&messages))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const BEFORE: &str = "2026-05-05T11:00:00Z";
    const REQUESTED: &str = "2026-05-05T12:00:00Z";

    fn tenant(name: &str, status: &Value) -> TenantCluster {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": name, "namespace": "team"}, "spec": {},
            "status": status,
        }))
        .unwrap()
    }

    fn encrypted(phase: &str, key: Option<&str>, requested_at: Option<&str>) -> TenantCluster {
        let mut encryption = json!({"phase": phase, "since": REQUESTED, "resources": ["secrets", "notes.example.com"]});
        if let Some(key) = key {
            encryption["keyName"] = key.into();
        }
        if let Some(at) = requested_at {
            encryption["requestedAt"] = at.into();
        }
        let status = if phase == "Completed" { "True" } else { "False" };
        let condition = json!({"type": "EncryptedAtRest", "status": status, "reason": phase, "message": "what is waited for",
            "lastTransitionTime": REQUESTED});
        tenant("vision", &json!({"encryption": encryption, "conditions": [condition]}))
    }

    #[test]
    fn a_key_is_new_once_all_is_rewritten_for_this_request_or_a_later_one() {
        let at: Timestamp = REQUESTED.parse().unwrap();
        let find =
            |phase: &str, requested_at: Option<&str>| find_new_key(&encrypted(phase, Some("b"), requested_at), at);
        assert_eq!(find("Completed", Some(REQUESTED)).as_deref(), Some("b"));
        assert_eq!(find("Completed", Some("2026-05-05T13:00:00Z")).as_deref(), Some("b"));
        assert_eq!(find("Completed", Some(BEFORE)), None);
        assert_eq!(find("Completed", None), None);
        assert_eq!(find("Rewriting", Some(REQUESTED)), None);
        assert_eq!(find_new_key(&tenant("vision", &json!({})), at), None);
    }

    #[test]
    fn snapshots_that_need_the_key_which_is_replaced_are_named() {
        let name = TenantName::parse("team/vision", "").unwrap();
        let mut tenant = encrypted("Completed", Some("key-a"), None);
        tenant.metadata.uid = Some("6f2c".into());
        let snapshot = |name: &str, phase: &str, uid: &str, key: &str| -> TenantSnapshot {
            serde_json::from_value(json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot", "metadata": {"name": name, "namespace": "team"},
                "spec": {"tenantClusterName": "vision"}, "status": {"phase": phase, "tenantUID": uid, "encryptionKeys": [key]},
            }))
            .unwrap()
        };
        let others = [
            snapshot("plain", "Completed", "6f2c", "another-key"),
            snapshot("failed", "Failed", "6f2c", "key-a"),
            snapshot("of-another", "Completed", "0000", "key-a"),
        ];
        assert_eq!(describe_snapshots(&name, &tenant, &others), None);
        let needing = |count: usize| -> Vec<TenantSnapshot> {
            let needing = (0..count).map(|number| snapshot(&format!("s{number}"), "Completed", "6f2c", "key-a"));
            needing.chain(others.clone()).collect()
        };
        let text = describe_snapshots(&name, &tenant, &needing(2)).unwrap();
        assert!(text.contains("the key key-a") && text.contains(": s0, s1. "), "{text}");
        let text = describe_snapshots(&name, &tenant, &needing(7)).unwrap();
        assert!(text.contains("s4 and 2 more. ") && !text.contains("s5"), "{text}");
        let without = encrypted("Rewriting", None, None);
        assert_eq!(describe_snapshots(&name, &without, &needing(2)), None);
    }

    #[test]
    fn only_a_tenant_with_a_key_is_asked_for_another() {
        let name = TenantName::parse("team/vision", "").unwrap();
        let last = |tenant: &TenantCluster| find_last_request(&name, tenant);
        assert_eq!(last(&encrypted("Completed", Some("a"), None)).unwrap(), None);
        let before: Timestamp = BEFORE.parse().unwrap();
        assert_eq!(
            last(&encrypted("Writing", Some("a"), Some(BEFORE))).unwrap(),
            Some(before)
        );
        for without in [tenant("vision", &json!({})), encrypted("Rewriting", None, None)] {
            let error = last(&without).unwrap_err();
            assert!(error.to_string().contains("team/vision has no key"), "{error}");
        }
    }

    #[test]
    fn the_table_has_key_phase_and_time_and_messages_of_tenants_that_are_not_encrypted() {
        let of = |tenants: &[TenantCluster]| {
            describe(&EncryptionView {
                tenants: tenants.iter().map(TenantView::of).collect(),
            })
        };
        let completed = encrypted("Completed", Some("key-a"), None);
        let text = of(&[encrypted("Rewriting", Some("key-b"), None), completed.clone()]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["TENANT", "ENCRYPTED", "REASON", "KEY", "SINCE", "RESOURCES"]);
        let resources = "secrets,notes.example.com";
        assert_eq!(
            lines[1],
            ["team/vision", "False", "Rewriting", "key-b", REQUESTED, resources]
        );
        assert_eq!(
            lines[2],
            ["team/vision", "True", "Completed", "key-a", REQUESTED, resources]
        );
        assert!(text.ends_with("\n\nteam/vision: what is waited for"), "{text}");
        assert_eq!(text.matches("what is waited for").count(), 1);
        // Of the only one the condition may also say something of a request for later.
        assert!(of(&[completed]).ends_with("\n\nteam/vision: what is waited for"));
        assert!(of(&[tenant("vision", &json!({}))]).ends_with("team/vision  False      -       -    -      -"));
        assert_eq!(of(&[]), "No tenant encrypts what it stores.");
    }

    #[test]
    fn a_tenant_without_its_keys_is_not_encrypted_whatever_it_was_before() {
        let of = |type_: &str, status: &str, reason: &str| {
            json!({"type": type_, "status": status, "reason": reason, "message": reason,
                "lastTransitionTime": REQUESTED})
        };
        let view = |prepared: &Value| {
            let encrypted = of("EncryptedAtRest", "True", "Encrypted");
            TenantView::of(&tenant("vision", &json!({"conditions": [encrypted, prepared]})))
        };
        let lost = view(&of("InfrastructureReady", "False", "EncryptionKeyMissing"));
        assert!(!lost.is_encrypted && lost.encrypts());
        assert_eq!(lost.message.as_deref(), Some("EncryptionKeyMissing"));
        let other = view(&of("InfrastructureReady", "False", "NamespacesFailed"));
        assert!(other.is_encrypted);
        assert_eq!(other.reason.as_deref(), Some("Encrypted"));
    }

    #[test]
    fn programs_read_the_status_and_tenants_that_encrypt_nothing_are_not_listed() {
        let view = TenantView::of(&encrypted("Writing", Some("key-a"), Some(BEFORE)));
        assert!(view.encrypts());
        let expected = json!({"tenant": "team/vision", "isEncrypted": false, "reason": "Writing", "message": "what is waited for",
            "encryption": {"phase": "Writing", "since": REQUESTED, "keyName": "key-a", "requestedAt": BEFORE,
                "resources": ["secrets", "notes.example.com"]}});
        assert_eq!(serde_json::to_value(&view).unwrap(), expected);
        assert!(!TenantView::of(&tenant("vision", &json!({}))).encrypts());
    }
}
