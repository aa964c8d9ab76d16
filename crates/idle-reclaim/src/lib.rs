//! Which workloads leave their GPUs idle, and what Berth does about it and when. Pure: metrics, pods, the policy of the class and
//! what was decided before go in, decisions come out.
//!
//! | module | what |
//! |---|---|
//! | [`signal`] | what is measured of a GPU, and the metric that has it |
//! | [`query`] | the PromQL that aggregates a metric over a window: one row for each GPU |
//! | [`question`] | what is asked about which pods |
//! | [`series`] | the rows, by pod and GPU |
//! | [`gaps`] | what earlier passes found of gaps |
//! | [`policy`] | the rules of a class for one pod |
//! | [`pod`] | a pod with GPUs |
//! | [`evidence`] | whether a pod is active, idle, or neither is known |
//! | [`workload`] | pods that are judged as one: of one owner or of one gang |
//! | `opt_out` | pods that teams excepted |
//! | [`ladder`] | the steps from the first warning to the last one |
//! | [`attempts`] | what was tried to give back the GPUs of pods, and what to do if that had no effect |
//! | [`order`] | which workloads that are due come first, and how tenants take turns |
//! | [`owner`] | the object in the tenant that owns idle pods: how it is stopped at the last step, and started again, once |
//! | [`pass`] | all of it for one tenant, and the status to report |
//!
//! The rule behind all: what is not known is never idle. There is one exception: a pod whose containers have not started for a long time, and of
//! whose GPUs there are no metrics ([`evidence::judge`]).

#![warn(missing_docs)]

pub mod attempts;
pub mod evidence;
pub mod gaps;
pub mod ladder;
mod opt_out;
pub mod order;
pub mod owner;
pub mod pass;
pub mod pod;
pub mod policy;
pub mod query;
pub mod question;
pub mod series;
pub mod signal;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod workload;

/// Seconds since the epoch.
pub type Seconds = i64;
