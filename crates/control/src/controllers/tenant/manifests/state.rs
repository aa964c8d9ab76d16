//! What the status of a tenant says of its class's manifests. Pure.

use super::{
    desired::{Manifest, Problem},
    objects::ObjectKey,
    pass::Done,
};
use berth_api::{
    ManifestStatus, TenantClusterStatus,
    conditions::{ConditionUpdate, MANIFESTS_APPLIED},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::events::{Event, EventType};
use std::collections::{BTreeMap, BTreeSet};

/// Objects and problems that a message names.
const NAMED: usize = 5;

/// What a reconcile knows of the manifests.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum ObservedManifests {
    /// The tenant was not looked at: the status stays as it is.
    #[default]
    NotObserved,
    /// Its class has none, and nothing is left of earlier ones.
    NoManifests,
    /// The result of the last pass.
    Observed(ManifestsState),
}

/// The result of a pass.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ManifestsState {
    statuses: Vec<ManifestStatus>,
    problems: Vec<Problem>,
    is_deleting: bool,
}

impl ManifestsState {
    /// The state after a pass. `before` is what the status said.
    pub(crate) fn new(manifests: &[Manifest], done: Done, before: &[ManifestStatus], now: Timestamp) -> Self {
        let Done {
            inventory: _,
            drift,
            problems,
            is_deleting,
            taken_back: _,
        } = done;
        let failed: BTreeSet<&str> = problems.iter().map(|(manifest, _)| manifest.as_str()).collect();
        // An error without a manifest concerns all of them.
        let has_failed = |name: &str| failed.contains("") || failed.contains(name);
        let status = |manifest: &Manifest| {
            let spec = &manifest.spec;
            let earlier = before.iter().find(|earlier| earlier.name == spec.name);
            if manifest.objects.is_err() || has_failed(&spec.name) {
                return earlier.cloned();
            }
            let has_drifted = drift.iter().any(|(name, _)| *name == spec.name);
            Some(ManifestStatus {
                name: spec.name.clone(),
                version: spec.version.clone(),
                mode: spec.mode,
                objects: u32::try_from(manifest.known().len()).unwrap_or(u32::MAX),
                drift_corrected_at: if has_drifted {
                    Some(Time(now))
                } else {
                    earlier.and_then(|earlier| earlier.drift_corrected_at.clone())
                },
            })
        };
        let statuses = manifests.iter().filter_map(status).collect();
        let unreadable = manifests.iter().filter_map(|manifest| manifest.objects.as_ref().err());
        let mut all: Vec<Problem> = unreadable.cloned().collect();
        all.dedup();
        all.extend(problems.into_iter().map(|(_, problem)| problem));
        Self {
            statuses,
            problems: all,
            is_deleting,
        }
    }

    /// Whether the tenant is as the manifests say.
    pub(crate) fn is_applied(&self) -> bool {
        self.problems.is_empty() && !self.is_deleting
    }

    fn condition(&self) -> ConditionUpdate {
        if let Some(first) = self.problems.first() {
            let messages: Vec<&str> = self.problems.iter().map(|problem| problem.message.as_str()).collect();
            return ConditionUpdate::mark_false(MANIFESTS_APPLIED, first.reason, shorten(&messages, "; "));
        }
        if self.is_deleting {
            let message = "objects that no manifest has any more are being deleted";
            return ConditionUpdate::mark_false(MANIFESTS_APPLIED, "Pruning", message);
        }
        let all: Vec<String> = self
            .statuses
            .iter()
            .map(|status| format!("{} {} ({} objects)", status.name, status.version, status.objects))
            .collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let message = format!("applied: {}", shorten(&all, ", "));
        ConditionUpdate::mark_true(MANIFESTS_APPLIED, "Applied", message)
    }
}

impl ObservedManifests {
    /// The condition ManifestsApplied, if something is known.
    pub(crate) fn condition(&self) -> Option<ConditionUpdate> {
        match self {
            Self::Observed(state) if !state.statuses.is_empty() || !state.is_applied() => Some(state.condition()),
            Self::Observed(_) | Self::NotObserved | Self::NoManifests => None,
        }
    }

    /// Sets what the status says of the manifests.
    pub(crate) fn write_to(&self, status: &mut TenantClusterStatus) {
        match self {
            Self::NotObserved => return,
            Self::NoManifests => status.manifests.clear(),
            Self::Observed(state) => status.manifests.clone_from(&state.statuses),
        }
        if self.condition().is_none() {
            status
                .conditions
                .retain(|condition| condition.type_ != MANIFESTS_APPLIED);
        }
    }
}

/// The first texts, and how many more there are.
fn shorten(texts: &[&str], separator: &str) -> String {
    let first = texts[..texts.len().min(NAMED)].join(separator);
    match texts.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first}{separator}and {more} more"),
    }
}

/// Events about objects that somebody else had changed, one for each manifest.
pub(crate) fn drift_events(drift: &[(String, ObjectKey)]) -> Vec<Event> {
    let mut objects: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (manifest, object) in drift {
        objects.entry(manifest).or_default().push(object.to_string());
    }
    let event = |(manifest, objects): (&str, Vec<String>)| {
        let objects: Vec<&str> = objects.iter().map(String::as_str).collect();
        let note = format!(
            "somebody in the tenant had changed or deleted objects of the manifest {manifest}: {}",
            shorten(&objects, ", ")
        );
        Event {
            type_: EventType::Warning,
            reason: "DriftCorrected".into(),
            note: Some(note),
            action: MANIFESTS_APPLIED.into(),
            secondary: None,
        }
    };
    objects.into_iter().map(event).collect()
}

/// The Event about API groups for which somebody had registered another server, by the names of their APIServices.
pub(crate) fn taken_back_event(names: &[String]) -> Option<Event> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let note = format!(
        "somebody in the tenant had registered another server for API groups that the API server serves itself: APIService {}",
        shorten(&names, ", ")
    );
    (!names.is_empty()).then(|| Event {
        type_: EventType::Warning,
        reason: "DriftCorrected".into(),
        note: Some(note),
        action: MANIFESTS_APPLIED.into(),
        secondary: None,
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::objects::{parse, tests::data},
        *,
    };
    use berth_api::{ClassManifest, conditions};
    use std::sync::Arc;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn manifest(name: &str) -> Manifest {
        let text = format!("apiVersion: v1\nkind: LimitRange\nmetadata: {{name: {name}, namespace: default}}");
        Manifest {
            spec: ClassManifest {
                name: name.into(),
                version: "v2".into(),
                ..ClassManifest::default()
            },
            objects: Ok(Arc::new(parse(&data(&text)).unwrap())),
        }
    }

    fn earlier(name: &str) -> ManifestStatus {
        ManifestStatus {
            name: name.into(),
            version: "v1".into(),
            objects: 7,
            drift_corrected_at: Some(Time(at(5))),
            ..ManifestStatus::default()
        }
    }

    #[test]
    fn a_manifest_that_failed_keeps_the_version_that_was_applied() {
        let manifests = [manifest("a"), manifest("b")];
        let done = Done {
            problems: vec![("b".into(), Problem::new("ApplyFailed", "manifest b: refused"))],
            drift: vec![("a".into(), manifests[0].known()[0].key.clone())],
            ..Done::default()
        };
        let state = ManifestsState::new(&manifests, done, &[earlier("a"), earlier("b")], at(9));
        let versions: Vec<&str> = state.statuses.iter().map(|status| status.version.as_str()).collect();
        assert_eq!(versions, ["v2", "v1"]);
        assert_eq!(state.statuses[0].drift_corrected_at, Some(Time(at(9))));
        let condition = state.condition();
        assert_eq!(
            (condition.reason, condition.message.as_str()),
            ("ApplyFailed", "manifest b: refused")
        );
    }

    #[test]
    fn what_is_applied_is_named_with_its_version() {
        let state = ManifestsState::new(&[manifest("a")], Done::default(), &[earlier("a")], at(9));
        assert_eq!(state.statuses[0].drift_corrected_at, Some(Time(at(5))));
        let condition = state.condition();
        assert!(condition.is_true());
        assert_eq!(condition.message, "applied: a v2 (1 objects)");
    }

    #[test]
    fn nothing_stays_in_the_status_of_a_tenant_without_manifests() {
        let mut status = TenantClusterStatus {
            manifests: vec![earlier("a")],
            conditions: conditions::merge(
                &[],
                &[ConditionUpdate::mark_true(MANIFESTS_APPLIED, "Applied", "")],
                None,
                at(1),
            ),
            ..TenantClusterStatus::default()
        };
        let before = status.clone();
        ObservedManifests::NotObserved.write_to(&mut status);
        assert_eq!(status, before);
        ObservedManifests::NoManifests.write_to(&mut status);
        assert_eq!(status, TenantClusterStatus::default());
    }

    #[test]
    fn many_names_are_counted() {
        let keys: Vec<(String, ObjectKey)> = (0..8)
            .map(|number| ("a".to_owned(), manifest(&format!("m{number}")).known()[0].key.clone()))
            .collect();
        let events = drift_events(&keys);
        assert_eq!(events.len(), 1);
        let note = events[0].note.clone().unwrap();
        assert!(note.ends_with("LimitRange default/m4, and 3 more"), "{note}");
    }
}
