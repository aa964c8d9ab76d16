//! What has to be done once for an installation in a cluster, besides applying the chart: the datastore's certificates,
//! and looking before it is removed.

pub mod certificates;
pub mod uninstall;

/// Label of everything that an installation made without the chart naming it.
pub const PART_OF: (&str, &str) = ("app.kubernetes.io/part-of", "berth");
/// Label value of Secrets that [`certificates`] made.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "berth-control");
