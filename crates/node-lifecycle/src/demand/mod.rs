//! The demand of tenants' pods for nodes: host pods as the planner's [`Demand`](berth_planner::Demand).
//!
//! | of a pod | becomes |
//! |---|---|
//! | requests, as the scheduler counts them | amounts: number of devices, CPU and memory |
//! | claims of devices | amounts `dra:<class>` |
//! | node selector | labels that the node must carry |
//! | required node affinity | one label, for the planner only, of the nodes that satisfy it |
//! | required anti-affinity to pods like itself, by host name | one unit of a resource; each node has one |
//! | spread constraint by host name | one unit of a resource; each node has as many units as it may have of these pods |
//! | required affinity to pods like itself | nodes of the domain where those run; else one node, or one domain, for all of them |
//! | the gang that the syncer recorded | one demand for all its pods, those not created yet included if half of them exist |
//! | scheduling gates, deletion, a node name | no demand |
//! | no request for devices of a pool that has them | no demand, unless it selects the pool or the group |

mod autoscaling;
mod likeness;
mod node_rules;
mod placement;
mod pod_affinity;
mod read_pod;
mod topology_spread;
mod translate;
mod units;
mod work_share;
mod workload;
mod workload_index;

pub use node_rules::NodeRules;
pub use read_pod::read_claims;
pub use translate::{
    HostNode, NodeGroupDemand, PoolDevices, PoolNodes, SATISFIED, Tenant, TenantDemand, needs_node_of,
    translate_demand, uses_node_of,
};
pub use work_share::Share;
pub use workload::{
    ANTI_AFFINITY_PREFIX, Claim, DRA_PREFIX, Gang, PodAffinity, SPREAD_PREFIX, SchedulingState, Spread, Workload,
    available_amounts, is_device, is_of_same_domain, shorten,
};
pub use workload_index::WorkloadIndex;

#[cfg(test)]
mod tests;
