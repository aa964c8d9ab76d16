//! What tenants' pods need of nodes: from host pods to the planner's [`Demand`](berth_planner::Demand). Pure.
//!
//! | of a pod | becomes |
//! |---|---|
//! | requests, as the scheduler counts them | amounts: devices by their number, CPU and memory beside them |
//! | claims of devices | amounts `dra:<class>` |
//! | node selector | labels that the node must carry |
//! | required node affinity | one label that the nodes get, for the planner only, which satisfy it |
//! | required anti-affinity to its own kind by host name | one unit of a resource of which each node has one |
//! | the gang that the syncer wrote down | one demand for all, the pods that are still to come included |
//! | gates, deletion, a node that it names | no demand |
//! | no devices asked for, in a pool that has them | no demand, unless it selects the pool or the group |

mod affinity;
mod translate;
mod workload;

pub use translate::{GroupOf, HostNode, Needs, SATISFIED, Tenant, translate, uses};
pub use workload::{ALONE, Claim, DRA, Gang, Place, Workload, available, is_device};

#[cfg(test)]
mod tests;
