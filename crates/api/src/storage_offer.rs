//! What a class offers of the host's storage, one by one: a tenant may still use what its class no longer offers.

use crate::sync_policy::{StoragePolicy, allows};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Something that [`StoragePolicy`] lists and that runs with a tenant's pods. As text it is `Kind/name`, as in
/// [`Violation::object`](crate::Violation::object).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum StorageOffer {
    /// A CSI driver for inline volumes.
    InlineDriver(String),
    /// A StorageClass.
    StorageClass(String),
    /// A VolumeAttributesClass.
    AttributesClass(String),
}

impl StorageOffer {
    /// Its kind in the API.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::InlineDriver(_) => "CSIDriver",
            Self::StorageClass(_) => "StorageClass",
            Self::AttributesClass(_) => "VolumeAttributesClass",
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::InlineDriver(name) | Self::StorageClass(name) | Self::AttributesClass(name) => name,
        }
    }

    /// The field of a class that lists it.
    pub fn field(&self) -> &'static str {
        match self {
            Self::InlineDriver(_) => "spec.sync.storage.inlineDrivers",
            Self::StorageClass(_) => "spec.sync.storage.classes",
            Self::AttributesClass(_) => "spec.sync.storage.attributesClasses",
        }
    }

    /// Whether a class offers it.
    pub fn is_offered(&self, policy: &StoragePolicy) -> bool {
        let listed = match self {
            Self::InlineDriver(_) => &policy.inline_drivers,
            Self::StorageClass(_) => &policy.classes,
            Self::AttributesClass(_) => &policy.attributes_classes,
        };
        allows(listed, self.name())
    }
}

impl fmt::Display for StorageOffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.kind(), self.name())
    }
}

/// A text that names nothing that a class offers of storage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not CSIDriver/name, StorageClass/name or VolumeAttributesClass/name")]
pub struct UnknownStorageOffer(String);

impl FromStr for StorageOffer {
    type Err = UnknownStorageOffer;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let of_kind = match text.split_once('/') {
            Some(("CSIDriver", name)) => Some((Self::InlineDriver as fn(String) -> Self, name)),
            Some(("StorageClass", name)) => Some((Self::StorageClass as fn(String) -> Self, name)),
            Some(("VolumeAttributesClass", name)) => Some((Self::AttributesClass as fn(String) -> Self, name)),
            _ => None,
        };
        let named = of_kind.filter(|(_, name)| !name.is_empty());
        named.map_or_else(
            || Err(UnknownStorageOffer(text.into())),
            |(offer, name)| Ok(offer(name.into())),
        )
    }
}

impl TryFrom<String> for StorageOffer {
    type Error = UnknownStorageOffer;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<StorageOffer> for String {
    fn from(offer: StorageOffer) -> Self {
        offer.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> [StorageOffer; 3] {
        [
            StorageOffer::InlineDriver("inline.example.com".into()),
            StorageOffer::StorageClass("fast".into()),
            StorageOffer::AttributesClass("gold".into()),
        ]
    }

    #[test]
    fn texts_are_read_as_they_are_written() {
        for offer in all() {
            assert_eq!(offer.to_string().parse(), Ok(offer));
        }
        for other in ["", "fast", "StorageClass/", "Node/a"] {
            assert!(other.parse::<StorageOffer>().is_err(), "{other}");
        }
    }

    #[test]
    fn each_is_offered_by_a_list_of_its_own() {
        let lists = |list: &str| StoragePolicy {
            inline_drivers: vec![if list == "inlineDrivers" { "*" } else { "a" }.into()],
            classes: vec![if list == "classes" { "fast" } else { "gold" }.into()],
            attributes_classes: vec![if list == "attributesClasses" { "gold" } else { "fast" }.into()],
            ..StoragePolicy::default()
        };
        for offer in all() {
            let list = offer.field().rsplit('.').next().unwrap();
            assert!(offer.is_offered(&lists(list)), "{offer}");
            assert!(!offer.is_offered(&lists("")), "{offer}");
        }
    }
}
