//! Which server answers for a version of an API group in a tenant: its `APIService` says so.
//!
//! With a server of its own, a tenant answers itself for objects of the platform: it hides them, or says that they are gone. API servers serve
//! `apiregistration.k8s.io` before they look at any APIService, so that nobody hides these.

use super::objects::ObjectKey;
use crate::apply::optional;
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::ObjectMeta, kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::time::Instant;

/// How long an APIService must have been the same: API servers follow a change a moment later.
const SETTLED: Duration = Duration::from_secs(5);
/// Label of the APIServices that an API server makes and corrects, and its value for groups that it serves itself: it does so when it starts.
const AUTOMANAGED: (&str, &str) = ("kube-aggregator.kubernetes.io/automanaged", "onstart");

/// The name of the APIService of a version of a group.
pub(super) fn name_of(group: &str, version: &str) -> String {
    format!("{version}.{group}")
}

/// The name under which a definition is remembered. No APIService has such a name.
pub(super) fn name_of_definition(name: &str) -> String {
    format!("customresourcedefinitions/{name}")
}

/// An APIService as an object that a pass asks for.
pub(super) fn key_of(name: &str) -> ObjectKey {
    ObjectKey {
        group: "apiregistration.k8s.io".into(),
        kind: "APIService".into(),
        namespace: None,
        name: name.into(),
    }
}

/// An APIService, or a definition, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Registration {
    uid: String,
    resource_version: String,
    /// Whether it names a server of the tenant's.
    pub(super) is_foreign: bool,
}

impl Registration {
    fn of(service: &APIService) -> Self {
        Self {
            uid: service.uid().unwrap_or_default(),
            resource_version: service.resource_version().unwrap_or_default(),
            is_foreign: service.spec.as_ref().is_some_and(|spec| spec.service.is_some()),
        }
    }

    /// That of an object which names no server, such as a definition.
    pub(super) fn of_own(metadata: &ObjectMeta) -> Self {
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            is_foreign: false,
        }
    }
}

/// What is remembered of APIServices between passes, by their names, and of definitions, by [`name_of_definition`].
#[derive(Debug, Default)]
pub(super) struct Registrations {
    /// Those that name no server, and that nobody in the tenant can change any more.
    certain: BTreeSet<String>,
    seen: BTreeMap<String, Seen>,
    /// The number of the pass.
    pass: u64,
}

/// What was read under a name.
#[derive(Debug)]
struct Seen {
    /// What it was when it was read last. None: there was none.
    read: Option<Registration>,
    /// Since when at least.
    since: Instant,
    /// The last pass that read it.
    pass: u64,
}

impl Registrations {
    /// Notes that an APIService names no server and that nobody in the tenant can change it any more.
    pub(super) fn trust(&mut self, name: &str) {
        self.certain.insert(name.to_owned());
    }

    /// Whether nobody in the tenant can have another server there.
    pub(super) fn is_certain(&self, name: &str) -> bool {
        self.certain.contains(name)
    }

    /// Begins a pass. Forgets what none of the last two has read: the team chooses the names of definitions, and may choose new ones each time.
    pub(super) fn begin_pass(&mut self) {
        self.pass += 1;
        let pass = self.pass;
        self.seen.retain(|_, seen| seen.pass + 2 >= pass);
    }

    /// Notes what was read.
    pub(super) fn note(&mut self, name: &str, read: Option<&Registration>) {
        let seen = self.seen.entry(name.to_owned()).or_insert_with(|| Seen {
            read: read.cloned(),
            since: Instant::now(),
            pass: 0,
        });
        seen.pass = self.pass;
        if seen.read.as_ref() != read {
            seen.read = read.cloned();
            seen.since = Instant::now();
        }
    }

    /// Whether an APIService had been as it was read last for so long, when something was asked, that its server answered.
    pub(super) fn has_settled(&self, name: &str, asked: Instant) -> bool {
        let seen = self.seen.get(name);
        seen.is_some_and(|seen| asked.saturating_duration_since(seen.since) >= SETTLED)
    }

    /// How many names are remembered of which something was read.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.seen.len()
    }

    /// Forgets what was read.
    pub(super) fn forget(&mut self) {
        self.seen.clear();
    }
}

/// Reads an APIService.
///
/// # Errors
/// The API server refuses or does not answer.
pub(super) async fn read(client: &Client, name: &str) -> kube::Result<Option<Registration>> {
    let services: Api<APIService> = Api::all(client.clone());
    let found = optional(services.get(name).await)?;
    Ok(found.as_ref().map(Registration::of))
}

/// Takes the server of the tenant's out of an APIService, so that the API server serves the group itself. Without an APIService it would do so,
/// too, but clients would not find the group.
///
/// # Errors
/// The API server refuses or does not answer, or the APIService was changed since it was read.
pub(super) async fn take_back(client: &Client, name: &str, read: &Registration) -> kube::Result<Registration> {
    let (label, value) = AUTOMANAGED;
    let own = json!({
        "metadata": {"resourceVersion": read.resource_version, "labels": {label: value}},
        "spec": {"service": null, "caBundle": null, "insecureSkipTLSVerify": null},
    });
    let services: Api<APIService> = Api::all(client.clone());
    let changed = services
        .patch(name, &PatchParams::default(), &Patch::Merge(&own))
        .await?;
    Ok(Registration::of(&changed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use tokio::time::sleep;

    fn registration(version: &str, service: &Value) -> Registration {
        let service = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": "v1.platform.example", "uid": "u", "resourceVersion": version},
            "spec": {"group": "platform.example", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1,
                "service": service}});
        Registration::of(&serde_json::from_value(service).unwrap())
    }

    #[test]
    fn a_server_of_the_tenants_is_one_that_a_service_leads_to() {
        assert!(!registration("1", &Value::Null).is_foreign);
        assert!(registration("1", &json!({"namespace": "default", "name": "a"})).is_foreign);
        assert_eq!(name_of("", "v1"), "v1.");
        assert_eq!(name_of("platform.example", "v1"), "v1.platform.example");
    }

    #[tokio::test(start_paused = true)]
    async fn what_changes_all_the_time_never_settles() {
        const NAME: &str = "v1.platform.example";
        let mut registrations = Registrations::default();
        assert!(!registrations.has_settled(NAME, Instant::now()));
        for version in ["1", "2", "3"] {
            registrations.note(NAME, Some(&registration(version, &Value::Null)));
            assert!(!registrations.has_settled(NAME, Instant::now()), "{version}");
            sleep(2 * SETTLED).await;
        }
        registrations.note(NAME, None);
        assert!(!registrations.has_settled(NAME, Instant::now()), "it is gone");
        for is_settled in [false, true] {
            registrations.note(NAME, Some(&registration("4", &Value::Null)));
            assert_eq!(registrations.has_settled(NAME, Instant::now()), is_settled);
            sleep(SETTLED).await;
        }
        registrations.forget();
        assert!(!registrations.has_settled(NAME, Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn names_that_are_not_read_any_more_are_forgotten() {
        const NAME: &str = "v1.platform.example";
        let mut registrations = Registrations::default();
        for pass in 0..10 {
            registrations.begin_pass();
            // It has no turn in every other pass.
            if pass % 2 == 0 {
                registrations.note(NAME, None);
            }
            for number in 0..100 {
                registrations.note(&name_of_definition(&format!("{pass}-{number}")), None);
            }
            sleep(SETTLED).await;
        }
        assert!(registrations.count() <= 301, "{}", registrations.count());
        assert!(registrations.has_settled(NAME, Instant::now()));
        assert!(!registrations.has_settled(&name_of_definition("0-0"), Instant::now()));
    }
}
