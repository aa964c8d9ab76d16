//! What the rules of several kinds share.

pub mod backend;
pub mod conditions;
pub mod device_variables;
pub mod edge_text;
pub mod endpoint_address;
pub mod field_checks;
pub mod fields;
pub mod generation;
pub mod host_annotations;
pub mod host_text;
pub mod hostnames;
pub mod images;
pub mod metadata;
pub mod mirrored_class;
pub mod namespace_labels;
pub mod pattern;
pub mod pod_labels;
pub mod pod_selector;
pub mod quota;
pub mod selector;
pub mod sizes;
pub mod sources;
pub mod workload_address;
