//! How an owner is stopped: by its number of replicas, or by a field or an annotation that suspends it.

use berth_api::OwnerSuspend;
use serde_json::Value;

/// Names in a path of a field at most. Those of the kinds of Kubernetes have two.
const MAX_PATH: usize = 8;
/// Bytes of such a name.
const MAX_NAME: usize = 253;

/// How an owner is stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Switch {
    /// By its number of replicas.
    Replicas {
        /// Path of the field in the spec.
        wanted: Vec<String>,
        /// Path of the field that counts what exists.
        observed: Vec<String>,
    },
    /// By the suspension of a Job.
    Job,
    /// By a field of the spec that is true while it is suspended.
    Field {
        /// Path of the field.
        path: Vec<String>,
    },
    /// By an annotation.
    Annotation {
        /// Its name.
        name: String,
        /// The value that suspends it; none: every value does.
        value: Option<String>,
    },
}

impl Switch {
    /// That of a kind of Kubernetes itself; none for others.
    pub fn of_built_in(group: &str, kind: &str) -> Option<Self> {
        match (group, kind) {
            ("apps", "Deployment" | "StatefulSet" | "ReplicaSet") | ("", "ReplicationController") => {
                Self::of_scale(".spec.replicas", ".status.replicas")
            }
            ("batch", "Job") => Some(Self::Job),
            _ => None,
        }
    }

    /// That of a kind with the subresource scale, by the paths in its CustomResourceDefinition. None if these are not paths below
    /// `.spec` and `.status`.
    pub fn of_scale(wanted: &str, observed: &str) -> Option<Self> {
        Some(Self::Replicas {
            wanted: parse_path(wanted.strip_prefix('.')?, "spec")?,
            observed: parse_path(observed.strip_prefix('.')?, "status")?,
        })
    }

    /// That of a kind of which a class says what suspends it. None if it names neither a path below `spec` nor an annotation.
    pub fn of_suspend(suspend: &OwnerSuspend) -> Option<Self> {
        match suspend {
            OwnerSuspend {
                path: Some(path),
                annotation: None,
                value: None,
            } => Some(Self::Field {
                path: parse_path(path, "spec")?,
            }),
            OwnerSuspend {
                path: None,
                annotation: Some(name),
                value,
            } => Some(Self::Annotation {
                name: name.clone(),
                value: value.clone(),
            }),
            _ => None,
        }
    }

    /// Whether the status of an owner says how many pods it has.
    pub const fn counts_pods(&self) -> bool {
        match self {
            Self::Replicas { .. } | Self::Job => true,
            Self::Field { .. } | Self::Annotation { .. } => false,
        }
    }

    /// Whether an owner wants pods; none if its fields cannot be read. An object without a number of replicas has one.
    pub fn is_running(&self, object: &Value) -> Option<bool> {
        match self {
            Self::Replicas { wanted, .. } => Some(count(object, wanted, 1)? > 0),
            Self::Job => is_running_by_field(&object["spec"]["suspend"]),
            Self::Field { path } => is_running_by_field(field(object, path)),
            Self::Annotation { name, value } => match &object["metadata"]["annotations"][name.as_str()] {
                Value::Null => Some(true),
                Value::String(text) => Some(value.as_ref().is_some_and(|suspends| suspends != text)),
                _ => None,
            },
        }
    }

    /// How many pods an owner has or is about to have, whichever is more; none if its fields cannot be read.
    pub(super) fn pods(&self, object: &Value) -> Option<u32> {
        match self {
            Self::Replicas { wanted, observed } => Some(count(object, wanted, 1)?.max(count(object, observed, 0)?)),
            Self::Job => {
                let active = count(object, &path(&["status", "active"]), 0)?;
                Some(wanted_by_job(object, active)?.max(active))
            }
            Self::Field { .. } | Self::Annotation { .. } => Some(0),
        }
    }

    /// The number of replicas; none if there is no such number.
    pub(super) fn replicas(&self, object: &Value) -> Option<u32> {
        match self {
            Self::Replicas { wanted, .. } => count(object, wanted, 1),
            Self::Job | Self::Field { .. } | Self::Annotation { .. } => None,
        }
    }

    /// The field or the annotation that a class names, as a record has it.
    pub(super) fn name(&self) -> Option<String> {
        match self {
            Self::Replicas { .. } | Self::Job => None,
            Self::Field { path } => Some(path.join(".")),
            Self::Annotation { name, .. } => Some(name.clone()),
        }
    }

    /// What the field or the annotation is that a class names.
    pub(super) fn value<'a>(&self, object: &'a Value) -> &'a Value {
        match self {
            Self::Replicas { .. } | Self::Job => &Value::Null,
            Self::Field { path } => field(object, path),
            Self::Annotation { name, .. } => &object["metadata"]["annotations"][name.as_str()],
        }
    }
}

fn parse_path(path: &str, root: &str) -> Option<Vec<String>> {
    let names: Vec<&str> = path.split('.').collect();
    let is_name = |name: &&str| {
        (1..=MAX_NAME).contains(&name.len())
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || ['-', '_'].contains(&c))
    };
    let is_path = names.first() == Some(&root) && (2..=MAX_PATH).contains(&names.len()) && names.iter().all(is_name);
    is_path.then(|| names.into_iter().map(ToOwned::to_owned).collect())
}

fn path<const N: usize>(names: &[&str; N]) -> [String; N] {
    names.map(ToOwned::to_owned)
}

fn field<'a>(object: &'a Value, path: &[String]) -> &'a Value {
    path.iter().fold(object, |value, name| &value[name.as_str()])
}

fn is_running_by_field(suspended: &Value) -> Option<bool> {
    match suspended {
        Value::Null => Some(true),
        value => value.as_bool().map(|is_suspended| !is_suspended),
    }
}

fn count(object: &Value, path: &[String], default: u32) -> Option<u32> {
    match field(object, path) {
        Value::Null => Some(default),
        value => value.as_u64().and_then(|number| u32::try_from(number).ok()),
    }
}

/// How many pods a Job wants: its parallelism, and not more than are left to complete.
fn wanted_by_job(job: &Value, active: u32) -> Option<u32> {
    let parallelism = count(job, &path(&["spec", "parallelism"]), 1)?;
    let succeeded = count(job, &path(&["status", "succeeded"]), 0)?;
    if job["spec"]["completions"].is_null() {
        // The first pod that succeeds ends such a Job: no other one starts.
        return Some(if succeeded > 0 { active } else { parallelism });
    }
    let completions = count(job, &path(&["spec", "completions"]), 1)?;
    let failed = count_indexes(job["status"]["failedIndexes"].as_str().unwrap_or_default())?;
    Some(parallelism.min(completions.saturating_sub(succeeded.saturating_add(failed))))
}

/// How many indexes a text such as `1,3-5,7` names; none if it is not one.
fn count_indexes(text: &str) -> Option<u32> {
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            last.checked_sub(first)?.checked_add(1)
        })
        .try_fold(0_u32, |sum, indexes| sum.checked_add(indexes?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_lead_below_the_spec() {
        let suspend = |path: &str| OwnerSuspend {
            path: Some(path.into()),
            ..OwnerSuspend::default()
        };
        let deep = Switch::of_suspend(&suspend("spec.runPolicy.suspend")).unwrap();
        assert_eq!(deep.name().as_deref(), Some("spec.runPolicy.suspend"));
        for bad in [
            "spec",
            ".spec.suspend",
            "metadata.labels",
            "status.suspend",
            "spec.a[0]",
            "spec..a",
            "",
            format!("spec.{}", "a".repeat(254)).as_str(),
        ] {
            assert_eq!(Switch::of_suspend(&suspend(bad)), None, "{bad}");
        }
        for (wanted, observed) in [
            (".metadata.labels", ".status.replicas"),
            (".spec", ".status.replicas"),
            ("spec.replicas", ".status.replicas"),
            (".spec.a[0].b", ".status.replicas"),
            (".spec..b", ".status.replicas"),
            (".spec.replicas", ".spec.replicas"),
        ] {
            assert_eq!(Switch::of_scale(wanted, observed), None, "{wanted} {observed}");
        }
        assert_eq!(Switch::of_built_in("apps", "DaemonSet"), None);
    }

    #[test]
    fn a_kind_is_suspended_by_one_thing() {
        assert_eq!(Switch::of_suspend(&OwnerSuspend::default()), None);
        let both = OwnerSuspend {
            path: Some("spec.suspend".into()),
            annotation: Some("stopped".into()),
            value: None,
        };
        assert_eq!(Switch::of_suspend(&both), None);
    }

    #[test]
    fn an_annotation_suspends_by_its_presence_or_by_one_value() {
        let switch = |value: Option<&str>| Switch::Annotation {
            name: "stop".into(),
            value: value.map(ToOwned::to_owned),
        };
        let object = |value: Value| json!({"metadata": {"annotations": {"stop": value}}});
        assert_eq!(switch(None).is_running(&json!({})), Some(true));
        assert_eq!(switch(None).is_running(&object("".into())), Some(false));
        assert_eq!(switch(Some("true")).is_running(&object("false".into())), Some(true));
        assert_eq!(switch(Some("true")).is_running(&object("true".into())), Some(false));
        assert_eq!(switch(None).is_running(&object(json!({}))), None);
    }

    #[test]
    fn a_job_wants_as_many_pods_as_are_left_to_complete() {
        let pods = |spec: Value, status: Value| Switch::Job.pods(&json!({"spec": spec, "status": status}));
        assert_eq!(pods(json!({}), json!({"active": 1})), Some(1));
        assert_eq!(pods(json!({"parallelism": 4}), json!({"active": 1})), Some(4));
        let last = json!({"parallelism": 4, "completions": 10});
        assert_eq!(pods(last.clone(), json!({"active": 2, "succeeded": 8})), Some(2));
        let failed = json!({"active": 1, "succeeded": 4, "failedIndexes": "1,3-5,7"});
        assert_eq!(pods(last, failed), Some(1));
        let any = json!({"parallelism": 4});
        assert_eq!(pods(any, json!({"active": 1, "succeeded": 1})), Some(1));
        let unreadable = json!({"active": 1, "failedIndexes": "5-3"});
        assert_eq!(pods(json!({"completions": 2}), unreadable), None);
    }
}
