//! To which Project a namespace belongs.

use berth_api::{ALL_NAMESPACES, Project};
use kube_core::ResourceExt;
use std::collections::HashMap;

/// The Project of each namespace. A namespace that several Projects name belongs to the oldest.
#[derive(Debug, Default)]
pub struct Projects<'a> {
    by_namespace: HashMap<&'a str, &'a str>,
    /// The Project of all other namespaces.
    others: Option<&'a str>,
}

impl<'a> Projects<'a> {
    /// Of all Projects, in any order.
    pub fn new(projects: impl IntoIterator<Item = &'a Project>) -> Self {
        let mut sorted: Vec<&Project> = projects.into_iter().collect();
        sorted.sort_by_cached_key(|project| (project.creation_timestamp().map(|time| time.0), project.name_any()));
        let mut found = Self::default();
        for project in sorted {
            let Some(name) = project.metadata.name.as_deref() else {
                continue;
            };
            for namespace in &project.spec.namespaces {
                if namespace == ALL_NAMESPACES {
                    found.others.get_or_insert(name);
                } else {
                    found.by_namespace.entry(namespace).or_insert(name);
                }
            }
        }
        found
    }

    /// The Project that the TenantClusters of a namespace belong to.
    pub fn of(&self, namespace: &str) -> Option<&'a str> {
        self.by_namespace.get(namespace).copied().or(self.others)
    }

    /// The namespaces that a Project names and that belong to another, with that one.
    pub fn taken<'p>(&self, project: &'p Project) -> Vec<(&'p str, &'a str)> {
        let name = project.metadata.name.as_deref().unwrap_or_default();
        let owners = project.spec.namespaces.iter().filter_map(|namespace| {
            let owner = if namespace == ALL_NAMESPACES {
                self.others?
            } else {
                self.by_namespace.get(namespace.as_str()).copied()?
            };
            Some((namespace.as_str(), owner))
        });
        owners.filter(|(_, owner)| *owner != name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::project;

    #[test]
    fn a_namespace_belongs_to_the_oldest_project_in_any_order() {
        let (old, new) = (
            project("zeta", None, 1, &["team-a"], &[]),
            project("alpha", None, 2, &["team-a", "team-b"], &[]),
        );
        for projects in [Projects::new([&old, &new]), Projects::new([&new, &old])] {
            assert_eq!(projects.of("team-a"), Some("zeta"));
            assert_eq!(projects.of("team-b"), Some("alpha"));
            assert_eq!(projects.of("team-c"), None);
            assert_eq!(projects.taken(&new), [("team-a", "zeta")]);
            assert!(projects.taken(&old).is_empty());
        }
    }

    #[test]
    fn a_project_of_all_namespaces_has_those_that_no_project_names() {
        let (all, named) = (
            project("rest", None, 1, &["*"], &[]),
            project("vision", None, 2, &["team-a"], &[]),
        );
        let late = project("late", None, 3, &["*"], &[]);
        let projects = Projects::new([&all, &named, &late]);
        assert_eq!(projects.of("team-a"), Some("vision"));
        assert_eq!(projects.of("other"), Some("rest"));
        assert_eq!(projects.taken(&late), [("*", "rest")]);
    }
}
