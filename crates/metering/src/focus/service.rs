//! What FOCUS calls the resources.

use berth_api::UsageResource;

/// What a resource belongs to, for people.
pub(super) fn name(resource: UsageResource) -> &'static str {
    match resource {
        UsageResource::Gpu | UsageResource::Node => "Nodes",
        UsageResource::Cpu | UsageResource::Memory => "Shared nodes",
        UsageResource::Storage => "Storage",
        UsageResource::ControlPlane => "Control planes",
    }
}

/// Its ServiceCategory and ServiceSubcategory, of those that FOCUS allows. Its Virtual Machines reach from virtual hosts to whole servers.
pub(super) fn category(resource: UsageResource) -> (&'static str, &'static str) {
    match resource {
        UsageResource::Gpu | UsageResource::Node => ("Compute", "Virtual Machines"),
        UsageResource::Cpu | UsageResource::Memory | UsageResource::ControlPlane => ("Compute", "Containers"),
        UsageResource::Storage => ("Storage", "Other (Storage)"),
    }
}

/// Its unit, as FOCUS writes units.
pub(super) fn unit(resource: UsageResource) -> &'static str {
    match resource {
        UsageResource::Gpu => "GPU-Hours",
        UsageResource::Node => "Node-Hours",
        UsageResource::Cpu => "Core-Hours",
        UsageResource::Memory | UsageResource::Storage => "GiB-Hours",
        UsageResource::ControlPlane => "Hours",
    }
}
