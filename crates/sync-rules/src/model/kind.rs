//! What a kind declares about itself: where it lives, in which direction it is synced, what it depends on, and which
//! rights it needs.

use super::{
    cache::Cache,
    kind_id::KindId,
    mirror::Mirror,
    resource::{Key, Name, Resource, Side},
    store::WatchSpec,
    to_host::ToHost,
};

/// A kind, as it declares itself. The engine of the syncer acts on these properties and knows no kind.
#[derive(Clone, Copy)]
pub struct Kind {
    /// What is watched in the tenant, if anything.
    pub tenant: Option<WatchSpec>,
    /// What is watched on the host, if anything.
    pub host: Option<(HostNamespace, WatchSpec)>,
    /// When the host is watched.
    pub host_watch: HostWatch,
    /// In which direction objects are synced, and by which rules.
    pub direction: Direction,
    /// Rights that the syncer needs besides those to watch.
    pub rights: Rights,
    /// The queue in which its keys wait.
    pub priority: QueuePriority,
    /// Whether nothing can be synced without this kind: it is never taken for unavailable.
    pub is_essential: bool,
    /// Whether a tenant may serve this kind by a definition of its own, which may be one that never answers: no other kind waits for it.
    pub is_extension: bool,
    /// Whether its objects on the host have an effect while no pod of the tenant runs: those that lead traffic, and those of controllers of the host.
    pub acts_without_pods: bool,
    /// Objects of other kinds on which its objects depend.
    pub depends_on: &'static [Dependency],
}

/// In which direction a kind is synced.
#[derive(Clone, Copy)]
pub enum Direction {
    /// From the tenant to the host; the status is synced back.
    ToHost(&'static dyn ToHost),
    /// From the host to the tenant: objects that the tenant may read and not change.
    Mirror(&'static dyn Mirror),
    /// Tokens of a pod, minted in the tenant and kept on the host.
    Tokens,
    /// Nodes: from the host to the tenant.
    Nodes,
    /// Schedules: read on the host; they decide about pods.
    Schedule,
    /// Events: from the host to the tenant.
    Events,
    /// Nothing is written: rules of other kinds read the tenant's objects.
    ReadOnly,
}

/// When the host's objects of a kind are watched. Every watch costs the host's API server something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostWatch {
    /// From the start.
    Always,
    /// Once there are any. The syncer creates them itself, or an object of another kind names them, so it knows when.
    OnDemand,
}

/// The queue in which the keys of a kind wait. A burst in one queue does not delay the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePriority {
    /// For what running pods wait for. It is not delayed by a burst of new objects.
    High,
    /// For all other objects.
    Normal,
    /// For what may wait until everything else is done.
    Low,
}

impl QueuePriority {
    /// `high`, `normal` or `low`, for metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }
}

/// A namespace of the tenant on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostNamespace {
    /// Where the syncer creates objects.
    Workloads,
    /// Where control publishes the tenant's nodes and its schedule.
    ControlPlane,
    /// None: a cluster-scoped kind, which the syncer may only read.
    Cluster,
}

/// Rights on resources of a kind's own API group: (resource or `resource/subresource`, verbs).
pub type Right = (&'static str, &'static [&'static str]);

/// Verbs to create, change and delete objects that are synced to the host.
pub const WRITE: &[&str] = &["create", "patch", "delete"];
/// Verbs to create, replace and delete mirrored objects.
const WRITE_MIRRORED: &[&str] = &["create", "update", "delete"];

/// Rights that the syncer needs for a kind besides those to watch what it watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rights {
    /// In the tenant, in all namespaces.
    pub tenant: &'static [Right],
    /// On the host, in the namespace in which the kind lives.
    pub host: &'static [Right],
    /// Verbs on the kind's resource in the tenant.
    pub tenant_verbs: &'static [&'static str],
    /// Verbs on the kind's resource on the host.
    pub host_verbs: &'static [&'static str],
}

/// Objects of another kind on which the objects of a kind depend.
#[derive(Clone, Copy)]
pub struct Dependency {
    /// The side on which they change.
    pub side: Side,
    /// Their kind.
    pub kind: KindId,
    /// Keys to reconcile because the object of this name was added, changed or deleted.
    pub find_dependents: fn(&Cache, &Name) -> Vec<Key>,
}

impl Dependency {
    /// On objects of the tenant.
    pub const fn on_tenant(kind: KindId, find_dependents: fn(&Cache, &Name) -> Vec<Key>) -> Self {
        Self {
            side: Side::Tenant,
            kind,
            find_dependents,
        }
    }

    /// On objects of the host.
    pub const fn on_host(kind: KindId, find_dependents: fn(&Cache, &Name) -> Vec<Key>) -> Self {
        Self {
            side: Side::Host,
            kind,
            find_dependents,
        }
    }
}

impl Kind {
    /// A kind of which nothing is watched.
    pub const fn new(direction: Direction) -> Self {
        Self {
            tenant: None,
            host: None,
            host_watch: HostWatch::Always,
            direction,
            rights: Rights {
                tenant: &[],
                host: &[],
                tenant_verbs: &[],
                host_verbs: &[],
            },
            priority: QueuePriority::Normal,
            is_essential: false,
            is_extension: false,
            acts_without_pods: false,
            depends_on: &[],
        }
    }

    /// A kind that is synced to the workload namespace of the host, under the same resource on both sides.
    pub const fn to_host(resource: Resource, rules: &'static dyn ToHost) -> Self {
        let mut kind = Self::new(Direction::ToHost(rules))
            .watch_tenant(WatchSpec::own(resource))
            .watch_host(HostNamespace::Workloads, WatchSpec::synced(resource));
        kind.host_watch = HostWatch::OnDemand;
        kind.rights.host_verbs = WRITE;
        kind
    }

    /// A kind that is mirrored to the tenant. The caller adds what is watched on the host.
    pub const fn mirror(resource: Resource, rules: &'static dyn Mirror) -> Self {
        let mut kind = Self::new(Direction::Mirror(rules)).watch_tenant(WatchSpec::own(resource));
        kind.rights.tenant_verbs = WRITE_MIRRORED;
        kind
    }

    /// A kind of the tenant that rules of other kinds read.
    pub const fn read_only(spec: WatchSpec) -> Self {
        Self::new(Direction::ReadOnly).watch_tenant(spec)
    }

    /// What is watched in the tenant.
    #[must_use]
    pub const fn watch_tenant(mut self, spec: WatchSpec) -> Self {
        self.tenant = Some(spec);
        self
    }

    /// What is watched on the host.
    #[must_use]
    pub const fn watch_host(mut self, namespace: HostNamespace, spec: WatchSpec) -> Self {
        self.host = Some((namespace, spec));
        self
    }

    /// When the host is watched.
    #[must_use]
    pub const fn watch_host_when(mut self, when: HostWatch) -> Self {
        self.host_watch = when;
        self
    }

    /// Rights in the tenant besides those that follow from the direction.
    #[must_use]
    pub const fn with_tenant_rights(mut self, rights: &'static [Right]) -> Self {
        self.rights.tenant = rights;
        self
    }

    /// Rights on the host besides those that follow from the direction.
    #[must_use]
    pub const fn with_host_rights(mut self, rights: &'static [Right]) -> Self {
        self.rights.host = rights;
        self
    }

    /// The queue in which its keys wait.
    #[must_use]
    pub const fn with_priority(mut self, priority: QueuePriority) -> Self {
        self.priority = priority;
        self
    }

    /// Without this kind nothing can be synced.
    #[must_use]
    pub const fn essential(mut self) -> Self {
        self.is_essential = true;
        self
    }

    /// Tenants may serve this kind by a definition of their own.
    #[must_use]
    pub const fn extension(mut self) -> Self {
        self.is_extension = true;
        self
    }

    /// Its objects on the host have an effect while no pod of the tenant runs.
    #[must_use]
    pub const fn acting_without_pods(mut self) -> Self {
        self.acts_without_pods = true;
        self
    }

    /// Objects of other kinds on which its objects depend.
    #[must_use]
    pub const fn depends_on(mut self, dependencies: &'static [Dependency]) -> Self {
        self.depends_on = dependencies;
        self
    }

    /// The resource in the tenant, or the host's if the kind is not watched in the tenant.
    pub fn resource(&self) -> Option<Resource> {
        self.tenant
            .map(|spec| spec.resource)
            .or_else(|| self.host.map(|(_, spec)| spec.resource))
    }

    /// The rules, if this kind is synced to the host.
    pub fn rules_to_host(&self) -> Option<&'static dyn ToHost> {
        match self.direction {
            Direction::ToHost(rules) => Some(rules),
            _ => None,
        }
    }
}
