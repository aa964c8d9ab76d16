//! What is observed: which tenants there are, and what each of them uses at an instant.

use berth_api::{NodeMode, UsageLine, UsageResource, UsageTenant};
use jiff::Timestamp;

/// What tells a line of a record from the others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineKey {
    /// The resource.
    pub resource: UsageResource,
    /// Name of the HostNodePool.
    pub pool_name: Option<String>,
    /// Product of its GPUs.
    pub gpu_product: Option<String>,
    /// Mode of the node group.
    pub mode: Option<NodeMode>,
    /// Name of the tenant's TenantClass.
    pub class_name: Option<String>,
    /// Name of the tenant's Project.
    pub project_name: Option<String>,
    /// Name of the Project's Organization.
    pub organization_name: Option<String>,
    /// Name of the host's StorageClass, or of its VolumeSnapshotClass for what snapshots keep.
    pub storage_class_name: Option<String>,
}

impl LineKey {
    /// The key of a line that has nothing but a resource.
    pub fn new(resource: UsageResource) -> Self {
        Self {
            resource,
            pool_name: None,
            gpu_product: None,
            mode: None,
            class_name: None,
            project_name: None,
            organization_name: None,
            storage_class_name: None,
        }
    }

    /// The key of a line of a record.
    pub fn of(line: &UsageLine) -> Self {
        Self {
            resource: line.resource,
            pool_name: line.pool_name.clone(),
            gpu_product: line.gpu_product.clone(),
            mode: line.mode,
            class_name: line.class_name.clone(),
            project_name: line.project_name.clone(),
            organization_name: line.organization_name.clone(),
            storage_class_name: line.storage_class_name.clone(),
        }
    }

    /// A line with these amounts.
    pub(crate) fn line(self, daily: Vec<i64>) -> UsageLine {
        let Self {
            resource,
            pool_name,
            gpu_product,
            mode,
            class_name,
            project_name,
            organization_name,
            storage_class_name,
        } = self;
        UsageLine {
            resource,
            pool_name,
            gpu_product,
            mode,
            class_name,
            project_name,
            organization_name,
            storage_class_name,
            daily,
        }
    }
}

/// A tenant that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// What records say about it.
    pub tenant: UsageTenant,
    /// When its TenantCluster was created. It used nothing before.
    pub created: Timestamp,
}

/// What a tenant uses at an instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// UID of the tenant.
    pub tenant_uid: String,
    /// The line that it belongs to.
    pub key: LineKey,
    /// Amount in the unit of the resource ([`UsageLine::daily`]), for each second. Negative amounts count as 0.
    pub amount: i64,
    /// Since when the tenant has it, if an object proves that. Without it, it is counted from the previous observation by the same process on, and
    /// not for a time in which nothing was observed.
    pub since: Option<Timestamp>,
    /// Until when the tenant had it; none if it has it now.
    pub until: Option<Timestamp>,
}

impl Item {
    /// Whether the tenant has it at this instant.
    pub(crate) fn is_held(&self, now: Timestamp) -> bool {
        self.amount > 0 && self.until.is_none_or(|until| until > now)
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use berth_api::NodeMode;

    /// GPUs of the pool h100 of the Project vision in the Organization research.
    pub(crate) fn gpus() -> LineKey {
        LineKey {
            pool_name: Some("h100".into()),
            gpu_product: Some("H100".into()),
            mode: Some(NodeMode::Dynamic),
            class_name: Some("gold".into()),
            project_name: Some("vision".into()),
            organization_name: Some("research".into()),
            ..LineKey::new(UsageResource::Gpu)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_its_key() {
        let key = LineKey {
            pool_name: Some("h100".into()),
            gpu_product: Some("H100".into()),
            mode: Some(NodeMode::Dynamic),
            class_name: Some("gold".into()),
            project_name: Some("vision".into()),
            organization_name: Some("research".into()),
            storage_class_name: Some("fast".into()),
            ..LineKey::new(UsageResource::Gpu)
        };
        let line = key.clone().line(vec![1, 2]);
        assert_eq!(LineKey::of(&line), key);
        assert_eq!(line.daily, [1, 2]);
    }

    #[test]
    fn an_item_is_held_until_it_is_not() {
        let second = |second| Timestamp::from_second(second).unwrap();
        let item = |amount, until: Option<i64>| Item {
            tenant_uid: "6f2c".into(),
            key: LineKey::new(UsageResource::Node),
            amount,
            since: None,
            until: until.map(second),
        };
        assert!(item(1, None).is_held(second(10)));
        assert!(item(1, Some(11)).is_held(second(10)));
        assert!(!item(1, Some(10)).is_held(second(10)));
        assert!(!item(0, None).is_held(second(10)));
        assert!(!item(-1, None).is_held(second(10)));
    }
}
