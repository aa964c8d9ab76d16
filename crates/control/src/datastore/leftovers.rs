//! Users and roles of tenants that are gone. A call that creates a tenant's user or role may time out in control and be carried out by etcd
//! later, after the tenant was deleted.

use super::{Datastore, DatastoreError, failed, usage::count_keys};
use berth_api::names::etcd_prefix_of_user;
use berth_etcd::api::{AuthRoleListRequest, AuthUserListRequest};
use std::collections::{BTreeSet, HashSet};

/// Users and roles without a tenant, as they were found last.
#[derive(Debug, Default)]
pub struct Leftovers(BTreeSet<String>);

impl Leftovers {
    /// Takes the names of all users and roles of tenants, and those of the tenants that are `known`. Returns the others that were found the last
    /// time as well: the watches of control may not have seen a tenant that is new.
    pub fn observe(&mut self, mut names: BTreeSet<String>, known: &HashSet<String>) -> Vec<String> {
        names.retain(|name| !known.contains(name));
        let left = names.intersection(&self.0).cloned().collect();
        self.0 = names;
        left
    }
}

impl Datastore {
    /// Names of all users and roles of tenants.
    ///
    /// # Errors
    /// etcd refuses or does not answer.
    pub async fn list_identities(&self) -> Result<BTreeSet<String>, DatastoreError> {
        let client = self.connected_client().await?;
        let users = client.auth().user_list(AuthUserListRequest {}).await;
        let roles = client.auth().role_list(AuthRoleListRequest {}).await;
        let users = users.map_err(failed("list users"))?.into_inner().users;
        let roles = roles.map_err(failed("list roles"))?.into_inner().roles;
        let is_of_tenant = |name: &String| etcd_prefix_of_user(name).is_some();
        Ok(users.into_iter().chain(roles).filter(is_of_tenant).collect())
    }

    /// Deletes a user and the role of the same name, if there are no keys below its prefix: what stores something belongs to somebody. Returns
    /// whether they were deleted.
    ///
    /// # Errors
    /// etcd refuses or does not answer.
    pub async fn delete_leftover(&self, name: &str) -> Result<bool, DatastoreError> {
        let Some(prefix) = etcd_prefix_of_user(name) else {
            return Ok(false);
        };
        // Locked until it is deleted: nobody must create it meanwhile and rely on it.
        let mut state = self.state.lock().await;
        let client = self.client(&mut state).await?;
        if count_keys(&client, format!("{prefix}/")).await? > 0 {
            return Ok(false);
        }
        // A tenant that exists after all gets it again.
        state.prepared.remove(name);
        super::delete_identity(&client, name).await?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_tenant_twice_is_left_over() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let known = |known: &[&str]| known.iter().map(ToString::to_string).collect();
        let mut leftovers = Leftovers::default();
        assert!(leftovers.observe(names(&["a", "b", "c"]), &known(&["a"])).is_empty());
        // The tenant of c was only not seen yet, and d is new.
        assert_eq!(
            leftovers.observe(names(&["a", "b", "c", "d"]), &known(&["a", "c"])),
            ["b"]
        );
        assert_eq!(leftovers.observe(names(&["a", "d"]), &known(&["a"])), ["d"]);
        assert!(leftovers.observe(names(&["a"]), &known(&[])).is_empty());
    }
}
