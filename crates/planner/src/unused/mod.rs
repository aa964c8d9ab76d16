//! Nodes that a tenant gets for its pods and that none of them uses, and who gets them instead.
//!
//! A pod can wait for ever although a node has room for it: because of an affinity to pods that do not exist, or as the first of a
//! gang. The planner does not see why, only that nodes stay idle. It finds them in two ways ([`kept`]):
//! - nodes that are idle for too long and that only pods which wait keep. If a tenant has such nodes without a break for as long as the
//!   planner has patience, those that are idle for as long beyond that are *due*. As long as nobody lacks them, they stay: the same pods
//!   would get them again, after they were recycled for nothing.
//! - nodes that no pod ever used and that are released as idle: their pods were deleted before. That happens to everybody at times, so
//!   some are spared.
//!
//! Nodes that are due go to minimums and requests of other tenants that can use exactly these ([`lacking`]), in the order in which the
//! next plan serves them. None goes to what waits behind a gang for which the next plan would keep it ([`kept_for_first`]). Then there is a
//! pause for the tenant that loses them ([`memory`]): nothing is refused, but its requests are served after those of all others, and nothing
//! is reclaimed for them, nor for those of other tenants of a Project ([`shared`]).
//!
//! Pods that wait for what is left of a node in use keep it from others for as long alone ([`waiting`]).
//!
//! The memory is by tenant and pool, not by request: who deletes a pod and creates it again, or renames a node group, has the same
//! tenant. It ends when the tenant uses as many new nodes as it left unused. docs/adr/0051 says why.

mod kept;
mod kept_for_first;
mod lacking;
mod memory;
mod shared;
mod waiting;

pub use memory::remember_unused_nodes;
pub(crate) use memory::{carry_over, remove_empty};
