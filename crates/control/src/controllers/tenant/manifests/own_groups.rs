//! API servers answer themselves for the groups that they serve, as far as manifests depend on that: a server of the tenant's that was
//! registered for such a group is taken out of its APIService.
//!
//! Nobody registers one from Kubernetes 1.37 on (`control_plane::own_apis`). One that was registered before stays, so control looks once.

use super::{
    desired::{Manifest, Problem},
    messages::message,
    objects::ObjectKey,
    pass::{APPLY_FAILED, Pass},
    registrations::{self, key_of, name_of},
};
use crate::control_plane::{served_groups, served_versions};
use std::collections::BTreeSet;

/// The APIService of definitions, which say where objects can be.
pub(super) const DEFINITIONS: &str = "v1.apiextensions.k8s.io";

impl Pass<'_> {
    /// Takes servers of the tenant's out of the groups that the pass depends on. What fails is in the result.
    pub(super) async fn keep_own_groups(&mut self, manifests: &[Manifest]) {
        let objects = manifests.iter().flat_map(Manifest::known);
        let objects = objects.map(|object| (&object.key, object.version.as_str()));
        let recorded = self.done.inventory.kept.iter();
        let recorded = recorded.map(|entry| (&entry.object, entry.version.as_str()));
        let names = own_registrations(objects.chain(recorded));
        let mut are_own = true;
        for name in names {
            if self.known.registrations.is_certain(&name) {
                continue;
            }
            match self.keep_own_group(&name).await {
                Ok(is_own) => are_own &= is_own,
                Err(why) => {
                    are_own = false;
                    let message = format!(
                        "the APIService {name} in the tenant, of a group that API servers serve themselves, cannot be checked and \
                         corrected: {why}"
                    );
                    let problem = Problem::new(APPLY_FAILED, message);
                    self.done.problems.push((String::new(), problem));
                }
            }
        }
        if self.protects_own && are_own {
            self.turns.trust_own_groups();
        }
    }

    /// Returns whether there was no server of the tenant's.
    async fn keep_own_group(&mut self, name: &str) -> Result<bool, String> {
        let key = key_of(name);
        let found = self.turns.read(&key, registrations::read(self.client, name)).await?;
        let found = found.map_err(|error| message(&error))?;
        let Some(foreign) = found.filter(|found| found.is_foreign) else {
            if self.protects_own {
                self.known.registrations.trust(name);
            }
            return Ok(true);
        };
        let call = registrations::take_back(self.client, name, &foreign);
        let changed = self.turns.write(&key, call).await?;
        let changed = changed.map_err(|error| message(&error))?;
        if changed.is_foreign {
            return Err("something in the tenant changes it back; look for a mutating webhook".into());
        }
        self.done.taken_back.push(name.to_owned());
        Ok(false)
    }
}

/// The names of the APIServices of groups that API servers serve themselves, as far as these objects and definitions depend on them.
fn own_registrations<'a>(objects: impl Iterator<Item = (&'a ObjectKey, &'a str)>) -> BTreeSet<String> {
    let own: BTreeSet<&str> = served_groups().collect();
    let mut names = BTreeSet::from([DEFINITIONS.to_owned()]);
    for (key, version) in objects.filter(|(key, _)| own.contains(key.group.as_str())) {
        names.insert(name_of(&key.group, version));
        // Objects whose version is not served any more are looked for in the others.
        names.extend(served_versions(&key.group).map(|version| name_of(&key.group, version)));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_the_objects_count_with_all_their_versions() {
        let key = |group: &str| ObjectKey {
            group: group.into(),
            kind: "A".into(),
            namespace: None,
            name: "a".into(),
        };
        let keys = [key("autoscaling"), key(""), key("platform.example"), key("")];
        let versions = ["v2beta1", "v1", "v1", "v1"];
        let names = own_registrations(keys.iter().zip(versions));
        let expected = [
            "v1.",
            "v1.apiextensions.k8s.io",
            "v1.autoscaling",
            "v2.autoscaling",
            "v2beta1.autoscaling",
        ];
        assert!(names.iter().eq(expected.iter()), "{names:?}");
    }
}
