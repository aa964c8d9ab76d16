//! What tenants' pods need of nodes: from host pods to the planner's [`Demand`](berth_planner::Demand). Pure.
//!
//! | of a pod | becomes |
//! |---|---|
//! | requests, as the scheduler counts them | amounts: devices by their number, CPU and memory beside them |
//! | claims of devices | amounts `dra:<class>` |
//! | node selector | labels that the node must carry |
//! | required node affinity | one label that the nodes get, for the planner only, which satisfy it |
//! | required anti-affinity to its own kind by host name | one unit of a resource of which each node has one |
//! | spread constraint by host name | one unit of a resource of which each node has as many as it may have of these pods |
//! | required affinity to its own kind | nodes of the domain where these run; else one node, or one domain, for all of them |
//! | the gang that the syncer wrote down | one demand for all, the pods that are still to come included |
//! | gates, deletion, a node that it names | no demand |
//! | no devices asked for, in a pool that has them | no demand, unless it selects the pool or the group |

mod affinity;
mod asking;
mod rooms;
mod spread;
mod together;
mod translate;
mod workload;

pub use affinity::NodeRules;
pub use translate::{GroupOf, HostNode, Needs, PoolNodes, SATISFIED, Tenant, translate, uses};
pub use workload::{ALONE, Claim, DRA, Gang, Place, SPREAD, Spread, Together, Workload, available, is_device};

#[cfg(test)]
mod tests;
