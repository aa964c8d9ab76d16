//! `berth restore`: asks control to start owners again that it stopped because their GPUs were idle.
//!
//! The request is an annotation of the TenantCluster. Control starts each owner once and removes the annotation.

use std::process::ExitCode;

use berth_api::text::one_line;
use berth_api::{ALL_STOPPED_OWNERS, StoppedOwner, labels::RESTORE};
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::error::{Error, failed};
use crate::host::HostArguments;
use crate::output::print_line;
use crate::tenant;

pub(crate) async fn run(host: &HostArguments, tenant: &str, owners: &[String]) -> Result<ExitCode, Error> {
    let host = host.connect().await?;
    let (tenant, cluster) = tenant::find(&host, tenant).await?;
    let idle = cluster.status.as_ref().and_then(|status| status.idle.as_ref());
    let stopped = idle.map(|idle| idle.stopped_owners.as_slice()).unwrap_or_default();
    if stopped.is_empty() && owners.is_empty() {
        print_line(format_args!("Berth has stopped no owner in {tenant}."))?;
        return Ok(ExitCode::SUCCESS);
    }
    let wanted = find_wanted(stopped, owners)?;
    let pending = cluster.annotations().get(RESTORE).map(String::as_str);
    // Another request in between has another resource version, and wins.
    let patch = json!({"metadata": {
        "uid": cluster.uid(),
        "resourceVersion": cluster.resource_version(),
        "annotations": {RESTORE: combine(pending, owners.is_empty(), &wanted)},
    }});
    let tenants = tenant.api(&host.client);
    let patched = tenants
        .patch(&tenant.name, &PatchParams::default(), &Patch::Merge(&patch))
        .await;
    patched.map_err(failed(
        "ask for the restore; try again if somebody has changed the TenantCluster meanwhile",
    ))?;
    for path in wanted {
        print_line(format_args!(
            "{}: will be started again within a minute, if the tenant's API server answers",
            one_line(&path)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The stopped owners that are meant, all without names.
///
/// # Errors
/// There is none of a name; the text has all that there are.
fn find_wanted(stopped: &[StoppedOwner], owners: &[String]) -> Result<Vec<String>, Error> {
    if owners.is_empty() {
        return Ok(stopped.iter().map(StoppedOwner::path).collect());
    }
    let find = |name: &String| {
        // Names of Kubernetes have no comma. One here would ask for others too.
        let is_one = !name.contains(',') && name != ALL_STOPPED_OWNERS;
        let found = stopped.iter().find(|owner| is_one && owner.is_named_by(name));
        found.map(StoppedOwner::path).ok_or_else(|| {
            let all: Vec<String> = stopped.iter().map(StoppedOwner::path).collect();
            let all = if all.is_empty() {
                "none".to_owned()
            } else {
                all.join(", ")
            };
            Error::NotFound(format!(
                "Berth has not stopped {name:?}; write it as KIND/NAMESPACE/NAME. Stopped are: {all}"
            ))
        })
    };
    owners.iter().map(find).collect()
}

/// The annotation: what was asked for before and is not done yet, and what is asked for now.
fn combine(pending: Option<&str>, is_all: bool, wanted: &[String]) -> String {
    if is_all || pending == Some(ALL_STOPPED_OWNERS) {
        return ALL_STOPPED_OWNERS.to_owned();
    }
    let pending = pending
        .into_iter()
        .flat_map(|pending| pending.split(','))
        .filter(|item| !item.is_empty());
    let mut all: Vec<&str> = pending.chain(wanted.iter().map(String::as_str)).collect();
    all.sort_unstable();
    all.dedup();
    all.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped() -> Vec<StoppedOwner> {
        let owner = |kind: &str, name: &str| {
            let owner = json!({"apiVersion": "apps/v1", "kind": kind, "namespace": "ml", "name": name, "uid": name, "gpus": 8,
                "stoppedAt": "1970-01-01T00:00:00Z"});
            serde_json::from_value(owner).unwrap()
        };
        vec![owner("Deployment", "web"), owner("StatefulSet", "lab")]
    }

    #[test]
    fn owners_are_found_by_name_and_all_without_one() {
        let find = |owners: &[&str]| {
            let owners: Vec<String> = owners.iter().map(ToString::to_string).collect();
            find_wanted(&stopped(), &owners)
        };
        assert_eq!(find(&[]).unwrap(), ["Deployment/ml/web", "StatefulSet/ml/lab"]);
        assert_eq!(find(&["statefulset/ml/lab"]).unwrap(), ["StatefulSet/ml/lab"]);
        for wrong in ["lab", "Deployment/ml/lab", "*", "Deployment/ml/web,StatefulSet/ml/lab"] {
            let error = find(&[wrong]).unwrap_err();
            assert_eq!(error.exit_code(), 3, "{error}");
            let message = error.to_string();
            assert!(
                message.contains("Stopped are: Deployment/ml/web, StatefulSet/ml/lab"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_request_does_not_replace_one_that_is_not_done() {
        let wanted = ["Deployment/ml/web".to_owned()];
        assert_eq!(combine(None, false, &wanted), "Deployment/ml/web");
        assert_eq!(
            combine(Some("Deployment/ml/web,Job/ml/a"), false, &wanted),
            "Deployment/ml/web,Job/ml/a"
        );
        assert_eq!(combine(Some("Job/ml/a"), true, &wanted), "*");
        assert_eq!(combine(Some("*"), false, &wanted), "*");
    }
}
