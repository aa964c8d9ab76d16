//! The environment variables of the Services of a namespace, as pods get them: computed once for all pods until a Service changes. Otherwise each pod would cost
//! as much time as there are Services.

use super::{DeniedField, memo::Memo, store::Store};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Namespaces and numbers of containers that are kept: the variables of one have 64 KiB at most.
const KEPT: usize = 16;

/// The variables that pods of a namespace get, and what they do not get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceVariables {
    /// Names and values.
    pub variables: Vec<(String, String)>,
    /// That Services are left out, because the variables of all would be too many.
    pub left_out: Option<DeniedField>,
}

/// The variables by namespace and number of containers.
type ByPod = HashMap<(Arc<str>, usize), Arc<ServiceVariables>>;

/// Those that are known for the present state of all Services.
#[derive(Debug, Default)]
pub struct KnownServiceVariables(Memo<Mutex<ByPod>>);

impl KnownServiceVariables {
    /// The variables of the Services of a namespace for pods with so many containers: those that are known, or what `select` makes of `services`.
    pub fn get(
        &self,
        services: &Store,
        namespace: &Arc<str>,
        containers: usize,
        select: impl FnOnce() -> ServiceVariables,
    ) -> Arc<ServiceVariables> {
        let known = self.0.get(&[services], Mutex::default);
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (Arc::clone(namespace), containers);
        if let Some(variables) = known.get(&key) {
            return Arc::clone(variables);
        }
        if known.len() >= KEPT {
            known.clear();
        }
        let variables = Arc::new(select());
        known.insert(key, Arc::clone(&variables));
        variables
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{resource::Name, stored::Stored};
    use serde_json::json;

    fn one(name: &str) -> ServiceVariables {
        ServiceVariables {
            variables: vec![(name.into(), "1".into())],
            left_out: None,
        }
    }

    #[test]
    fn variables_are_selected_once_until_a_service_changes() {
        let (known, services) = (KnownServiceVariables::default(), Store::default());
        let namespace: Arc<str> = "team".into();
        let get = |containers, name: &str| known.get(&services, &namespace, containers, || one(name));
        assert_eq!(*get(1, "a"), one("a"));
        assert_eq!(*get(1, "b"), one("a"), "they are known");
        assert_eq!(*get(2, "c"), one("c"), "more containers have other ones");
        let of_other = known.get(&services, &"other".into(), 1, || one("d"));
        assert_eq!(*of_other, one("d"), "and so has another namespace");
        let service = json!({"metadata": {"name": "s", "resourceVersion": "1"}});
        services.watched(Name::new("team", "s"), Stored::from(service));
        assert_eq!(*get(1, "e"), one("e"), "a Service has changed");
    }

    #[test]
    fn few_are_kept() {
        let (known, services) = (KnownServiceVariables::default(), Store::default());
        for containers in 0..10 * KEPT {
            known.get(&services, &"team".into(), containers, ServiceVariables::default);
            let all = known.0.get(&[&services], Mutex::default);
            assert!(all.lock().unwrap().len() <= KEPT);
        }
    }
}
