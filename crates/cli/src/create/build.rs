//! The TenantCluster that `berth create` creates. Pure.

use berth_api::{KubeDuration, NodeGroup, NodeMode, TenantCluster, TenantClusterSpec};
use serde_json::{Value, json};

use super::CreateArguments;

/// Value of `--nodes` for nodes that several tenants use.
const SHARED: &str = "shared";

/// Reads `[GROUP:]POOL=REPLICAS`, `[GROUP:]POOL=MIN..MAX` or `[GROUP:]POOL=shared`. A group is named after its pool unless it has a
/// name.
///
/// # Errors
/// The text has another form; the message shows the forms.
pub(super) fn parse_node_group(text: &str) -> Result<NodeGroup, String> {
    let wrong = || format!("expected POOL=2, POOL=0..8 or POOL=shared, after GROUP: or not; got {text:?}");
    let (name, amount) = text.split_once('=').ok_or_else(wrong)?;
    let (group, pool) = name.split_once(':').unwrap_or((name, name));
    if group.is_empty() || pool.is_empty() {
        return Err(wrong());
    }
    let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
    Ok(match amount.split_once("..") {
        Some((min, max)) => NodeGroup::dynamic(group, pool, number(min)?, number(max)?),
        None if amount == SHARED => NodeGroup {
            name: group.into(),
            pool_name: pool.into(),
            mode: NodeMode::Shared,
            ..NodeGroup::default()
        },
        None => NodeGroup::private(group, pool, number(amount)?),
    })
}

/// The object that the flags describe.
pub(super) fn from_flags(name: &str, arguments: &CreateArguments) -> TenantCluster {
    let default = TenantClusterSpec::default();
    TenantCluster::new(
        name,
        TenantClusterSpec {
            version: arguments.version.clone().unwrap_or_else(|| default.version.clone()),
            class_name: arguments.class.clone(),
            node_groups: arguments.nodes.clone(),
            ttl: arguments.ttl.as_deref().map(KubeDuration::from),
            expire_after_idle: arguments.expire_after_idle.as_deref().map(KubeDuration::from),
            ..default
        },
    )
}

/// The object in a file, as it is: the API server refuses what it does not know. `namespace` is that of the command.
///
/// # Errors
/// The file does not have one TenantCluster, or one for another namespace than `--namespace`.
pub(super) fn from_file(text: &str, namespace: &str, is_given: bool) -> Result<Value, String> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).map_err(|error| format!("it is not YAML: {error}"))?;
    let mut documents: Vec<Value> = documents.into_iter().filter(|document| !document.is_null()).collect();
    let (Some(mut document), true) = (documents.pop(), documents.is_empty()) else {
        return Err(
            "it must have one TenantCluster and nothing else; for several objects use `kubectl apply -f`".into(),
        );
    };
    if document["kind"] != "TenantCluster" || document["apiVersion"] != "berth.dev/v1alpha1" {
        return Err(
            "it must have a TenantCluster of berth.dev/v1alpha1; for other kinds use `kubectl apply -f`".into(),
        );
    }
    if document["metadata"]["name"].as_str().is_none_or(str::is_empty) {
        return Err("metadata.name is missing".into());
    }
    match document["metadata"]["namespace"].as_str() {
        None => document["metadata"]["namespace"] = json!(namespace),
        Some(own) if is_given && own != namespace => {
            return Err(format!("it is for the namespace {own}, and --namespace is {namespace}"));
        }
        Some(_) => {}
    }
    Ok(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_groups_are_private_dynamic_or_shared() {
        let parse = |text: &str| parse_node_group(text).unwrap();
        assert_eq!(parse("h100=2"), NodeGroup::private("h100", "h100", 2));
        assert_eq!(parse("train:h100=0..8"), NodeGroup::dynamic("train", "h100", 0, 8));
        let shared = parse("cpu:general=shared");
        assert_eq!(
            (shared.mode, shared.replicas, shared.pool_name.as_str()),
            (NodeMode::Shared, None, "general")
        );
        for wrong in ["h100", "=2", "a:=2", ":b=2", "h100=two", "h100=1..", "h100=-1"] {
            let message = parse_node_group(wrong).unwrap_err();
            assert!(message.contains("POOL=0..8"), "{message}");
        }
    }

    #[test]
    fn a_file_has_exactly_one_tenant() {
        let tenant = "apiVersion: berth.dev/v1alpha1\nkind: TenantCluster\nmetadata: {name: a}\nspec: {unknown: 1}\n";
        let read = from_file(tenant, "team", false).unwrap();
        // Unknown fields reach the API server, which refuses them by name.
        assert_eq!(read["spec"]["unknown"], 1);
        assert_eq!(read["metadata"]["namespace"], "team");
        let own = tenant.replace("{name: a}", "{name: a, namespace: other}");
        assert_eq!(
            from_file(&own, "team", false).unwrap()["metadata"]["namespace"],
            "other"
        );
        assert!(from_file(&own, "team", true).unwrap_err().contains("--namespace"));
        let two = format!("{tenant}---\n{tenant}");
        for (text, part) in [
            (two.as_str(), "kubectl apply"),
            ("", "one TenantCluster"),
            ("kind: Pod", "kubectl apply"),
            ("apiVersion: berth.dev/v1alpha1\nkind: TenantCluster", "metadata.name"),
            ("{", "not YAML"),
        ] {
            let message = from_file(text, "team", false).unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
