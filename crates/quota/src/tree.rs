//! The levels of the tree and the quotas of each, without use.

use berth_api::{Amount, Organization, Project, TreeQuota, TreeResource};
use kube_core::ResourceExt;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What a quota limits: a resource, and for GPUs the pool or the product. GPUs without either are those of all pools.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The resource.
    pub resource: TreeResource,
    /// The pool, for GPUs.
    pub pool: Option<String>,
    /// The product, for GPUs.
    pub product: Option<String>,
}

impl Key {
    /// A resource without a pool or a product.
    pub const fn of(resource: TreeResource) -> Self {
        Self {
            resource,
            pool: None,
            product: None,
        }
    }

    /// GPUs of a pool.
    pub fn gpus(pool: &str) -> Self {
        Self {
            pool: Some(pool.to_owned()),
            ..Self::of(TreeResource::Gpus)
        }
    }

    /// GPUs of all pools of a product.
    pub fn gpus_of_product(product: &str) -> Self {
        Self {
            product: Some(product.to_owned()),
            ..Self::of(TreeResource::Gpus)
        }
    }
}

/// What a level of the tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LevelKind {
    /// Above all Organizations.
    Root,
    /// An Organization.
    Organization,
    /// A Project.
    Project,
}

/// Number of the root.
pub(crate) const ROOT: usize = 0;

/// Organizations with their Projects.
#[derive(Debug)]
pub struct Tree {
    pub(crate) levels: Vec<Level>,
    organizations: HashMap<String, usize>,
    projects: HashMap<String, usize>,
}

#[derive(Debug)]
pub(crate) struct Level {
    pub(crate) kind: LevelKind,
    pub(crate) name: String,
    pub(crate) parent: usize,
    pub(crate) children: Vec<usize>,
    /// The quotas that it lists.
    pub(crate) quotas: BTreeMap<Key, Limits>,
    /// Whether it is an Organization that Projects name and that does not exist.
    pub(crate) is_missing: bool,
}

/// One quota of one level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) nominal: u64,
    pub(crate) lending: Option<u64>,
    pub(crate) borrowing: Option<u64>,
}

impl Tree {
    /// The tree of all Organizations and Projects. An Organization that does not exist is a level of its own: its Projects neither lend
    /// nor borrow outside of it, see [`Tree::missing_organization`].
    pub fn new<'a>(
        organizations: impl IntoIterator<Item = &'a Organization>,
        projects: impl IntoIterator<Item = &'a Project>,
    ) -> Self {
        let mut tree = Self {
            levels: vec![Level::new(LevelKind::Root, "", ROOT, &[])],
            organizations: HashMap::new(),
            projects: HashMap::new(),
        };
        let mut organizations: Vec<&Organization> = organizations.into_iter().collect();
        organizations.sort_by_cached_key(|organization| organization.name_any());
        for organization in organizations {
            let name = organization.name_any();
            let number = tree.add(LevelKind::Organization, &name, ROOT, &organization.spec.quotas);
            tree.organizations.insert(name, number);
        }
        let mut missing = HashMap::new();
        let mut projects: Vec<&Project> = projects.into_iter().collect();
        projects.sort_by_cached_key(|project| project.name_any());
        for project in projects {
            let organization = project.spec.organization_name.as_deref();
            let parent = organization.map_or(ROOT, |name| tree.find_or_add_missing(name, &mut missing));
            let name = project.name_any();
            let number = tree.add(LevelKind::Project, &name, parent, &project.spec.quotas);
            tree.projects.insert(name, number);
        }
        tree
    }

    /// The Organization of a Project. It is among the `missing` ones if it does not exist.
    fn find_or_add_missing<'a>(&mut self, name: &'a str, missing: &mut HashMap<&'a str, usize>) -> usize {
        if let Some(known) = self.organization(name) {
            return known;
        }
        *missing.entry(name).or_insert_with(|| {
            let number = self.add(LevelKind::Organization, name, ROOT, &[]);
            self.levels[number].is_missing = true;
            number
        })
    }

    fn add(&mut self, kind: LevelKind, name: &str, parent: usize, quotas: &[TreeQuota]) -> usize {
        let number = self.levels.len();
        self.levels.push(Level::new(kind, name, parent, quotas));
        self.levels[parent].children.push(number);
        number
    }

    pub(crate) fn organization(&self, name: &str) -> Option<usize> {
        self.organizations.get(name).copied()
    }

    pub(crate) fn project(&self, name: &str) -> Option<usize> {
        self.projects.get(name).copied()
    }

    /// The Organization that a Project names and that does not exist. Nobody knows what it would allow: the tenants of the Project keep
    /// what they have, and get no more.
    pub(crate) fn missing_organization(&self, project: &str) -> Option<&str> {
        let parent = &self.levels[self.levels[self.project(project)?].parent];
        parent.is_missing.then_some(parent.name.as_str())
    }

    /// A level and those above it, without the root.
    pub(crate) fn path(&self, level: usize) -> impl Iterator<Item = usize> {
        let above = move |number: &usize| Some(self.levels[*number].parent).filter(|above| *above != ROOT);
        std::iter::successors(Some(level).filter(|level| *level != ROOT), above)
    }

    /// Whether a level or one above it lists the key. What no level lists is not limited.
    pub(crate) fn is_limited(&self, level: usize, key: &Key) -> bool {
        self.path(level)
            .any(|number| self.levels[number].quotas.contains_key(key))
    }

    /// The resources that any level lists.
    pub fn resources(&self) -> BTreeSet<TreeResource> {
        self.keys().into_iter().map(|key| key.resource).collect()
    }

    /// Everything that any level lists.
    pub(crate) fn keys(&self) -> BTreeSet<Key> {
        let listed = self.levels.iter().flat_map(|level| level.quotas.keys());
        listed.cloned().collect()
    }
}

impl Level {
    /// Of several entries for the same key the first counts. An amount that cannot be read is 0; validation reports both.
    fn new(kind: LevelKind, name: &str, parent: usize, quotas: &[TreeQuota]) -> Self {
        let mut listed = BTreeMap::new();
        for quota in quotas {
            let key = Key {
                resource: quota.resource.clone(),
                pool: quota.pool_name.clone(),
                product: quota.gpu_product.clone(),
            };
            let optional = |amount: Option<&Amount>| amount.map(|amount| amount.value().unwrap_or(0));
            listed.entry(key).or_insert(Limits {
                nominal: quota.nominal_quota.value().unwrap_or(0),
                lending: optional(quota.lending_limit.as_ref()),
                borrowing: optional(quota.borrowing_limit.as_ref()),
            });
        }
        Self {
            kind,
            name: name.to_owned(),
            parent,
            children: Vec::new(),
            quotas: listed,
            is_missing: false,
        }
    }
}
