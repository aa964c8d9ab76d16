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

/// Reads `72h`, `1h30m` or `90s`, as the API has durations.
///
/// # Errors
/// It is none, or shorter than a minute, which the API refuses.
pub(crate) fn parse_lifetime(text: &str) -> Result<KubeDuration, String> {
    let mut rest = text;
    // Digits that the API allows before each unit.
    for (unit, most) in [('h', 5), ('m', 5), ('s', 6)] {
        let Some((digits, after)) = rest.split_once(unit) else {
            continue;
        };
        if !(1..=most).contains(&digits.len()) || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err("expected hours, minutes and seconds such as 72h, 1h30m or 90s".into());
        }
        rest = after;
    }
    if text.is_empty() || !rest.is_empty() {
        return Err("expected hours, minutes and seconds such as 72h, 1h30m or 90s".into());
    }
    let duration = KubeDuration::from(text);
    if duration.seconds() < 60 {
        return Err("expected at least 1m".into());
    }
    Ok(duration)
}

/// Reads `KEY=VALUE`. The value may be empty and may have equals signs.
///
/// # Errors
/// There is no key, or no equals sign.
pub(super) fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => Err(format!("expected KEY=VALUE, got {text:?}")),
    }
}

/// The object that the flags describe.
pub(super) fn from_flags(name: &str, arguments: &CreateArguments) -> TenantCluster {
    let mut object = TenantCluster::new(
        name,
        TenantClusterSpec {
            version: arguments.version.clone(),
            class_name: arguments.class.clone(),
            node_groups: arguments.nodes.clone(),
            ttl: arguments.ttl.clone(),
            expire_after_idle: arguments.expire_after_idle.clone(),
            ..TenantClusterSpec::default()
        },
    );
    let collect = |pairs: &[(String, String)]| (!pairs.is_empty()).then(|| pairs.iter().cloned().collect());
    object.metadata.labels = collect(&arguments.labels);
    object.metadata.annotations = collect(&arguments.annotations);
    object
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
    use clap::Parser as _;

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
    fn lifetimes_are_those_that_the_api_takes() {
        for right in ["72h", "1h30m", "90s", "60s", "1m", "99999h"] {
            assert_eq!(parse_lifetime(right), Ok(KubeDuration::from(right)), "{right}");
        }
        for wrong in [
            "", "5", "h", "1d", "30m1h", "-1h", "1.5h", "59s", "0h", "100000h", "1h 30m", "1h30",
        ] {
            assert!(parse_lifetime(wrong).is_err(), "{wrong}");
        }
    }

    /// The arguments of this command.
    fn read(line: &str) -> CreateArguments {
        let arguments = crate::args::Arguments::try_parse_from(line.split(' ')).unwrap();
        match arguments.command {
            crate::args::Command::Create(arguments) => arguments,
            _ => panic!("not create"),
        }
    }

    #[test]
    fn a_version_that_nobody_asked_for_is_left_to_the_host() {
        let version = |line: &str| {
            let arguments = read(line);
            let sent = serde_json::to_value(from_flags("vision", &arguments)).unwrap();
            assert_eq!(sent["metadata"]["name"], "vision", "{sent}");
            sent["spec"].get("version").cloned()
        };
        assert_eq!(version("berth create vision"), None);
        assert_eq!(version("berth create vision --version v1.36.4"), Some(json!("v1.36.4")));
    }

    #[test]
    fn labels_and_annotations_are_those_of_the_flags() {
        assert_eq!(parse_pair("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(parse_pair("a="), Ok(("a".into(), String::new())));
        assert!(parse_pair("a").is_err() && parse_pair("=a").is_err());
        let line = "berth create vision --label team=vision,stage=prod --annotation note=x,y --ttl 72h";
        let arguments = read(line);
        let object = from_flags("vision", &arguments);
        assert_eq!(object.metadata.labels.unwrap()["stage"], "prod");
        assert_eq!(object.metadata.annotations.unwrap()["note"], "x,y");
        assert_eq!(object.spec.ttl, Some(KubeDuration::from("72h")));
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
